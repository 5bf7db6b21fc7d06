/*
 * Stands in for the toolkit's header when device sources are compiled for the host: the device
 * side here, the calls of the host side in runtime.h. Only what kernels/cuda uses.
 */
#ifndef KEDGE_TESTS_EMU_CUDA_RUNTIME_H
#define KEDGE_TESTS_EMU_CUDA_RUNTIME_H

#define KG_EMULATED 1

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <math.h>
#include <tuple>
#include <type_traits>

#include "tests/emu/runtime.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

namespace emu
{

/* ---- threads ------------------------------------------------------------------------------ */

struct group { /* what kernels see of a block; one on each host thread */
    dim3 block_dim, grid_dim;
    uint3 block_idx;
};

struct thread {
    uint3 idx;
    uint32_t flat, lane, warp;
    const struct group *block;
    void *fibre;
    uint32_t state;
    /* of the barrier or warp operation it waits in */
    uint32_t op, mask;
    int line;
    const char *file;
    int from; /* lane a shuffle reads */
    uint64_t value, result;
};

/* __thread and this model: one load, not a call, at each use of threadIdx */
#define KG_EMU_TLS __thread __attribute__((tls_model("initial-exec")))
extern KG_EMU_TLS struct thread *self;

enum op {
    OP_SYNC,
    OP_SYNCWARP,
    OP_SHFL,
    OP_BALLOT,
};

void barrier(const char *file, int line);
/* All lanes of mask meet; what lane `from` gave, or for OP_BALLOT the bits of those not zero. */
uint64_t warp_op(enum op op, uint32_t mask, uint64_t value, int from, const char *file, int line);
/* Ends the launch. */
[[noreturn]] void fault(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#define KG_EMU_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* ---- shared memory ------------------------------------------------------------------------ */

struct shadow;

/* A KG_SHARED line of one kernel instance. */
struct shared_site {
    const char *name;
    uint32_t n, inner; /* elements; those of one row (0: one index) */
    uint32_t bytes;    /* of an element */
    uint32_t align;
};

/* The array of the running block. */
struct array {
    const struct shared_site *site;
    char *data;
    struct shadow *shadow;
};

enum access {
    READ,
    WRITE,
    ATOMIC,
};

extern bool track; /* races */

struct array *shared_array(const struct shared_site *site);
[[noreturn]] void shared_bounds(const struct array *a, int64_t row, int64_t i);
void shared_access(const struct array *a, uint32_t i, enum access how);

/* One element: reads and writes are seen. Not to be kept in an `auto`. */
template <class T> class ref
{
    const array *a;
    uint32_t i;

  public:
    ref(const array *array, uint32_t index) : a(array), i(index)
    {
    }
    ref(const ref &) = default;
    T *raw() const
    {
        return reinterpret_cast<T *>(a->data) + i;
    }
    operator T() const
    {
        if (track)
            shared_access(a, i, READ);
        return *raw();
    }
    T operator=(T v) const
    {
        if (track)
            shared_access(a, i, WRITE);
        return *raw() = v;
    }
    T operator=(const ref &o) const
    {
        return *this = T(o);
    }
    template <class U> T operator+=(U v) const
    {
        return *this = T(T(*this) + v);
    }
    template <class U> T operator-=(U v) const
    {
        return *this = T(T(*this) - v);
    }
    template <class U> T operator*=(U v) const
    {
        return *this = T(T(*this) * v);
    }
    template <class U> T operator|=(U v) const
    {
        return *this = T(T(*this) | v);
    }
    T *atomic() const
    {
        if (track)
            shared_access(a, i, ATOMIC);
        return raw();
    }
    class pointer
    {
        const array *a;
        int64_t i;

      public:
        pointer(const array *array, int64_t index) : a(array), i(index)
        {
        }
        ref operator[](int64_t k) const
        {
            if (i + k < 0 || i + k >= a->site->n)
                shared_bounds(a, -1, i + k);
            return ref(a, uint32_t(i + k));
        }
        ref operator*() const
        {
            return (*this)[0];
        }
        pointer operator+(int64_t k) const
        {
            return pointer(a, i + k);
        }
    };
    pointer operator&() const
    {
        return pointer(a, i);
    }
};

template <class T> class shared
{
    array *a;

  public:
    using pointer = typename ref<T>::pointer;
    explicit shared(const shared_site *site) : a(shared_array(site))
    {
    }
    template <class I> ref<T> operator[](I index) const
    {
        if (uint64_t(int64_t(index)) >= a->site->n)
            shared_bounds(a, -1, int64_t(index));
        return ref<T>(a, uint32_t(index));
    }
    pointer operator+(int64_t k) const
    {
        return pointer(a, k);
    }
    operator pointer() const
    {
        return pointer(a, 0);
    }
};

template <class T> class shared2
{
    array *a;

  public:
    class row
    {
        const array *a;
        uint32_t r;

      public:
        row(const array *array, uint32_t index) : a(array), r(index)
        {
        }
        template <class I> ref<T> operator[](I index) const
        {
            if (uint64_t(int64_t(index)) >= a->site->inner)
                shared_bounds(a, r, int64_t(index));
            return ref<T>(a, r * a->site->inner + uint32_t(index));
        }
    };
    explicit shared2(const shared_site *site) : a(shared_array(site))
    {
    }
    template <class I> row operator[](I index) const
    {
        if (uint64_t(int64_t(index)) >= a->site->n / a->site->inner)
            shared_bounds(a, int64_t(index), 0);
        return row(a, uint32_t(index));
    }
};

/* ---- launches ----------------------------------------------------------------------------- */

struct launch {
    const char *name;
    dim3 grid, block;
    void (*call)(const void *args); /* one thread of the kernel */
    const void *args;
};

void run(const struct launch *l);
/* 0: refused, the error is kept for cudaGetLastError. */
int launch_allowed(const char *name, dim3 grid, dim3 block);
void check_pointer(const char *kernel, const void *p);
void check_words(const char *kernel, const void *arg, size_t bytes);
void queue(cudaStream_t stream, work fn);

/* Words of a structure are looked at where the compiler can tell its padding, which holds old
 * pointers now and then. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
#define KG_EMU_SEES_WORDS 1
#endif
#endif

template <class T> void check_argument(const char *kernel, const T &arg)
{
    if constexpr (std::is_pointer_v<T>) {
        check_pointer(kernel, static_cast<const void *>(arg));
    } else if constexpr (std::is_class_v<T> && sizeof(T) >= sizeof(void *)) {
#ifdef KG_EMU_SEES_WORDS
        T plain = arg;

        __builtin_clear_padding(&plain);
        check_words(kernel, &plain, sizeof(T));
#endif
    }
}

template <class... P, class... A>
void launch_kernel(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                   cudaStream_t stream, A &&...args)
{
    using pack = std::tuple<void (*)(P...), P...>;
    pack all(kernel, static_cast<P>(args)...);

    if (!launch_allowed(name, grid, block))
        return;
    queue(stream, [=]() {
        std::apply([&](void (*)(P...), const P &...p) { (check_argument(name, p), ...); }, all);
        launch l = {name, grid, block,
                    [](const void *p) {
                        std::apply([](void (*k)(P...), const P &...a) { k(a...); },
                                   *static_cast<const pack *>(p));
                    },
                    &all};
        run(&l);
    });
}

/* ---- warp --------------------------------------------------------------------------------- */

template <class T> uint64_t bits(T v)
{
    uint64_t b = 0;

    memcpy(&b, &v, sizeof(v));
    return b;
}

template <class T> T from_bits(uint64_t b)
{
    T v;

    memcpy(&v, &b, sizeof(v));
    return v;
}

enum way {
    IDX,
    UP,
    DOWN,
    XOR,
};

inline int source_lane(enum way way, int x, int width)
{
    int lane = int(self->lane), first = lane & ~(width - 1), last = first + width - 1;
    int from = way == IDX    ? first + (x & (width - 1))
               : way == UP   ? lane - x
               : way == DOWN ? lane + x
                             : lane ^ x;

    return from > last || (way == UP && from < first) ? lane : from;
}

template <class T>
T shuffle(enum way way, unsigned mask, T v, int x, int width, const char *file, int line)
{
    return from_bits<T>(warp_op(OP_SHFL, mask, bits(v), source_lane(way, x, width), file, line));
}

} // namespace emu

#define threadIdx (emu::self->idx)
#define blockIdx (emu::self->block->block_idx)
#define blockDim (emu::self->block->block_dim)
#define gridDim (emu::self->block->grid_dim)
#define warpSize 32

#define KG_SHARED(type, name, n)                                                              \
    static const emu::shared_site name##_site = {#name, (n), 0, sizeof(type), alignof(type)}; \
    const emu::shared<type> name(&name##_site)
#define KG_SHARED_2D(type, name, n, m)                                                \
    static const emu::shared_site name##_site = {#name, (n) * (m), (m), sizeof(type), \
                                                 alignof(type)};                      \
    const emu::shared2<type> name(&name##_site)
#define KG_LAUNCH(kernel, grid, block, stream, ...) \
    emu::launch_kernel(#kernel, kernel, grid, block, stream, __VA_ARGS__)

inline void __syncthreads(KG_EMU_SITE)
{
    emu::barrier(file, line);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, KG_EMU_SITE)
{
    (void)emu::warp_op(emu::OP_SYNCWARP, mask, 0, 0, file, line);
}

#define KG_EMU_SHUFFLES(T)                                                                     \
    inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32, KG_EMU_SITE)            \
    {                                                                                          \
        return emu::shuffle(emu::IDX, mask, v, lane, width, file, line);                       \
    }                                                                                          \
    inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, KG_EMU_SITE)   \
    {                                                                                          \
        return emu::shuffle(emu::UP, mask, v, int(delta), width, file, line);                  \
    }                                                                                          \
    inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, KG_EMU_SITE) \
    {                                                                                          \
        return emu::shuffle(emu::DOWN, mask, v, int(delta), width, file, line);                \
    }                                                                                          \
    inline T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32, KG_EMU_SITE)       \
    {                                                                                          \
        return emu::shuffle(emu::XOR, mask, v, lanes, width, file, line);                      \
    }
