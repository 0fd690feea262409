/* The C side of the comparison: loops for given instructions, lengths and CPUs.
 *
 * Every function persists `len` bytes of `source` at each of `count` offsets of `base`. There is a function for each instruction and
 * length, so that the compiler knows both. Each has the target attributes that it needs, so that the file compiles for every x86-64 CPU and
 * uses the widest instructions that the caller has detected. Other architectures have none. */

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef void persist_fn(char *base, const uint64_t *offsets, size_t count, const char *source);

/* Maps the file as the seam does: shared, with all pages faulted in. NULL on failure. */
void *pm_bench_map(const char *path, size_t len) {
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return NULL;
    void *base = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    close(file);
    return base == MAP_FAILED ? NULL : base;
}

int pm_bench_unmap(void *base, size_t len) { return munmap(base, len); }

#ifdef __x86_64__

#include <immintrin.h>

/* The C library's memcpy for this CPU, which is the fastest copy of long data. gcc would expand a memcpy of 4 KB to `rep movsq`. */
static void *(*const volatile long_memcpy)(void *, const void *, size_t) = memcpy;

/* One line through the cache, for each width. gcc's own expansion of a memcpy prefers narrower moves than the CPU has. */
#define MOVE_16(to, from)                                                                                 \
    for (int part = 0; part < 4; part++)                                                                  \
    _mm_storeu_si128((__m128i *)(to) + part, _mm_loadu_si128((const __m128i *)(from) + part))
#define MOVE_32(to, from)                                                                                 \
    for (int part = 0; part < 2; part++)                                                                  \
    _mm256_storeu_si256((__m256i *)(to) + part, _mm256_loadu_si256((const __m256i *)(from) + part))
#define MOVE_64(to, from) _mm512_storeu_si512((__m512i *)(to), _mm512_loadu_si512(from))

#define COPY(to, from, len, move_line)                                                                    \
    do {                                                                                                  \
        if ((len) <= 256)                                                                                 \
            for (size_t copied = 0; copied < (len); copied += 64)                                         \
                move_line((to) + copied, (from) + copied);                                                \
        else                                                                                              \
            long_memcpy(to, from, len);                                                                   \
    } while (0)

#define CLFLUSH(line) _mm_clflush(line)
#define CLFLUSHOPT(line) _mm_clflushopt(line)
#define CLWB(line) _mm_clwb(line)

/* Copy, one write-back a line, one fence. */
#define STORE(name, features, flush_line, move_line, len)                                                 \
    __attribute__((target(features))) static void name##_##len(char *base, const uint64_t *offsets,       \
                                                               size_t count, const char *source) {        \
        for (size_t i = 0; i < count; i++) {                                                              \
            char *at = base + offsets[i];                                                                 \
            COPY(at, source, len, move_line);                                                             \
            for (size_t line = 0; line < (len); line += 64)                                               \
                flush_line(at + line);                                                                    \
            _mm_sfence();                                                                                 \
        }                                                                                                 \
    }

/* Stores one line around the cache, for each width. */
#define LINE_16(to, from)                                                                                 \
    for (int part = 0; part < 4; part++)                                                                  \
    _mm_stream_si128((__m128i *)(to) + part, _mm_loadu_si128((const __m128i *)(from) + part))
#define LINE_32(to, from)                                                                                 \
    for (int part = 0; part < 2; part++)                                                                  \
    _mm256_stream_si256((__m256i *)(to) + part, _mm256_loadu_si256((const __m256i *)(from) + part))
#define LINE_64(to, from) _mm512_stream_si512((__m512i *)(to), _mm512_loadu_si512(from))

#define STREAM(name, features, stream_line, len)                                                          \
    __attribute__((target(features))) static void name##_##len(char *base, const uint64_t *offsets,       \
                                                               size_t count, const char *source) {        \
        for (size_t i = 0; i < count; i++) {                                                              \
            char *at = base + offsets[i];                                                                 \
            for (size_t line = 0; line < (len); line += 64) {                                             \
                stream_line(at + line, source + line);                                                    \
            }                                                                                             \
            _mm_sfence();                                                                                 \
        }                                                                                                 \
    }

#define STORE_16(name, features, flush_line, len) STORE(name, features, flush_line, MOVE_16, len)
#define STORE_32(name, features, flush_line, len) STORE(name, features, flush_line, MOVE_32, len)
#define STORE_64(name, features, flush_line, len) STORE(name, features, flush_line, MOVE_64, len)

#define EACH_LENGTH(kind, name, features, what)                                                           \
    kind(name, features, what, 64) kind(name, features, what, 256) kind(name, features, what, 4096)       \
        kind(name, features, what, 262144)

EACH_LENGTH(STORE_16, clflush_b16, "sse2", CLFLUSH)
EACH_LENGTH(STORE_32, clflush_b32, "avx", CLFLUSH)
EACH_LENGTH(STORE_64, clflush_b64, "avx512f", CLFLUSH)
EACH_LENGTH(STORE_16, clflushopt_b16, "clflushopt", CLFLUSHOPT)
EACH_LENGTH(STORE_32, clflushopt_b32, "clflushopt,avx", CLFLUSHOPT)
EACH_LENGTH(STORE_64, clflushopt_b64, "clflushopt,avx512f", CLFLUSHOPT)
EACH_LENGTH(STORE_16, clwb_b16, "clwb", CLWB)
EACH_LENGTH(STORE_32, clwb_b32, "clwb,avx", CLWB)
EACH_LENGTH(STORE_64, clwb_b64, "clwb,avx512f", CLWB)
EACH_LENGTH(STREAM, nt_b16, "sse2", LINE_16)
EACH_LENGTH(STREAM, nt_b32, "avx", LINE_32)
EACH_LENGTH(STREAM, nt_b64, "avx512f", LINE_64)

#define LENGTHS(name) { name##_64, name##_256, name##_4096, name##_262144 }

static persist_fn *const stores[3][3][4] = {
    { LENGTHS(clflush_b16), LENGTHS(clflush_b32), LENGTHS(clflush_b64) },
    { LENGTHS(clflushopt_b16), LENGTHS(clflushopt_b32), LENGTHS(clflushopt_b64) },
    { LENGTHS(clwb_b16), LENGTHS(clwb_b32), LENGTHS(clwb_b64) },
};
static persist_fn *const streams[3][4] = { LENGTHS(nt_b16), LENGTHS(nt_b32), LENGTHS(nt_b64) };

static int length_index(size_t len) {
    switch (len) {
    case 64: return 0;
    case 256: return 1;
    case 4096: return 2;
    case 262144: return 3;
    default: return -1;
    }
}

/* flush: 0 clflush, 1 clflushopt, 2 clwb. width: 0 for 16 bytes, 1 for 32, 2 for 64. NULL for any other. */
persist_fn *pm_bench_store(unsigned flush, unsigned width, size_t len) {
    int index = length_index(len);
    return flush < 3 && width < 3 && index >= 0 ? stores[flush][width][index] : NULL;
}

persist_fn *pm_bench_stream(unsigned width, size_t len) {
    int index = length_index(len);
    return width < 3 && index >= 0 ? streams[width][index] : NULL;
}

#else

persist_fn *pm_bench_store(unsigned flush, unsigned width, size_t len) {
    return (void)flush, (void)width, (void)len, NULL;
}

persist_fn *pm_bench_stream(unsigned width, size_t len) { return (void)width, (void)len, NULL; }

#endif
