/* A preloaded library that counts a program's calls of malloc and related functions, and forwards them to glibc's.
 *
 * The counts are in the file named by PM_BENCH_MALLOC_COUNT, four 64-bit words that other processes can read at any time: allocations,
 * deallocations, allocated bytes, and allocations of less than 64 KiB. */

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

enum { ALLOCATIONS, DEALLOCATIONS, BYTES, SMALL, WORDS };
enum { SMALL_BELOW = 64 << 10 };

/* NULL until the file is mapped: earlier allocations are the loader's. */
static uint64_t *counts;

__attribute__((constructor)) static void map_counts(void) {
    const char *path = getenv("PM_BENCH_MALLOC_COUNT");
    int file = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        abort();
    void *base = mmap(NULL, WORDS * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (base == MAP_FAILED)
        abort();
    counts = base;
}

static void add(int which, uint64_t amount) {
    if (counts != NULL)
        __atomic_fetch_add(&counts[which], amount, __ATOMIC_RELAXED);
}

static void *allocated(void *block, size_t size) {
    if (block != NULL) {
        add(ALLOCATIONS, 1);
        add(BYTES, size);
        add(SMALL, size < SMALL_BELOW);
    }
    return block;
}

void *malloc(size_t size) { return allocated(__libc_malloc(size), size); }

void *calloc(size_t count, size_t size) { return allocated(__libc_calloc(count, size), count * size); }

/* Growth counts as an allocation and a deallocation. */
void *realloc(void *old, size_t size) {
    void *block = __libc_realloc(old, size);
    if (old != NULL && (block != NULL || size == 0))
        add(DEALLOCATIONS, 1);
    return allocated(block, size);
}

void *memalign(size_t alignment, size_t size) { return allocated(__libc_memalign(alignment, size), size); }

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **out, size_t alignment, size_t size) {
    if (alignment < sizeof(void *) || (alignment & (alignment - 1)) != 0)
        return EINVAL;
    void *block = memalign(alignment, size);
    if (block == NULL)
        return ENOMEM;
    *out = block;
    return 0;
}

void free(void *block) {
    add(DEALLOCATIONS, block != NULL);
    __libc_free(block);
}
