/* Uses and misuses of malloc (compile with -Wno-use-after-free). The first argument selects one; the test checks its output. */

#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) check((condition), #condition, __LINE__)

static void check(int holds, const char *condition, int line) {
    if (!holds) {
        fprintf(stderr, "line %d: not so: %s\n", line, condition);
        _exit(1);
    }
}

/* The compiler knows malloc, and would remove calls without effect. */
static void *volatile kept;
static size_t volatile huge = SIZE_MAX;

static void fill(unsigned char *block, size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++)
        block[i] = (unsigned char)(seed + i);
}

static int is_filled(const unsigned char *block, size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++)
        if (block[i] != (unsigned char)(seed + i))
            return 0;
    return 1;
}

static void functions(void) {
    unsigned char *one = malloc(0), *two = malloc(0);
    CHECK(one != NULL && two != NULL && one != two);
    CHECK((uintptr_t)one % 16 == 0 && malloc_usable_size(one) > 0 && malloc_usable_size(NULL) == 0);
    free(one), free(two), free(NULL);

    for (size_t size = 1; size < 3 << 20; size = size * 3 / 2 + 1) {
        unsigned char *block = malloc(size);
        CHECK(block != NULL && (uintptr_t)block % 16 == 0 && malloc_usable_size(block) >= size);
        fill(block, malloc_usable_size(block), 7);
        free(block);
        block = calloc(size, 1);
        CHECK(block != NULL);
        for (size_t i = 0; i < size; i++)
            CHECK(block[i] == 0);
        free(block);
    }
    for (size_t align = 8; align <= 1 << 20; align *= 2) {
        void *block = (void *)1;
        CHECK(posix_memalign(&block, align, 100) == 0 && (uintptr_t)block % align == 0);
        free(block);
        block = aligned_alloc(align, 5000);
        CHECK(block != NULL && (uintptr_t)block % align == 0);
        free(block);
        block = memalign(align, 1);
        CHECK(block != NULL && (uintptr_t)block % align == 0);
        free(block);
    }
    /* Longer than a chunk, and aligned: not in the heap. */
    kept = aligned_alloc(4096, 40 << 20);
    CHECK(kept != NULL && (uintptr_t)kept % 4096 == 0);
    memset(kept, 1, 40 << 20);
    free(kept);

    void *out = &out;
    CHECK(posix_memalign(&out, 24, 1) == EINVAL && posix_memalign(&out, 2, 1) == EINVAL && out == &out);
    errno = 0;
    CHECK(posix_memalign(&out, 64, huge / 2) == ENOMEM && errno == 0);
    CHECK(malloc(huge) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(malloc(huge / 2) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(calloc(huge / 4, 8) == NULL && errno == ENOMEM);
    errno = 0;
    kept = malloc(10);
    CHECK(reallocarray(kept, huge / 4, 8) == NULL && errno == ENOMEM);
    errno = EBADF;
    free(kept);
    CHECK(errno == EBADF);
}

static void realloc_patterns(void) {
    unsigned char *block = NULL;
    size_t size = 0;
    for (size_t next = 1; next < 6 << 20; next = next * 2 + 3) {
        block = realloc(block, next);
        CHECK(block != NULL && is_filled(block, size, 3));
        fill(block, next, 3);
        size = next;
    }
    unsigned char *same = block;
    block = realloc(block, size - 1);
    CHECK(block == same);
    while (size > 1) {
        size /= 3;
        block = realloc(block, size + 1);
        CHECK(block != NULL && is_filled(block, size + 1, 3));
    }
    block = reallocarray(block, 10, 10);
    CHECK(block != NULL && realloc(block, 0) == NULL);
    /* A block has room for the rest of its last line. */
    block = malloc(10);
    size_t room = malloc_usable_size(block);
    same = block;
    block = realloc(block, room);
    CHECK(room >= 56 && block == same);
    free(block);
}

struct worker {
    pthread_t thread;
    unsigned number;
};

enum { WORKERS = 4, BLOCKS = 200, TURNS = 20000 };

static unsigned char *shared[BLOCKS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Uses its own blocks, and blocks that other threads allocated. */
static void *work(void *argument) {
    struct worker *self = argument;
    unsigned random = self->number + 1;
    unsigned char *own[BLOCKS] = { 0 };
    size_t sizes[BLOCKS] = { 0 };
    for (int turn = 0; turn < TURNS; turn++) {
        random = random * 1664525 + 1013904223;
        unsigned at = (random >> 8) % BLOCKS;
        if (own[at] != NULL) {
            check(is_filled(own[at], sizes[at], self->number), "a thread's own block", __LINE__);
            free(own[at]);
        }
        sizes[at] = (random >> 16) % 2000;
        own[at] = malloc(sizes[at]);
        check(own[at] != NULL, "malloc", __LINE__);
        fill(own[at], sizes[at], self->number);
        unsigned char *mine = malloc(64);
        pthread_mutex_lock(&lock);
        unsigned char *theirs = shared[at];
        shared[at] = mine;
        pthread_mutex_unlock(&lock);
        free(theirs);
    }
    for (int at = 0; at < BLOCKS; at++)
        free(own[at]);
    return NULL;
}

static void threads(void) {
    struct worker workers[WORKERS];
    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i].number = i;
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < WORKERS; i++)
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
    for (int at = 0; at < BLOCKS; at++)
        free(shared[at]);
}

static void *churn(void *nothing) {
    for (;;) {
        pthread_testcancel();
        free(malloc(500));
    }
    return nothing;
}

/* Neither process sees the stores of the other after the fork, whatever locks other threads hold at the fork. */
static void forks(void) {
    pthread_t churning;
    CHECK(pthread_create(&churning, NULL, churn, NULL) == 0);
    for (int turn = 0; turn < 30; turn++) {
        unsigned char *block = malloc(5000), *long_block = malloc(2 << 20);
        fill(block, 5000, 1), fill(long_block, 2 << 20, 2);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            usleep(2000);
            CHECK(is_filled(block, 5000, 1) && is_filled(long_block, 2 << 20, 2));
            fill(block, 5000, 9);
            unsigned char *grown = realloc(block, 100000);
            CHECK(grown != NULL && is_filled(grown, 5000, 9) && malloc_usable_size(long_block) >= 2 << 20);
            free(grown), free(malloc(100));
            pid_t grandchild = fork();
            if (grandchild == 0)
                _exit(is_filled(long_block, 2 << 20, 2) ? 0 : 1);
            int status = 1;
            CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0);
            free(long_block);
            _exit(0);
        }
        fill(long_block, 2 << 20, 5);
        int status = 1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(is_filled(block, 5000, 1) && is_filled(long_block, 2 << 20, 5));
        free(block), free(long_block);
    }
    pthread_cancel(churning);
    pthread_join(churning, NULL);
}

