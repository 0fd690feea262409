/* Linked with jemalloc: uses its functions and those of C for the same blocks, in a child too. */

#define _GNU_SOURCE
#include <jemalloc/jemalloc.h>
#include <malloc.h>
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

static int is_zero(const char *block, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        if (block[i] != 0)
            return 0;
    return 1;
}

static void blocks(void) {
    char *early = getenv("PATH") ? strdup(getenv("PATH")) : NULL;
    CHECK(malloc_usable_size(early) > strlen(early));
    free(early);
    for (size_t size = 1; size < 100000; size = size * 2 + 1) {
        char *block = malloc(size);
        CHECK(malloc_usable_size(block) >= size && malloc_usable_size(block) >= nallocx(size, 0));
        memset(block, 1, malloc_usable_size(block));
        CHECK(sallocx(block, 0) == malloc_usable_size(block));
        dallocx(block, 0);

        block = mallocx(size, MALLOCX_ALIGN(4096) | MALLOCX_ZERO);
        CHECK((uintptr_t)block % 4096 == 0 && is_zero(block, 0, size));
        memset(block, 2, size);
        size_t room = sallocx(block, 0);
        block = rallocx(block, 3 * size, MALLOCX_ZERO);
        CHECK(block != NULL && block[size - 1] == 2 && (3 * size <= room || is_zero(block, room, 3 * size)));
        CHECK(xallocx(block, size, 0, 0) >= size && xallocx(block, 2 * size, size, MALLOCX_ZERO) >= size);
        block = realloc(block, 5 * size);
        CHECK(block != NULL && block[size - 1] == 2);
        sdallocx(block, 5 * size, 0);

        block = rallocx(malloc(size), size, MALLOCX_ALIGN(256));
        CHECK((uintptr_t)block % 256 == 0);
        free(block);
        free(mallocx(size, 0));
        free(aligned_alloc(64, 64 * size)), free(memalign(64, size)), free(valloc(size));
    }
}

int main(void) {
    blocks();
    for (int i = 0; i < 3; i++) {
        char *block = mallocx(1000, 0);
        strcpy(block, "the parent's");
        pid_t child = fork();
        if (child == 0) {
            CHECK(strcmp(block, "the parent's") == 0 && malloc_usable_size(block) >= 1000);
            free(block);
            blocks();
            _exit(0);
        }
        int status = 1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        dallocx(block, 0);
    }
    puts("linked");
    return 0;
}
