/*
 * The algorithms on device memory; the same meetings and halves as on the host (collective.c).
 *
 * push: a word of eight bytes is four of data and the number of the kernel, stored at once: who
 * reads the number has the data. staged: a block lays its share down, meets the same block of all
 * ranks, reads theirs. multicast: likewise, but the switch reads and adds. Blocks never wait for
 * another block of their own rank.
 *
 * The number of a kernel (epoch) lives in device memory and is counted by the kernels, so that a
 * graph can be replayed. Every kernel of a channel hears from every rank; a rank is therefore at
 * most one kernel ahead, and halves by the epoch's parity are enough.
 *
 * Sums go in rank order in F32, BF16 is rounded once: the bits of the host's. Those by multicast do
 * not (multimem.cuh).
 */
#include "cuda_args.h"

#include <cuda_runtime.h>

#include <cstring>

#include "multimem.cuh"

#ifdef KG_EMULATED
#include <sched.h>
#endif

namespace
{

enum { ALL_REDUCE = 1, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST };
enum { F32 = 0 };

/* --- what crosses ranks: one access, at system scope --- */

__device__ void put_word(uint64_t *p, uint64_t v)
{
#ifdef KG_EMULATED
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
#else
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
#endif
}

__device__ uint64_t get_word(const uint64_t *p)
{
#ifdef KG_EMULATED
    return __atomic_load_n(p, __ATOMIC_RELAXED);
#else
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
#endif
}

__device__ void put_release(uint32_t *p, uint32_t v)
{
#ifdef KG_EMULATED
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
#else
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
#endif
}

__device__ uint32_t get_acquire(const uint32_t *p)
{
#ifdef KG_EMULATED
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#else
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
#endif
}

/* --- places --- */

__device__ char *area(const symm_cuda_args &a, uint32_t rank)
{
    return reinterpret_cast<char *>(a.base + rank * a.stride);
}

__device__ symm_cuda_pad *pad_of(const symm_cuda_args &a, uint32_t rank)
{
    return reinterpret_cast<symm_cuda_pad *>(area(a, rank) + a.pad);
}

__device__ char *half(const symm_cuda_args &a, uint32_t rank, uint32_t epoch, uint64_t where,
                      uint64_t size)
{
    return area(a, rank) + where + (epoch & 1) * size;
}

__device__ char *stage_of(const symm_cuda_args &a, uint32_t rank, uint32_t epoch)
{
    return half(a, rank, epoch, a.stage, a.stage_half);
}

__device__ uint64_t *lines_of(const symm_cuda_args &a, uint32_t to, uint32_t from, uint32_t epoch)
{
    return reinterpret_cast<uint64_t *>(half(a, to, epoch, a.lines, a.lines_half) +
                                        from * a.lines_one);
}

__device__ uint64_t *notes_of(const symm_cuda_args &a, uint32_t rank, uint32_t epoch)
{
    return reinterpret_cast<uint64_t *>(half(a, rank, epoch, a.notes, a.notes_half)) +
           blockIdx.x * SYMM_CUDA_RANKS;
}

__device__ uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* --- waiting --- */

/* How often a wait looks at the host's word: far memory on a device. Under the emulator a look costs
 * a turn of the core, so all the waits of a kernel that is told to leave would take seconds. */
#ifdef KG_EMULATED
const uint32_t LOOKS = 1;
#else
const uint32_t LOOKS = 64;
#endif

/* Not there yet: whether to give up, because the host says so. `looks` counts. The first wait to do
 * so names its rank: of those after it some had not begun, and wait for ranks that wait themselves. */
__device__ bool give_up(const symm_cuda_args &a, uint32_t peer, uint32_t *looks)
{
    symm_cuda_word *w = reinterpret_cast<symm_cuda_word *>(a.word);

#ifdef KG_EMULATED
    sched_yield();
#endif
    if (++*looks % LOOKS != 0 || get_acquire(&w->stop) == 0)
        return false;
    if (get_acquire(&w->peer) == 0)
        put_release(&w->peer, peer + 1);
    return true;
}

/* All of the block came; meets the same block of every rank. */
__device__ void meet(const symm_cuda_args &a, uint32_t *meeting)
{
    uint32_t looks = 0, t = threadIdx.x;

    __syncthreads();
    ++*meeting;
    if (t < a.world)
        put_release(&pad_of(a, t)->arrived[blockIdx.x][a.rank], *meeting);
    __syncthreads();
    if (t < a.world) {
        const uint32_t *p = &pad_of(a, a.rank)->arrived[blockIdx.x][t];
        while (int32_t(get_acquire(p) - *meeting) < 0 && !give_up(a, t, &looks)) {
        }
    }
    __syncthreads();
}

/* The block is done; the last one counts the kernel. */
__device__ void finish(const symm_cuda_args &a)
{
    symm_cuda_pad *p = pad_of(a, a.rank);

    __syncthreads();
    if (threadIdx.x != 0)
        return;
    __threadfence();
    if (atomicAdd(&p->blocks_done, 1u) == gridDim.x - 1) {
        p->blocks_done = 0;
        p->epoch = p->epoch + 1;
    }
}

/* --- bytes and sums; threads of the block side by side --- */

__device__ void copy(char *to, const char *from, uint64_t bytes)
{
    uint64_t wide = 0;

    if (to == from)
        return;
    if (((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) & 15) == 0) {
        wide = bytes / 16;
        for (uint64_t i = threadIdx.x; i < wide; i += blockDim.x)
            reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
    }
    for (uint64_t i = wide * 16 + threadIdx.x; i < bytes; i += blockDim.x)
        to[i] = from[i];
}

__device__ float number(const char *p, uint32_t dtype)
{
    uint32_t bits;
    float f;

    if (dtype == F32)
        bits = *reinterpret_cast<const uint32_t *>(p);
    else
        bits = uint32_t(*reinterpret_cast<const uint16_t *>(p)) << 16;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* BF16: to nearest, ties to even; NaN stays NaN. */
__device__ void put_number(char *p, uint32_t dtype, float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if (dtype == F32)
        *reinterpret_cast<uint32_t *>(p) = bits;
    else if ((bits & 0x7fffffffu) > 0x7f800000u)
        *reinterpret_cast<uint16_t *>(p) = uint16_t(bits >> 16 | 0x40u);
    else
        *reinterpret_cast<uint16_t *>(p) = uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* out[i] = sum over ranks of their stage at element `from` + i. */
__device__ void sum(const symm_cuda_args &a, uint32_t epoch, char *out, uint64_t from, uint64_t n)
{
    for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) {
        float s = number(stage_of(a, 0, epoch) + (from + i) * a.one, a.dtype);
        for (uint32_t r = 1; r < a.world; r++)
            s += number(stage_of(a, r, epoch) + (from + i) * a.one, a.dtype);
        put_number(out + i * a.one, a.dtype, s);
    }
}

/* Elements of [0, n) that are part k of `parts`; whole lines of 256 elements. */
__device__ void part(uint64_t n, uint32_t parts, uint32_t k, uint64_t *lo, uint64_t *hi)
{
    uint64_t per = ((n + parts - 1) / parts + 255) / 256 * 256;

    *lo = least(n, per * k);
    *hi = least(n, *lo + per);
}

/* --- staged --- */

__device__ void two_shot(const symm_cuda_args &a, uint32_t epoch, uint32_t *meeting, uint64_t lo,
                         uint64_t hi)
{
    const char *in = reinterpret_cast<const char *>(a.in) + a.at * a.one;
    char *out = reinterpret_cast<char *>(a.out) + a.at * a.one;
    uint64_t from, to;

    copy(stage_of(a, a.rank, epoch) + lo * a.one, in + lo * a.one, (hi - lo) * a.one);
    meet(a, meeting);
    part(hi - lo, a.world, a.rank, &from, &to);
    sum(a, epoch, half(a, a.rank, epoch, a.result, a.result_half) + (lo + from) * a.one, lo + from,
        to - from);
    meet(a, meeting);
    for (uint32_t r = 0; r < a.world; r++) {
        part(hi - lo, a.world, r, &from, &to);
        copy(out + (lo + from) * a.one,
             half(a, r, epoch, a.result, a.result_half) + (lo + from) * a.one, (to - from) * a.one);
    }
}

__device__ void scatter(const symm_cuda_args &a, uint32_t epoch, uint32_t *meeting, uint64_t lo,
                        uint64_t hi)
{
    const char *in = reinterpret_cast<const char *>(a.in);
    char *out = reinterpret_cast<char *>(a.out);

    for (uint32_t p = 0; p < a.world; p++)
        copy(stage_of(a, a.rank, epoch) + (p * a.n + lo) * a.one,
             in + (p * a.count + a.at + lo) * a.one, (hi - lo) * a.one);
    meet(a, meeting);
    sum(a, epoch, out + (a.at + lo) * a.one, a.rank * a.n + lo, hi - lo);
}

__device__ void gather(const symm_cuda_args &a, uint32_t epoch, uint32_t *meeting, uint64_t lo,
                       uint64_t hi)
{
    const char *in = reinterpret_cast<const char *>(a.in) + (a.at + lo) * a.one;
    char *out = reinterpret_cast<char *>(a.out);

    copy(stage_of(a, a.rank, epoch) + lo * a.one, in, (hi - lo) * a.one);
    meet(a, meeting);
    for (uint32_t r = 0; r < a.world; r++)
        copy(out + (r * a.count + a.at + lo) * a.one, stage_of(a, r, epoch) + lo * a.one,
             (hi - lo) * a.one);
}

/* Elements of lo .. hi of this piece that belong to the first `all` of a block. */
__device__ uint64_t share(const symm_cuda_args &a, uint64_t all, uint64_t lo, uint64_t hi)
{
    uint64_t end = all > a.at ? least(all - a.at, hi) : 0;

    return end > lo ? end - lo : 0;
}

__device__ void exchange(const symm_cuda_args &a, uint32_t epoch, uint32_t *meeting, uint64_t lo,
                         uint64_t hi)
{
    const char *in = reinterpret_cast<const char *>(a.in);
    const uint64_t *counts = reinterpret_cast<const uint64_t *>(a.counts);
    char *out = reinterpret_cast<char *>(a.out);
    uint64_t *notes = notes_of(a, a.rank, epoch);

    for (uint32_t p = threadIdx.x; p < a.world; p += blockDim.x) {
        uint64_t n = a.counts != 0 ? counts[p] : a.count;
        if (n > a.count)
            put_release(&reinterpret_cast<symm_cuda_word *>(a.word)->wrong, 1);
        notes[p] = least(n, a.count);
    }
    __syncthreads();
    for (uint32_t p = 0; p < a.world; p++)
        copy(stage_of(a, a.rank, epoch) + (p * a.n + lo) * a.one,
             in + (p * a.count + a.at + lo) * a.one, share(a, notes[p], lo, hi) * a.one);
    meet(a, meeting);
    for (uint32_t r = 0; r < a.world; r++)
        copy(out + (r * a.count + a.at + lo) * a.one,
             stage_of(a, r, epoch) + (a.rank * a.n + lo) * a.one,
             share(a, notes_of(a, r, epoch)[a.rank], lo, hi) * a.one);
}

__device__ void cast(const symm_cuda_args &a, uint32_t epoch, uint32_t *meeting, uint64_t lo,
                     uint64_t hi)
{
    const char *in = reinterpret_cast<const char *>(a.in) + (a.at + lo) * a.one;
    char *out = reinterpret_cast<char *>(a.out) + (a.at + lo) * a.one;

    if (a.rank == a.root)
        copy(stage_of(a, a.rank, epoch) + lo * a.one, in, (hi - lo) * a.one);
    meet(a, meeting);
    copy(out, a.rank == a.root ? in : stage_of(a, a.root, epoch) + lo * a.one, (hi - lo) * a.one);
}

/* --- multicast --- */

/* Meets, and orders accesses by addresses of the object with those by a rank's own; each thread has
 * its own, on both sides. */
__device__ void meet_many(const symm_cuda_args &a, uint32_t *meeting)
{
    mm_fence();
    meet(a, meeting);
    mm_fence();
}

/* Units of 16 bytes that hold n elements: the last one may be full of older bytes behind them, which
 * halves have room for and nobody reads. Slices begin at whole units, as they do at whole lines. */
__device__ uint64_t units(const symm_cuda_args &a, uint64_t n)
{
    return (n * a.one + sizeof(uint4) - 1) / sizeof(uint4);
}

/* Unit i of `bytes` bytes at p, which may lie anywhere. */
__device__ void put_unit(char *p, uint64_t i, uint64_t bytes, uint4 v)
{
    uint64_t at = i * sizeof(v);

    if ((reinterpret_cast<uintptr_t>(p) & (sizeof(v) - 1)) == 0 && bytes - at >= sizeof(v))
        *reinterpret_cast<uint4 *>(p + at) = v;
    else
        memcpy(p + at, &v, least(sizeof(v), bytes - at));
}

/* Every rank has the switch add all elements. */
__device__ void multicast_one(const symm_cuda_args &a, uint32_t epoch, uint64_t lo, uint64_t hi)
{
    char *out = reinterpret_cast<char *>(a.out) + (a.at + lo) * a.one;
    uint64_t from = a.stage + (epoch & 1) * a.stage_half + lo * a.one;

    for (uint64_t i = threadIdx.x; i < units(a, hi - lo); i += blockDim.x)
        put_unit(out, i, (hi - lo) * a.one, mm_sum(a, from + i * sizeof(uint4), a.dtype == F32));
}

/* Every rank has it add a slice, and store it to all. */
__device__ void multicast_two(const symm_cuda_args &a, uint32_t epoch, uint32_t *meeting,
                              uint64_t lo, uint64_t hi)
{
    char *out = reinterpret_cast<char *>(a.out) + (a.at + lo) * a.one;
    uint64_t stage = a.stage + (epoch & 1) * a.stage_half;
    uint64_t result = a.result + (epoch & 1) * a.result_half;
    uint64_t from, to;

    part(hi - lo, a.world, a.rank, &from, &to);
    for (uint64_t i = threadIdx.x; i < units(a, to - from); i += blockDim.x) {
        uint64_t at = (lo + from) * a.one + i * sizeof(uint4);
        mm_store(a, result + at, mm_sum(a, stage + at, a.dtype == F32));
    }
    meet_many(a, meeting);
    copy(out, area(a, a.rank) + result + lo * a.one, (hi - lo) * a.one);
}

/* --- push --- */

/* Word i of `bytes` bytes at p, which may lie anywhere and end within the word. */
__device__ uint32_t word_at(const char *p, uint64_t i, uint64_t bytes)
{
    uint32_t w = 0;

    for (uint64_t k = 0; k < 4 && i * 4 + k < bytes; k++)
        w |= uint32_t(static_cast<unsigned char>(p[i * 4 + k])) << (8 * k);
    return w;
}

__device__ void put_at(char *p, uint64_t i, uint64_t bytes, uint32_t w)
{
    for (uint64_t k = 0; k < 4 && i * 4 + k < bytes; k++)
        p[i * 4 + k] = char(w >> (8 * k));
}

/* A rank's word i, when it is there. */
__device__ uint32_t line_came(const symm_cuda_args &a, uint32_t epoch, uint32_t from, uint64_t i,
                              uint32_t *looks)
{
    const uint64_t *p = lines_of(a, a.rank, from, epoch) + i;
    uint64_t v = get_word(p);

    while (uint32_t(v >> 32) != epoch + 1 && !give_up(a, from, looks))
        v = get_word(p);
    return uint32_t(v);
}

/* The sum of all ranks' word i: one element of F32, two of BF16. */
__device__ uint32_t sum_word(const symm_cuda_args &a, uint32_t epoch, uint64_t i, uint32_t *looks)
{
    uint32_t w = line_came(a, epoch, 0, i, looks);
    char *one = reinterpret_cast<char *>(&w);
    float s[2] = {number(one, a.dtype), a.dtype == F32 ? 0 : number(one + 2, a.dtype)};

    for (uint32_t r = 1; r < a.world; r++) {
        w = line_came(a, epoch, r, i, looks);
        s[0] += number(one, a.dtype);
        if (a.dtype != F32)
            s[1] += number(one + 2, a.dtype);
    }
    put_number(one, a.dtype, s[0]);
    if (a.dtype != F32)
        put_number(one + 2, a.dtype, s[1]);
    return w;
}

} // namespace

/* All-reduce, all-gather or broadcast of at most lines_one / 2 bytes. */
extern "C" __global__ void symm_push(symm_cuda_args a)
{
    const char *in = reinterpret_cast<const char *>(a.in);
    char *out = reinterpret_cast<char *>(a.out);
    uint64_t bytes = a.count * a.one, words = (bytes + 3) / 4, step = gridDim.x * blockDim.x;
    uint64_t first = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t epoch = pad_of(a, a.rank)->epoch, looks = 0;

    for (uint64_t i = first; i < words; i += step) {
        int mute = a.op == BROADCAST && a.rank != a.root; /* it says that it is here */
        uint64_t v = uint64_t(epoch + 1) << 32 | (mute ? 0 : word_at(in, i, bytes));
        for (uint32_t p = 0; p < a.world; p++)
            put_word(lines_of(a, p, a.rank, epoch) + i, v);
    }
    for (uint64_t i = first; i < words; i += step) {
        if (a.op == ALL_REDUCE)
            put_at(out, i, bytes, sum_word(a, epoch, i, &looks));
        for (uint32_t r = 0; r < a.world && a.op != ALL_REDUCE; r++) {
            uint32_t w = line_came(a, epoch, r, i, &looks);
            if (a.op == ALL_GATHER)
                put_at(out + r * bytes, i, bytes, w);
            else if (r == a.root)
                put_at(out, i, bytes, w);
        }
    }
    finish(a);
}

/* One piece of any collective: a.n elements (of each block of it) from a.at. */
extern "C" __global__ void symm_staged(symm_cuda_args a)
{
    symm_cuda_pad *p = pad_of(a, a.rank);
    uint32_t epoch = p->epoch, meeting = p->met[blockIdx.x];
    uint64_t lo, hi;

    part(a.n, gridDim.x, blockIdx.x, &lo, &hi);
    switch (a.op) {
    case ALL_REDUCE:
        two_shot(a, epoch, &meeting, lo, hi);
        break;
    case REDUCE_SCATTER:
        scatter(a, epoch, &meeting, lo, hi);
        break;
    case ALL_GATHER:
        gather(a, epoch, &meeting, lo, hi);
        break;
    case ALL_TO_ALL:
        exchange(a, epoch, &meeting, lo, hi);
        break;
    default:
        cast(a, epoch, &meeting, lo, hi);
        break;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        p->met[blockIdx.x] = meeting;
    finish(a);
}

/* All-reduce of one piece through the multicast object. */
extern "C" __global__ void symm_multicast(symm_cuda_args a)
{
    symm_cuda_pad *p = pad_of(a, a.rank);
    uint32_t epoch = p->epoch, meeting = p->met[blockIdx.x];
    const char *in = reinterpret_cast<const char *>(a.in) + a.at * a.one;
    uint64_t lo, hi;

    part(a.n, gridDim.x, blockIdx.x, &lo, &hi);
    copy(stage_of(a, a.rank, epoch) + lo * a.one, in + lo * a.one, (hi - lo) * a.one);
    meet_many(a, &meeting);
    if (a.shots == 1)
        multicast_one(a, epoch, lo, hi);
    else
        multicast_two(a, epoch, &meeting, lo, hi);
    __syncthreads();
    if (threadIdx.x == 0)
        p->met[blockIdx.x] = meeting;
    finish(a);
}

#ifdef KG_EMULATED
/* For the driver of the tests; kernel: 1 push, 2 staged, 3 multicast. */
extern "C" void symm_emulate(int kernel, unsigned blocks, unsigned threads,
                             const symm_cuda_args *a);
extern "C" void symm_emulate(int kernel, unsigned blocks, unsigned threads, const symm_cuda_args *a)
{
    if (kernel == 1)
        KG_LAUNCH(symm_push, blocks, threads, nullptr, *a);
    else if (kernel == 2)
        KG_LAUNCH(symm_staged, blocks, threads, nullptr, *a);
    else
        KG_LAUNCH(symm_multicast, blocks, threads, nullptr, *a);
}
#endif
