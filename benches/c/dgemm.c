/* DGEMM under paging: C += A B of OpenBLAS, one thread.
 *
 *     dgemm ROWS [PROCS]
 *
 * Moves itself into the control group whose file of processes is PROCS. Makes random matrices of ROWS rows and as many columns, and writes `ready`. Answers
 * each line of its input, a number of milliseconds, with the seconds, the multiplications and the pages that the kernel has read; it
 * begins multiplications until the time is over. At the end of the input it compares C with as many multiples of A B, both times a random vector, and
 * writes `exact`. */

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    if (clock_gettime(CLOCK_MONOTONIC, &time) != 0)
        abort();
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static double faults(void) {
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        abort();
    return (double)usage.ru_majflt;
}

static void join(const char *procs) {
    FILE *file = fopen(procs, "w");
    if (file == NULL || fprintf(file, "0") < 0 || fclose(file) != 0) {
        perror(procs);
        exit(1);
    }
}

static double *matrix(size_t count) {
    double *values = malloc(count * sizeof *values);
    if (values == NULL) {
        perror("malloc");
        exit(1);
    }
    return values;
}

static double *random_matrix(size_t count) {
    double *values = matrix(count);
    for (size_t i = 0; i < count; i++)
        values[i] = (double)random() / (double)RAND_MAX - 0.5;
    return values;
}

/* y = matrix x */
static void times(int rows, const double *values, const double *x, double *y) {
    cblas_dgemv(CblasRowMajor, CblasNoTrans, rows, rows, 1.0, values, rows, x, 1, 0.0, y, 1);
}

int main(int argc, char **argv) {
    int rows = argc > 1 ? atoi(argv[1]) : 0;
    if (rows <= 0)
        return 2;
    /* Pages of 4 KiB are paged, as in the paper. */
    if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) {
        perror("prctl");
        return 1;
    }
    if (argc > 2)
        join(argv[2]);
    openblas_set_num_threads(1);
    size_t count = (size_t)rows * (size_t)rows;
    double *a = random_matrix(count), *b = random_matrix(count), *c = matrix(count);
    for (size_t i = 0; i < count; i++)
        c[i] = 0.0;
    printf("ready\n");
    fflush(stdout);
    double done = 0;
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL) {
        double begin = now(), end = begin + strtod(line, NULL) * 1e-3, before = faults(), first = done;
        do {
            cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, rows, rows, 1.0, a, rows, b, rows, 1.0, c, rows);
            done++;
        } while (now() < end);
        printf("%f %.0f %.0f\n", now() - begin, done - first, faults() - before);
        fflush(stdout);
    }
    double *x = random_matrix((size_t)rows), *bx = matrix((size_t)rows), *abx = matrix((size_t)rows), *cx = matrix((size_t)rows);
    times(rows, b, x, bx);
    times(rows, a, bx, abx);
    times(rows, c, x, cx);
    for (int i = 0; i < rows; i++) {
        double difference = fabs(cx[i] - done * abx[i]);
        /* A number that is none is wrong, too. */
        if (!(difference <= 1e-9 * (done + 1) * rows)) {
            printf("row %d differs by %g after %.0f multiplications\n", i, difference, done);
            return 1;
        }
    }
    printf("exact\n");
    return 0;
}