KG_EMU_SHUFFLES(float)
KG_EMU_SHUFFLES(double)
KG_EMU_SHUFFLES(int)
KG_EMU_SHUFFLES(unsigned)
KG_EMU_SHUFFLES(long long)
KG_EMU_SHUFFLES(unsigned long long)
KG_EMU_SHUFFLES(unsigned long)
#undef KG_EMU_SHUFFLES

inline unsigned __ballot_sync(unsigned mask, int p, KG_EMU_SITE)
{
    return unsigned(emu::warp_op(emu::OP_BALLOT, mask, p != 0, 0, file, line));
}

inline int __any_sync(unsigned mask, int p, KG_EMU_SITE)
{
    return __ballot_sync(mask, p, file, line) != 0;
}

inline int __all_sync(unsigned mask, int p, KG_EMU_SITE)
{
    return __ballot_sync(mask, p, file, line) == mask;
}

/* ---- atomics: threads of a block take turns, so plain steps are whole ----------------------- */

#define KG_EMU_ATOMIC(name, T, step)           \
    inline T name(T *p, T v)                   \
    {                                          \
        T old = *p;                            \
        *p = step;                             \
        return old;                            \
    }                                          \
    inline T name(emu::ref<T>::pointer q, T v) \
    {                                          \
        return name((*q).atomic(), v);         \
    }
