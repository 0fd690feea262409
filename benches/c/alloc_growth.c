/* Grows blocks by realloc, with the process's malloc: the C library's, or a preloaded one.
 *
 *     alloc_growth append     one block, by 256 bytes a step, to 4 MB
 *     alloc_growth in-turn    eight blocks in turn, by 256 bytes a step, to 4 MB in all, so that none has free space behind it
 *     alloc_growth double     one block, doubled at each step, to 32 MB, and filled
 *     alloc_growth untouched  the same, but only the last byte of each step is written, as in the first two
 *
 * Prints the nanoseconds of processor time, which include page faults, as the process runs one pattern. */

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_BLOCKS = 8, STEP_BYTES = 256, APPENDED_BYTES = 4000000, DOUBLED_BYTES = 32000000 };

enum pattern { APPENDED, DOUBLED, FILLED };

static uint64_t processor_time_ns(void) {
    struct timespec time;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0)
        abort();
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void grow(size_t block_count, size_t end, enum pattern pattern) {
    char *blocks[MAX_BLOCKS] = { NULL };
    size_t written = 0;
    for (size_t bytes = 1; bytes < end; bytes += pattern == APPENDED ? STEP_BYTES : bytes) {
        for (size_t i = 0; i < block_count; i++) {
            blocks[i] = realloc(blocks[i], bytes);
            if (blocks[i] == NULL)
                abort();
            if (pattern == FILLED)
                memset(&blocks[i][written], 1, bytes - written);
            *(volatile char *)&blocks[i][bytes - 1] = 1;
        }
        written = bytes;
    }
    for (size_t i = 0; i < block_count; i++)
        free(blocks[i]);
}

int main(int argc, char **argv) {
    const char *pattern = argc == 2 ? argv[1] : "";
    uint64_t begin = processor_time_ns();
    if (strcmp(pattern, "append") == 0) {
        grow(1, APPENDED_BYTES, APPENDED);
    } else if (strcmp(pattern, "in-turn") == 0) {
        grow(MAX_BLOCKS, APPENDED_BYTES / MAX_BLOCKS, APPENDED);
    } else if (strcmp(pattern, "double") == 0) {
        grow(1, DOUBLED_BYTES, FILLED);
    } else if (strcmp(pattern, "untouched") == 0) {
        grow(1, DOUBLED_BYTES, DOUBLED);
    } else {
        fprintf(stderr, "usage: %s append|in-turn|double|untouched\n", argv[0]);
        return 2;
    }
    printf("ns %" PRIu64 "\n", processor_time_ns() - begin);
    return 0;
}
