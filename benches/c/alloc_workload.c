/* Replays a plan of allocations and deallocations with the process's malloc: the C library's, or a preloaded one.
 *
 *     alloc_workload time FILE     prints the time; the first byte of every block is written, because the cost of an untouched
 *                                  block may be deferred
 *     alloc_workload heap FILE     prints the state of the heap after each hundredth of the plan
 *     alloc_workload trace FILE    for a tool that traces stores: every block is written once, completely
 *
 * A plan is pairs of little-endian 32-bit words: a slot, and the bytes to allocate, or 0 to free the slot's block. The plan never
 * allocates into a full slot or frees an empty one. The plan and the table of slots are in separate mappings, so that malloc serves
 * only the plan's blocks. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Stores to the first two words of this page mark the begin and the end of the measured phase for a tracer. The address is far from the
 * loader, the stack and the heap, natively and under Valgrind. */
#define MARKER ((volatile uint64_t *)0x30000000)

enum { PAGE = 4096, SAMPLES = 100, STACK_BELOW = 1 << 20, STACK_ABOVE = 1 << 20 };

struct op {
    uint32_t slot;
    uint32_t size;
};

struct plan {
    const struct op *ops;
    size_t count;
    size_t bytes;
};

struct slots {
    void **blocks;
    uint32_t *sizes;
    size_t bytes;
};

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void *map(size_t bytes) {
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (base == MAP_FAILED)
        die("mmap");
    return base;
}

static struct plan open_plan(const char *path) {
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &status) != 0)
        die(path);
    size_t bytes = (size_t)status.st_size;
    void *base = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
    if (base == MAP_FAILED)
        die(path);
    close(file);
    return (struct plan){ base, bytes / sizeof(struct op), bytes };
}

static struct slots make_slots(struct plan plan) {
    uint32_t last = 0;
    for (size_t i = 0; i < plan.count; i++)
        last = plan.ops[i].slot > last ? plan.ops[i].slot : last;
    size_t count = (size_t)last + 1;
    size_t bytes = count * (sizeof(void *) + sizeof(uint32_t));
    char *base = map(bytes);
    return (struct slots){ (void **)base, (uint32_t *)(base + count * sizeof(void *)), bytes };
}

/* Writes every byte once, in ascending order, by stores of 16 bytes and then of one. The instructions of memset depend on the CPU; four stores a
 * turn keep the trace short. */
static void write_block(char *block, size_t size) {
    typedef uint64_t wide __attribute__((vector_size(16), aligned(1), may_alias));
    const wide value = { size, ~(uint64_t)size };
    size_t at = 0;
    for (; at + 4 * sizeof(wide) <= size; at += 4 * sizeof(wide)) {
        volatile wide *to = (volatile wide *)(block + at);
        to[0] = value, to[1] = value, to[2] = value, to[3] = value;
    }
    for (; at + sizeof(wide) <= size; at += sizeof(wide))
        *(volatile wide *)(block + at) = value;
    for (; at < size; at++)
        *(volatile char *)(block + at) = (char)size;
}

enum write { NOTHING, FIRST_BYTE, ALL };

static inline void replay_one(struct op op, struct slots slots, enum write write) {
    if (op.size == 0) {
        free(slots.blocks[op.slot]);
        return;
    }
    char *block = malloc(op.size);
    if (block == NULL)
        die("malloc");
    if (write == ALL)
        write_block(block, op.size);
    if (write == FIRST_BYTE)
        *(volatile char *)block = 1;
    slots.blocks[op.slot] = block;
}

static uint64_t processor_time_ns(void) {
    struct timespec time;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0)
        die("clock_gettime");
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void run_time(struct plan plan, struct slots slots) {
    uint64_t begin = processor_time_ns();
    for (size_t i = 0; i < plan.count; i++)
        replay_one(plan.ops[i], slots, FIRST_BYTE);
    printf("ns %" PRIu64 "\n", processor_time_ns() - begin);
}

