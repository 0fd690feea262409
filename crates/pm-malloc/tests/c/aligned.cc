// Alignments of C and of C++, by address; and operators of the program's own.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <memory>
#include <new>
#include <vector>

static void check(bool holds, const char *condition, int line) {
    if (!holds) {
        std::fprintf(stderr, "line %d: not so: %s\n", line, condition);
        std::_Exit(1);
    }
}

#define CHECK(condition) check((condition), #condition, __LINE__)

[[maybe_unused]] static bool is_aligned(const void *block, std::size_t align) {
    return block != nullptr && reinterpret_cast<std::uintptr_t>(block) % align == 0;
}

template <std::size_t Align> struct alignas(Align) Aligned {
    char bytes[Align];
};

template <std::size_t Align> [[maybe_unused]] static void types() {
    std::vector<std::unique_ptr<Aligned<Align>>> kept;
    for (int i = 0; i < 5; i++) {
        kept.push_back(std::make_unique<Aligned<Align>>());
        CHECK(is_aligned(kept.back().get(), Align));
        std::memset(kept.back()->bytes, i, Align);
    }
    std::unique_ptr<Aligned<Align>[]> several(new Aligned<Align>[2]);
    CHECK(is_aligned(several.get(), Align));
}

[[maybe_unused]] static void functions(std::size_t align, std::size_t size) {
    std::vector<void *> kept;
    for (int i = 0; i < 10; i++) {
        void *block = nullptr;
        CHECK(posix_memalign(&block, align, size) == 0 && is_aligned(block, align));
        kept.push_back(block);
        kept.push_back(std::aligned_alloc(align, size));
        kept.push_back(memalign(align, size));
        kept.push_back(::operator new(size, std::align_val_t(align)));
        kept.push_back(::operator new[](size, std::align_val_t(align), std::nothrow));
    }
    for (void *block : kept) {
        CHECK(is_aligned(block, align) && malloc_usable_size(block) >= size);
        std::memset(block, 1, size);
        std::free(block);
    }
}

#ifdef OWN_OPERATORS
static std::size_t allocated, freed;
alignas(64) static char pool[1 << 20];

// What they return is no block of any malloc.
void *operator new(std::size_t size) {
    if (size > 10000)
        throw std::bad_alloc();
    void *block = pool + allocated;
    allocated += (size + 63) / 64 * 64;
    return block;
}
void operator delete(void *block) noexcept {
    CHECK(block == nullptr || (block >= pool && block < pool + sizeof pool));
    freed++;
}

int main() {
    delete new long;
    delete[] new long[10];
    delete[] new (std::nothrow) long[10];
    CHECK(new (std::nothrow) char[20000] == nullptr);
    CHECK(allocated >= 3 * 64 && freed >= 3);
    std::puts("own operators");
}
#else
int main() {
    for (std::size_t align = 8; align <= 4 << 20; align *= 2) {
        functions(align, 1);
        functions(align, 100);
        functions(align, 5000);
    }
    types<64>(), types<4096>(), types<16384>(), types<65536>(), types<(1 << 20)>();
    CHECK(is_aligned(valloc(100), 4096) && malloc_usable_size(pvalloc(1)) >= 4096);
    try {
        CHECK(::operator new(SIZE_MAX / 4) == nullptr);
        CHECK(false);
    } catch (const std::bad_alloc &) {
    }
    try {
        CHECK(::operator new(SIZE_MAX / 4, std::align_val_t(4096)) == nullptr);
        CHECK(false);
    } catch (const std::bad_alloc &) {
    }
    CHECK(new (std::nothrow) char[SIZE_MAX / 4] == nullptr);
    std::puts("aligned");
}
#endif
