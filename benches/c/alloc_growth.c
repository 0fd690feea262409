/* Lets blocks grow by realloc on whatever malloc it is run with: the C library's, or one that is preloaded.
 *
 *     alloc_growth append     one block, by 256 bytes a step, to 4 MB
 *     alloc_growth in-turn    eight blocks, by 256 bytes a step, each in its turn, so that none has free space behind it, to 4 MB in all
 *     alloc_growth double     one block, to twice its length a step, to 32 MB
 *
 * Prints the nanoseconds of processor time. Once a process: what pages cost when they are touched first is in it. Of each step the
 * last byte is written. */

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_BLOCKS = 8, STEP_BYTES = 256, APPENDED_BYTES = 4000000, DOUBLED_BYTES = 32000000 };

static uint64_t processor_time_ns(void) {
    struct timespec time;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0)
        abort();
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void grow(size_t block_count, size_t end, int is_doubled) {
    char *blocks[MAX_BLOCKS] = { NULL };
    for (size_t bytes = 1; bytes < end; bytes += is_doubled ? bytes : STEP_BYTES) {
        for (size_t i = 0; i < block_count; i++) {
            blocks[i] = realloc(blocks[i], bytes);
            if (blocks[i] == NULL)
                abort();
            *(volatile char *)&blocks[i][bytes - 1] = 1;
        }
    }
    for (size_t i = 0; i < block_count; i++)
        free(blocks[i]);
}

int main(int argc, char **argv) {
    const char *pattern = argc == 2 ? argv[1] : "";
    uint64_t begin = processor_time_ns();
    if (strcmp(pattern, "append") == 0) {
        grow(1, APPENDED_BYTES, 0);
    } else if (strcmp(pattern, "in-turn") == 0) {
        grow(MAX_BLOCKS, APPENDED_BYTES / MAX_BLOCKS, 0);
    } else if (strcmp(pattern, "double") == 0) {
        grow(1, DOUBLED_BYTES, 1);
    } else {
        fprintf(stderr, "usage: %s append|in-turn|double\n", argv[0]);
        return 2;
    }
    printf("ns %" PRIu64 "\n", processor_time_ns() - begin);
    return 0;
}