/* The bytes that the allocator has from the system, up to the end of its last block, and the free bytes of these: from jemalloc's statistics if it is
 * loaded, otherwise from glibc's. */
struct heap {
    size_t bytes;
    size_t free_bytes;
};

typedef int mallctl_fn(const char *, void *, size_t *, void *, size_t);

static size_t jemalloc_figure(mallctl_fn *mallctl, const char *name) {
    size_t value, len = sizeof(value);
    if (mallctl(name, &value, &len, NULL, 0) != 0)
        die(name);
    return value;
}

static struct heap heap_now(mallctl_fn *mallctl) {
    if (mallctl != NULL) {
        uint64_t epoch = 1;
        if (mallctl("epoch", NULL, NULL, &epoch, sizeof(epoch)) != 0)
            die("epoch");
        size_t active = jemalloc_figure(mallctl, "stats.active");
        return (struct heap){ active, active - jemalloc_figure(mallctl, "stats.allocated") };
    }
    struct mallinfo2 info = mallinfo2();
    return (struct heap){ info.arena - info.keepcost + info.hblkhd, info.fordblks - info.keepcost };
}

static void run_heap(struct plan plan, struct slots slots) {
    mallctl_fn *mallctl;
    *(void **)&mallctl = dlsym(RTLD_DEFAULT, "mallctl");
    size_t live_bytes = 0;
    size_t interval = plan.count < SAMPLES ? 1 : plan.count / SAMPLES;
    for (size_t i = 0; i < plan.count; i++) {
        struct op op = plan.ops[i];
        replay_one(op, slots, NOTHING);
        live_bytes += op.size;
        live_bytes -= op.size == 0 ? slots.sizes[op.slot] : 0;
        slots.sizes[op.slot] = op.size;
        if ((i + 1) % interval == 0 || i + 1 == plan.count) {
            struct heap heap = heap_now(mallctl);
            printf("heap %zu %zu %zu\n", live_bytes, heap.bytes, heap.free_bytes);
        }
    }
}

static void print_range(const char *kind, uintptr_t start, size_t bytes) {
    printf("%s %" PRIxPTR " %" PRIxPTR "\n", kind, start, start + bytes);
}

/* Variables of the program and its libraries, thread-local ones included. */
static int print_static(struct dl_phdr_info *info, size_t size, void *nothing) {
    (void)size, (void)nothing;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type == PT_LOAD && (header->p_flags & PF_W) != 0)
            print_range("static", info->dlpi_addr + header->p_vaddr, header->p_memsz);
        if (header->p_type == PT_TLS && info->dlpi_tls_data != NULL)
            print_range("static", (uintptr_t)info->dlpi_tls_data, header->p_memsz);
    }
    return 0;
}

/* Names the memory that is not the heap, and replays between the markers. */
static void run_trace(struct plan plan, struct slots slots) {
    char here;
    volatile uint64_t *marker = mmap((void *)MARKER, PAGE, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (marker != MARKER)
        die("marker");
    print_range("own", (uintptr_t)&here - STACK_BELOW, STACK_BELOW + STACK_ABOVE);
    print_range("own", (uintptr_t)plan.ops, plan.bytes);
    print_range("own", (uintptr_t)slots.blocks, slots.bytes);
    dl_iterate_phdr(print_static, NULL);
    fflush(stdout);
    marker[0] = 1;
    for (size_t i = 0; i < plan.count; i++)
        replay_one(plan.ops[i], slots, ALL);
    marker[1] = 1;
}

int main(int argc, char **argv) {
    static char buffer[1 << 16];
    static const struct {
        const char *name;
        void (*run)(struct plan, struct slots);
    } modes[] = { { "time", run_time }, { "heap", run_heap }, { "trace", run_trace } };
    setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
    for (size_t i = 0; argc == 3 && i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            struct plan plan = open_plan(argv[2]);
            modes[i].run(plan, make_slots(plan));
            return fflush(stdout) == 0 ? 0 : 1;
        }
    }
    fprintf(stderr, "usage: %s time|heap|trace FILE\n", argv[0]);
    return 2;
}
