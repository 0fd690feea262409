/* The bound of an operation: the lines that it stores, flushes and streams, and its fences, without anything else.
 *
 *     line_replay FILE STEPS FLUSH WIDTH
 *
 * maps FILE, and runs the steps in STEPS, each a little-endian word: the offset of a line, and in the low bits 0 to store a word
 * there, 1 to flush it, 2 to stream all of it around the cache, 3 to fence. FLUSH is 0 for clflush, 1 for clflushopt, 2 for clwb;
 * WIDTH is 0 for streams of 16 bytes, 1 for 32, 2 for 64. Prints the nanoseconds of processor time that the steps took. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

static void die(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t processor_time_ns(void) {
    struct timespec time;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0)
        die("clock_gettime");
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void *map(const char *path, int protection, int sharing, size_t *bytes) {
    struct stat status;
    int file = open(path, protection & PROT_WRITE ? O_RDWR | O_CLOEXEC : O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &status) != 0)
        die(path);
    *bytes = (size_t)status.st_size;
    void *base = mmap(NULL, *bytes, protection, sharing | MAP_POPULATE, file, 0);
    if (base == MAP_FAILED)
        die(path);
    return base;
}

typedef void run_fn(char *base, const uint64_t *steps, size_t count);

#ifdef __x86_64__

#include <immintrin.h>

enum { STORE, FLUSH, STREAM, FENCE, KIND = 63 };

#define STREAM_16(to, value)                                                                              \
    for (int part = 0; part < 4; part++)                                                                  \
    _mm_stream_si128((__m128i *)(to) + part, _mm_set1_epi64x((long long)(value)))
#define STREAM_32(to, value)                                                                              \
    for (int part = 0; part < 2; part++)                                                                  \
    _mm256_stream_si256((__m256i *)(to) + part, _mm256_set1_epi64x((long long)(value)))
#define STREAM_64(to, value) _mm512_stream_si512((void *)(to), _mm512_set1_epi64((long long)(value)))

#define RUN(name, features, flush_line, stream_line)                                                      \
    __attribute__((target(features))) static void name(char *base, const uint64_t *steps, size_t count) { \
        for (size_t i = 0; i < count; i++) {                                                              \
            char *line = base + (steps[i] & ~(uint64_t)KIND);                                             \
            switch (steps[i] & KIND) {                                                                    \
            case STORE: *(volatile uint64_t *)line = i; break;                                            \
            case FLUSH: flush_line(line); break;                                                          \
            case STREAM: stream_line(line, i); break;                                                     \
            default: _mm_sfence();                                                                        \
            }                                                                                             \
        }                                                                                                 \
    }

RUN(clflush_16, "sse2", _mm_clflush, STREAM_16)
RUN(clflush_32, "avx", _mm_clflush, STREAM_32)
RUN(clflush_64, "avx512f", _mm_clflush, STREAM_64)
RUN(clflushopt_16, "clflushopt", _mm_clflushopt, STREAM_16)
RUN(clflushopt_32, "clflushopt,avx", _mm_clflushopt, STREAM_32)
RUN(clflushopt_64, "clflushopt,avx512f", _mm_clflushopt, STREAM_64)
RUN(clwb_16, "clwb", _mm_clwb, STREAM_16)
RUN(clwb_32, "clwb,avx", _mm_clwb, STREAM_32)
RUN(clwb_64, "clwb,avx512f", _mm_clwb, STREAM_64)

static run_fn *const runs[3][3] = { { clflush_16, clflush_32, clflush_64 },
                                    { clflushopt_16, clflushopt_32, clflushopt_64 },
                                    { clwb_16, clwb_32, clwb_64 } };

static run_fn *chosen(int flush, int width) {
    return flush >= 0 && flush < 3 && width >= 0 && width < 3 ? runs[flush][width] : NULL;
}

#else

static run_fn *chosen(int flush, int width) { return (void)flush, (void)width, NULL; }

#endif

int main(int argc, char **argv) {
    run_fn *run = argc == 5 ? chosen(atoi(argv[3]), atoi(argv[4])) : NULL;
    if (run == NULL) {
        fprintf(stderr, "usage: %s FILE STEPS FLUSH WIDTH, on x86-64\n", argv[0]);
        return 2;
    }
    size_t bytes, step_bytes;
    char *base = map(argv[1], PROT_READ | PROT_WRITE, MAP_SHARED, &bytes);
    const uint64_t *steps = map(argv[2], PROT_READ, MAP_PRIVATE, &step_bytes);
    size_t count = step_bytes / sizeof(*steps);
    for (size_t i = 0; i < count; i++)
        if ((steps[i] | 63) >= bytes) {
            fprintf(stderr, "step %zu leaves the file\n", i);
            return 2;
        }
    uint64_t begin = processor_time_ns();
    run(base, steps, count);
    printf("ns %" PRIu64 "\n", processor_time_ns() - begin);
    return 0;
}