KG_EMU_ATOMIC(atomicAdd, int, old + v)
KG_EMU_ATOMIC(atomicAdd, unsigned, old + v)
KG_EMU_ATOMIC(atomicAdd, unsigned long long, old + v)
KG_EMU_ATOMIC(atomicAdd, float, old + v)
KG_EMU_ATOMIC(atomicMax, int, old > v ? old : v)
KG_EMU_ATOMIC(atomicMax, unsigned, old > v ? old : v)
KG_EMU_ATOMIC(atomicMin, int, old < v ? old : v)
KG_EMU_ATOMIC(atomicMin, unsigned, old < v ? old : v)
KG_EMU_ATOMIC(atomicOr, unsigned, old | v)
KG_EMU_ATOMIC(atomicExch, int, v)
KG_EMU_ATOMIC(atomicExch, unsigned, v)
#undef KG_EMU_ATOMIC

inline unsigned atomicCAS(unsigned *p, unsigned old, unsigned v)
{
    unsigned was = *p;

    *p = was == old ? v : was;
    return was;
}

inline void __threadfence()
{
}

inline void __threadfence_block()
{
}

/* ---- arithmetic --------------------------------------------------------------------------- */

#define KG_EMU_MINMAX(T)      \
    inline T min(T a, T b)    \
    {                         \
        return b < a ? b : a; \
    }                         \
    inline T max(T a, T b)    \
    {                         \
        return a < b ? b : a; \
    }
KG_EMU_MINMAX(int)
KG_EMU_MINMAX(unsigned)
KG_EMU_MINMAX(long)
KG_EMU_MINMAX(unsigned long)
KG_EMU_MINMAX(long long)
KG_EMU_MINMAX(unsigned long long)
#undef KG_EMU_MINMAX

inline float min(float a, float b)
{
    return fminf(a, b);
}

inline float max(float a, float b)
{
    return fmaxf(a, b);
}

inline unsigned __float_as_uint(float x)
{
    return emu::from_bits<unsigned>(emu::bits(x));
}

inline int __float_as_int(float x)
{
    return emu::from_bits<int>(emu::bits(x));
}

inline float __uint_as_float(unsigned x)
{
    return emu::from_bits<float>(emu::bits(x));
}

inline float __int_as_float(int x)
{
    return emu::from_bits<float>(emu::bits(x));
}

inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz(unsigned(x));
}

template <class T> inline T __ldg(const T *p)
{
    return *p;
}

#endif
