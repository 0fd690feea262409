/* PMDK's allocator and transactions, with durable operations.
 *
 *     pmdk alloc POOL PLAN     replays a plan (see alloc_workload.c): each block is published in, and freed from, an array of
 *                              PMEMoid in the root object
 *     pmdk tx POOL COUNT       transactions, each of which logs one range of 16 bytes and overwrites it
 *
 * POOL is created. Prints the nanoseconds of processor time. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <libpmemobj.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { POOL_BYTES = 256 << 20, TX_LINES = 1 << 16, LINE = 64 };

struct op {
    uint32_t slot;
    uint32_t size;
};

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, pmemobj_errormsg());
    exit(1);
}

static uint64_t processor_time_ns(void) {
    struct timespec time;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0)
        die("clock_gettime");
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void *root_of(PMEMobjpool *pool, size_t bytes) {
    PMEMoid root = pmemobj_root(pool, bytes);
    if (OID_IS_NULL(root))
        die("root");
    return pmemobj_direct(root);
}

static uint64_t run_alloc(PMEMobjpool *pool, const char *path) {
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &status) != 0)
        die(path);
    const struct op *ops = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
    if (ops == MAP_FAILED)
        die(path);
    size_t count = (size_t)status.st_size / sizeof(*ops);
    uint32_t last = 0;
    for (size_t i = 0; i < count; i++)
        last = ops[i].slot > last ? ops[i].slot : last;
    PMEMoid *slots = root_of(pool, ((size_t)last + 1) * sizeof(PMEMoid));
    uint64_t begin = processor_time_ns();
    for (size_t i = 0; i < count; i++) {
        PMEMoid *slot = &slots[ops[i].slot];
        if (ops[i].size == 0)
            pmemobj_free(slot);
        else if (pmemobj_alloc(pool, slot, ops[i].size, 0, NULL, NULL) != 0)
            die("alloc");
    }
    return processor_time_ns() - begin;
}

static uint64_t run_tx(PMEMobjpool *pool, const char *count_text) {
    uint64_t count = strtoull(count_text, NULL, 10);
    char *lines = root_of(pool, (size_t)TX_LINES * LINE);
    volatile int failed = 0;
    uint64_t begin = processor_time_ns();
    for (uint64_t i = 0; i < count; i++) {
        /* Some line: multiplied by an odd number and cut, all of them in turn. */
        uint64_t *range = (uint64_t *)(lines + i * 40503 % TX_LINES * LINE);
        TX_BEGIN(pool) {
            pmemobj_tx_add_range_direct(range, 2 * sizeof(*range));
            range[0] = i;
            range[1] = ~i;
        }
        TX_ONABORT { failed = 1; }
        TX_END
    }
    uint64_t end = processor_time_ns();
    if (failed)
        die("transaction");
    return end - begin;
}

int main(int argc, char **argv) {
    if (argc != 4 || (strcmp(argv[1], "alloc") != 0 && strcmp(argv[1], "tx") != 0)) {
        fprintf(stderr, "usage: %s alloc POOL PLAN | tx POOL COUNT\n", argv[0]);
        return 2;
    }
    PMEMobjpool *pool = pmemobj_create(argv[2], "pm-bench", POOL_BYTES, 0600);
    if (pool == NULL)
        die(argv[2]);
    uint64_t ns = strcmp(argv[1], "alloc") == 0 ? run_alloc(pool, argv[3]) : run_tx(pool, argv[3]);
    printf("ns %" PRIu64 "\n", ns);
    pmemobj_close(pool);
    return 0;
}