/* Double frees, invalid addresses and overwritten headers are reported and ignored. */
static void misuse(void) {
    char *block = malloc(100), *next = malloc(100), *inside = malloc(1000);
    free(block);
    kept = block;
    free(kept);
    kept = inside + 64;
    free(kept);
    kept = inside + 3;
    free(kept);
    memset((char *)kept - 3 - 8, 0xff, 8);
    free(inside);
    CHECK(realloc(inside, 5000) == NULL && errno == ENOMEM && malloc_usable_size(inside) == 0);
    for (int i = 0; i < 1000; i++) {
        kept = malloc(1000);
        CHECK(kept != inside);
    }
    free(next);
}

/* Leaves a block for each line that it prints. */
static void leave(void) {
    for (int i = 0; i < 10; i++) {
        char *block = malloc(100);
        snprintf(block, 100, "block %d of those that are left", i);
        kept = block;
    }
    _exit(0);
}

/* Keeps blocks until the end of its input, and finds them unchanged. */
static void hold(void) {
    static unsigned char *blocks[100];
    for (unsigned i = 0; i < 100; i++) {
        CHECK((blocks[i] = malloc(5000 + i)) != NULL);
        fill(blocks[i], 5000 + i, i);
    }
    /* It allocates nothing while it waits, also not for its input. */
    setvbuf(stdin, NULL, _IONBF, 0);
    printf("ready\n");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    for (unsigned i = 0; i < 100; i++) {
        CHECK(is_filled(blocks[i], 5000 + i, i));
        free(blocks[i]);
        CHECK((blocks[i] = malloc(100)) != NULL);
    }
}

/* Until it is killed. */
static void forever(void) {
    static unsigned char *blocks[1000];
    unsigned random = 1;
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        random = random * 1664525 + 1013904223;
        unsigned at = (random >> 8) % 1000;
        free(blocks[at]);
        size_t size = (random >> 12) % 100 == 0 ? 3 << 20 : (random >> 16) % 5000;
        blocks[at] = malloc(size);
        if (blocks[at] != NULL)
            memset(blocks[at], 0xa5, size);
    }
}

/* All there is, and some of it again. */
static void full(void) {
    void *first = malloc(10000), *last = NULL;
    CHECK(first != NULL);
    for (void *block = first; block != NULL; block = malloc(10000))
        last = memset(block, 0x5a, 10000);
    CHECK(errno == ENOMEM);
    errno = 0;
    CHECK(realloc(last, 300000) == NULL && errno == ENOMEM);
    CHECK(calloc(100, 10000) == NULL);
    // A child has all blocks, wherever there is room for its copy.
    pid_t process = fork();
    CHECK(process >= 0);
    if (process == 0) {
        memset(last, 0xa5, 10000);
        CHECK(((unsigned char *)first)[9999] == 0x5a);
        free(last);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(process, &status, 0) == process && status == 0);
    CHECK(((unsigned char *)last)[9999] == 0x5a);
    free(last);
    last = malloc(10000);
    CHECK(last != NULL || errno == ENOMEM);
    if (last != NULL)
        memset(last, 0xa5, 10000);
}

/* What is free is used up, with blocks of all lengths, also such as grow, and freed again. */
static void more(void) {
    static void *blocks[100000];
    size_t count = 0, total = 0;
    for (size_t bytes = 1 << 20; bytes >= 8; bytes /= 2) {
        for (void *block; count < 100000 && (block = malloc(bytes)) != NULL; count++) {
            blocks[count] = memset(block, 0x5a, bytes);
            /* Else there is no heap, or it is not full. */
            CHECK((total += bytes) < 32 << 20);
        }
        CHECK(count == 100000 || errno == ENOMEM);
        for (size_t i = 0; i < count && i < 1000; i++) {
            size_t room = malloc_usable_size(blocks[i]);
            void *longer = realloc(blocks[i], room + 5000);
            if (longer != NULL)
                blocks[i] = memset(longer, 0xa5, room + 5000);
        }
    }
    CHECK(count > 0);
    for (size_t i = 0; i < count; i++)
        free(blocks[i]);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } runs[] = { { "functions", functions }, { "realloc", realloc_patterns }, { "threads", threads },
                 { "forks", forks }, { "misuse", misuse }, { "leave", leave }, { "forever", forever },
                 { "full", full }, { "more", more }, { "hold", hold } };
    for (size_t i = 0; argc == 2 && i < sizeof(runs) / sizeof(runs[0]); i++) {
        if (strcmp(argv[1], runs[i].name) == 0) {
            runs[i].run();
            return 0;
        }
    }
    return 2;
}
