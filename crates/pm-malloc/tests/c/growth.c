/* What it costs to have blocks grow by small steps in a new process, in milliseconds of processor time: as many in turn as the
 * argument says. */

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

int main(int argc, char **argv) {
    char *blocks[8] = { NULL };
    size_t count = argc == 2 ? (size_t)atoi(argv[1]) : 1;
    double start = now_ms();
    for (size_t size = 1; size < 4000000 / count; size += 256) {
        for (size_t i = 0; i < count; i++) {
            blocks[i] = realloc(blocks[i], size);
            blocks[i][size - 1] = (char)size;
        }
    }
    for (size_t i = 0; i < count; i++)
        free(blocks[i]);
    printf("%.3f\n", now_ms() - start);
    return 0;
}
