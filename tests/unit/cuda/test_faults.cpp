/* The emulator itself: what it computes, and that every planted fault is found and named. */
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "kernels/cuda/device.h"
#include "tests/emu/emu.h"

static const unsigned ALL = 0xffffffffu;

/* ---- sound kernels ------------------------------------------------------------------------ */

static __global__ void places_kernel(uint32_t *out)
{
    uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    uint32_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);

    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

static __global__ void reduce_kernel(float *out, const float *in, uint32_t n)
{
    KG_SHARED(float, part, 256);
    float sum = 0;

    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += in[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (uint32_t half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        out[blockIdx.x] = part[0];
}

static __global__ void transpose_kernel(uint32_t *out, const uint32_t *in)
{
    KG_SHARED_2D(uint32_t, tile, 8, 9);

    tile[threadIdx.y][threadIdx.x] = in[threadIdx.y * 8 + threadIdx.x];
    __syncthreads();
    out[threadIdx.y * 8 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}

static __global__ void warp_kernel(uint32_t *out)
{
    uint32_t t = threadIdx.x, l = t % 32, base = t - l;
    uint32_t *o = out + t * 8;

    o[0] = __shfl_sync(ALL, t, 5);
    o[1] = __shfl_xor_sync(ALL, t, 3);
    o[2] = __shfl_up_sync(ALL, t, 4u, 16);
    o[3] = __shfl_down_sync(ALL, t, 2u);
    o[4] = __ballot_sync(ALL, l % 3 == 0);
    o[5] = l < 16 ? __shfl_sync(0x0000ffffu, t, 15) : __shfl_sync(0xffff0000u, t, 16);
    o[6] = __any_sync(ALL, t == 40);
    o[7] = __all_sync(ALL, t >= base);
}

static __global__ void count_kernel(unsigned *total)
{
    KG_SHARED(unsigned, sum, 1);

    if (threadIdx.x == 0)
        sum[0] = 0;
    __syncthreads();
    atomicAdd(&sum[0], threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0)
        atomicAdd(total, sum[0]);
}

/* Lanes hand a value around the warp with nothing but __syncwarp between. */
static __global__ void syncwarp_kernel(uint32_t *out)
{
    KG_SHARED(uint32_t, ring, 64);
    uint32_t t = threadIdx.x, next = (t & ~31u) + (t + 1) % 32;

    ring[t] = t;
    for (int i = 0; i < 3; i++) {
        __syncwarp();
        uint32_t v = ring[next];
        __syncwarp();
        ring[t] = v;
    }
    out[t] = ring[t];
}

/* ---- planted faults ----------------------------------------------------------------------- */

static __global__ void past_shared_kernel(uint32_t *out)
{
    KG_SHARED(uint32_t, tile, 32);

    tile[threadIdx.x + (blockIdx.x == 2 ? 1 : 0)] = 1;
    out[0] = 1;
}

static __global__ void past_row_kernel(uint32_t *out)
{
    KG_SHARED_2D(uint32_t, grid, 4, 8);

    if (threadIdx.x < 4)
        grid[threadIdx.x][threadIdx.x + (threadIdx.x == 3 ? 5 : 0)] = 1;
    out[0] = 1;
}

static __global__ void missing_barrier_kernel(uint32_t *out)
{
    KG_SHARED(uint32_t, tile, 64);

    tile[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = tile[63 - threadIdx.x];
}

static __global__ void neighbour_kernel(uint32_t *out)
{
    KG_SHARED(uint32_t, tile, 64);

    tile[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = tile[threadIdx.x == 0 ? 0 : threadIdx.x - 1];
}

static __global__ void late_write_kernel(uint32_t *out)
{
    KG_SHARED(uint32_t, tile, 64);

    tile[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = tile[5];
    if (threadIdx.x == 5)
        tile[5] = 0; /* others may not have read it yet */
}

static __global__ void two_writers_kernel(uint32_t *out)
{
    KG_SHARED(uint32_t, tile, 32);

    tile[threadIdx.x / 2] = 7;
    out[threadIdx.x] = 0;
}

static __global__ void shuffle_is_no_barrier_kernel(uint32_t *out)
{
    KG_SHARED(uint32_t, tile, 32);

    tile[threadIdx.x] = threadIdx.x;
    (void)__shfl_sync(ALL, threadIdx.x, 0);
    out[threadIdx.x] = tile[31 - threadIdx.x];
}

static __global__ void half_syncwarp_kernel(uint32_t *out)
{
    KG_SHARED(uint32_t, tile, 32);

    tile[threadIdx.x] = threadIdx.x;
    __syncthreads();
    tile[threadIdx.x] = threadIdx.x + 1;
    if (threadIdx.x < 16)
        __syncwarp(0x0000ffffu);
    else
        __syncwarp(0xffff0000u);
    out[threadIdx.x] = tile[31 - threadIdx.x]; /* of the other half */
}

static __global__ void unwritten_kernel(uint32_t *out)
{
    KG_SHARED(uint32_t, tile, 33);

    tile[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x + 1];
}

static __global__ void early_end_kernel(uint32_t *out)
{
    if (threadIdx.x >= 60)
        return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

static __global__ void two_barriers_kernel(uint32_t *out)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    out[threadIdx.x] = 1;
}

static __global__ void barrier_and_shuffle_kernel(uint32_t *out)
{
    if (threadIdx.x == 0)
        __syncthreads();
    out[threadIdx.x] = __shfl_sync(ALL, threadIdx.x, 0);
}

static __global__ void lane_ended_kernel(uint32_t *out)
{
    if (threadIdx.x == 9)
        return;
    out[threadIdx.x] = __shfl_xor_sync(ALL, threadIdx.x, 1);
}

static __global__ void lane_outside_kernel(uint32_t *out)
{
    if (threadIdx.x < 8)
        out[threadIdx.x] = __shfl_sync(0xffu, threadIdx.x, 8);
}

static __global__ void not_in_mask_kernel(uint32_t *out)
{
    out[threadIdx.x] = __ballot_sync(0xfffffffeu, 1);
}

static __global__ void write_at_kernel(uint32_t *out, size_t i)
{
    if (threadIdx.x == 3)
        out[i] = 1;
}

static __global__ void large_kernel(uint32_t *out)
{
    KG_SHARED(uint32_t, first, 8000);
    KG_SHARED(uint32_t, second, 8000);

    first[threadIdx.x] = 1;
    second[threadIdx.x] = 1;
    out[threadIdx.x] = 1;
}

struct box {
    uint32_t *p;
};

static __global__ void box_kernel(struct box b)
{
    b.p[threadIdx.x] = 1;
}

static __global__ void deep_kernel(uint32_t *out)
{
    volatile char big[512 * 1024];

    for (uint32_t i = 0; i < sizeof(big); i += 1000 + blockDim.x)
        big[i] = 1;
    out[0] = uint32_t(big[1001]);
}

/* ---- tests -------------------------------------------------------------------------------- */

static int start(void **state)
{
    (void)state;
    kg_emu_reset();
    kg_emu_set_checks(KG_EMU_RACES | KG_EMU_QUIET);
    return 0;
}

static void *device(size_t bytes)
{
    void *p = nullptr;

    assert_int_equal(cudaMalloc(&p, bytes), cudaSuccess);
    assert_int_equal(cudaMemset(p, 0, bytes), cudaSuccess);
    return p;
}

static std::vector<uint32_t> fetch(uint32_t *p, size_t n)
{
    std::vector<uint32_t> v(n);

    assert_int_equal(cudaMemcpy(v.data(), p, n * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(cudaFree(p), cudaSuccess);
    return v;
}

static uint32_t *words(size_t n)
{
    return static_cast<uint32_t *>(device(n * 4));
}

static void every_thread_of_every_block_runs_once_at_its_place(void **state)
{
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        kg_emu_set_checks(KG_EMU_RACES | (backward ? KG_EMU_BACKWARD : 0));
        uint32_t *p = words(30 * 24);

        KG_LAUNCH(places_kernel, dim3(5, 3, 2), dim3(4, 3, 2), nullptr, p);
        auto v = fetch(p, 30 * 24);
        for (uint32_t i = 0; i < v.size(); i++)
            assert_int_equal(v[i], i / 24 * 1000 + i % 24);
    }
}

static void barriers_order_shared_memory(void **state)
{
    (void)state;
    float *in = static_cast<float *>(device(1000 * 4)), *out = static_cast<float *>(device(8));
    std::vector<float> host(1000);
    float got[2];

    for (int i = 0; i < 1000; i++)
        host[i] = float(i);
    assert_int_equal(cudaMemcpy(in, host.data(), 4000, cudaMemcpyHostToDevice), cudaSuccess);
    KG_LAUNCH(reduce_kernel, 2, 256, nullptr, out, in, 1000u);
    assert_int_equal(cudaMemcpy(got, out, 8, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_true(got[0] == 499500.0f && got[1] == 499500.0f);
    assert_int_equal(cudaFree(in), cudaSuccess);
    assert_int_equal(cudaFree(out), cudaSuccess);
    uint32_t *a = words(64), *b = words(64);
    std::vector<uint32_t> h(64);
    for (uint32_t i = 0; i < 64; i++)
        h[i] = i;
    assert_int_equal(cudaMemcpy(a, h.data(), 256, cudaMemcpyHostToDevice), cudaSuccess);
    KG_LAUNCH(transpose_kernel, 1, dim3(8, 8), nullptr, b, a);
    auto v = fetch(b, 64);
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(v[i], i % 8 * 8 + i / 8);
    (void)fetch(a, 64);
}

static void warp_operations_follow_their_definitions(void **state)
{
    (void)state;
    uint32_t *p = words(64 * 8);

    KG_LAUNCH(warp_kernel, 1, 64, nullptr, p);
    auto v = fetch(p, 64 * 8);
    for (uint32_t t = 0; t < 64; t++) {
        uint32_t l = t % 32, base = t - l;

        assert_int_equal(v[t * 8 + 0], base + 5);
        assert_int_equal(v[t * 8 + 1], t ^ 3);
        assert_int_equal(v[t * 8 + 2], l % 16 < 4 ? t : t - 4);
        assert_int_equal(v[t * 8 + 3], l + 2 > 31 ? t : t + 2);
        assert_int_equal(v[t * 8 + 4], 0x49249249u);
        assert_int_equal(v[t * 8 + 5], l < 16 ? base + 15 : base + 16);
        assert_int_equal(v[t * 8 + 6], base == 32);
        assert_int_equal(v[t * 8 + 7], 1);
    }
}

static void atomics_and_syncwarp_are_no_races(void **state)
{
    (void)state;
    uint32_t *p = words(64);

    KG_LAUNCH(count_kernel, 3, 64, nullptr, p);
    assert_int_equal(fetch(p, 1)[0], 3 * 2016);
    p = words(64);
    KG_LAUNCH(syncwarp_kernel, 1, 64, nullptr, p);
    auto v = fetch(p, 64);
    for (uint32_t t = 0; t < 64; t++)
        assert_int_equal(v[t], t / 32 * 32 + (t + 3) % 32);
    assert_string_equal(kg_emu_fault(), "");
}

/* The launch has failed, the text names all of the words, and calls fail until the reset. */
static void expect(std::initializer_list<const char *> wanted)
{
    const char *text = kg_emu_fault();

    for (const char *w : wanted)
        if (strstr(text, w) == nullptr)
            fail_msg("\"%s\" is not in \"%s\"", w, text);
    assert_int_not_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_string_equal(cudaGetErrorString(cudaGetLastError()), text);
    kg_emu_reset();
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

#define PLANTED(kernel, grid, block, ...)           \
    do {                                            \
        uint32_t *p = words(64);                    \
        KG_LAUNCH(kernel, grid, block, nullptr, p); \
        expect({"kernel " #kernel, __VA_ARGS__});   \
        assert_int_equal(cudaFree(p), cudaSuccess); \
    } while (0)

static void shared_memory_out_of_bounds_is_found(void **state)
{
    (void)state;
    PLANTED(past_shared_kernel, 4, 32, "block 2,0,0", "thread 31,0,0", "tile[32]", "index 32");
    PLANTED(past_row_kernel, 1, 32, "thread 3,0,0", "grid[4][8]", "[3][8]");
    kg_emu_set_checks(KG_EMU_QUIET); /* also without the search for races */
    PLANTED(past_shared_kernel, 4, 32, "block 2,0,0", "thread 31,0,0", "tile[32]", "index 32");
}

static void races_are_found(void **state)
{
    (void)state;
    PLANTED(missing_barrier_kernel, 1, 64, "tile", "element 63", "before anybody", "block 0,0,0");
    PLANTED(neighbour_kernel, 1, 64, "race", "tile", "element [0]", "thread 1,0,0", "number 0");
    PLANTED(late_write_kernel, 1, 64, "race", "tile", "element [5]");
    PLANTED(two_writers_kernel, 1, 32, "race", "tile", "element [0]", "thread 1,0,0", "number 0");
    PLANTED(shuffle_is_no_barrier_kernel, 1, 32, "race", "tile");
    PLANTED(half_syncwarp_kernel, 1, 32, "race", "tile");
    PLANTED(unwritten_kernel, 1, 32, "tile", "element 32", "before anybody", "thread 31,0,0");
    kg_emu_set_checks(KG_EMU_RACES | KG_EMU_QUIET | KG_EMU_BACKWARD);
    PLANTED(missing_barrier_kernel, 1, 64, "tile", "before anybody", "thread 63,0,0");
    PLANTED(late_write_kernel, 1, 64, "race", "tile", "element [5]");
}

static void barriers_that_part_are_found_not_waited_for(void **state)
{
    (void)state;
    PLANTED(early_end_kernel, 1, 64, "divergent barrier", "thread 60,0,0 has ended");
    PLANTED(two_barriers_kernel, 1, 64, "divergent barrier", "test_faults.cpp");
    PLANTED(barrier_and_shuffle_kernel, 1, 32, "lanes of the mask missing",
            "thread 0,0,0 in __syncthreads");
}

static void lanes_missing_from_a_shuffle_are_found(void **state)
{
    (void)state;
    PLANTED(lane_ended_kernel, 1, 32, "lanes of the mask missing", "thread 9,0,0 has ended");
    PLANTED(lane_outside_kernel, 1, 32, "reads lane 8", "0x000000ff");
    PLANTED(not_in_mask_kernel, 1, 32, "thread 0,0,0", "does not hold the calling lane 0");
    PLANTED(lane_ended_kernel, 1, 8, "lane 8 of mask", "does not exist");
}

static void global_memory_out_of_bounds_is_found(void **state)
{
    (void)state;
    uint32_t *p = words(64);

    KG_LAUNCH(write_at_kernel, 1, 32, nullptr, p, 64);
    expect({"kernel write_at_kernel", "block 0,0,0", "thread 3,0,0", "0 bytes past the end",
            "256 bytes"});
    KG_LAUNCH(write_at_kernel, 1, 32, nullptr, p, 500);
    expect({"thread 3,0,0", "1744 bytes past the end"});
    KG_LAUNCH(write_at_kernel, 1, 32, nullptr, p + 64, 0); /* an end may be passed, not used */
    expect({"thread 3,0,0", "0 bytes past the end"});
    assert_int_equal(cudaFree(p), cudaSuccess);
    p = words(61); /* not a multiple of 256 bytes: the gap is looked at after the kernel */
    KG_LAUNCH(write_at_kernel, 1, 32, nullptr, p, 61);
    expect({"kernel write_at_kernel", "wrote 0 bytes past the end", "244 bytes"});
    assert_int_not_equal(cudaFree(p), cudaSuccess);
    kg_emu_reset();
    uint32_t host[4];
    p = words(2);
    assert_int_not_equal(cudaMemcpy(p, host, 12, cudaMemcpyHostToDevice), cudaSuccess);
    expect({"copy", "past the end", "8 bytes"});
    assert_int_equal(cudaFree(p), cudaSuccess);
}

static void freed_memory_is_found(void **state)
{
    (void)state;
    uint32_t *p = words(64);
    struct box b = {p};

    assert_int_equal(cudaFree(p), cudaSuccess);
    KG_LAUNCH(write_at_kernel, 1, 32, nullptr, p, 0);
    expect({"write_at_kernel", "freed"});
    KG_LAUNCH(box_kernel, 1, 32, nullptr, b);
    expect({"box_kernel", "thread 0,0,0", "freed", "256 bytes"});
    assert_int_equal(cudaFree(p), cudaErrorInvalidValue);
    kg_emu_reset();
}

static void host_memory_is_no_device_memory(void **state)
{
    (void)state;
    std::vector<uint32_t> host(64);
    struct box b = {host.data()};
    uint32_t *p = words(64);

    KG_LAUNCH(write_at_kernel, 1, 32, nullptr, host.data(), 0);
    expect({"write_at_kernel", "pointer argument", "no device memory"});
    kg_emu_set_checks(KG_EMU_PROTECT | KG_EMU_QUIET);
#ifdef KG_EMU_SEES_WORDS
    KG_LAUNCH(box_kernel, 1, 32, nullptr, b);
    expect({"box_kernel", "no device memory"});
    assert_int_equal(host[0], 0);
#else
    (void)b;
#endif
    assert_int_not_equal(cudaMemcpy(host.data(), host.data(), 4, cudaMemcpyDeviceToHost), 0);
    expect({"copy: source", "no device memory"});
    assert_int_not_equal(cudaMemcpy(p, p, 4, cudaMemcpyHostToDevice), 0);
    expect({"copy: source", "device memory"});
    assert_int_equal(cudaFree(p), cudaSuccess);
    kg_emu_set_checks(KG_EMU_RACES | KG_EMU_QUIET);
}

static void device_memory_is_closed_to_the_host_on_request(void **state)
{
    int status = 0, ends[2];
    char text[200] = "";
    uint32_t *p;

    (void)state;
    kg_emu_set_checks(KG_EMU_PROTECT);
    p = words(64);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        (void)dup2(ends[1], STDERR_FILENO);
        (void)signal(SIGSEGV, SIG_DFL); /* not the one of the test framework */
        (void)words(1);                 /* the emulator takes it again */
        p[1] = 1;
        _exit(0);
    }
    assert_true(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
    assert_non_null(strstr(text, "host code touches device memory: byte 4 of a block of 256"));
    (void)close(ends[0]);
    (void)close(ends[1]);
    KG_LAUNCH(write_at_kernel, 1, 32, nullptr, p, 7);
    assert_int_equal(fetch(p, 64)[7], 1);
    kg_emu_set_checks(KG_EMU_RACES | KG_EMU_QUIET);
}

static void a_full_stack_and_too_much_shared_memory_are_faults(void **state)
{
    (void)state;
    PLANTED(deep_kernel, 1, 1, "stack of a thread is full");
    PLANTED(large_kernel, 1, 1, "with second more than 49152 bytes");
}

static void bad_shapes_are_refused(void **state)
{
    (void)state;
    uint32_t *p = words(64);

    KG_LAUNCH(write_at_kernel, 1, 2000, nullptr, p, 0);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    KG_LAUNCH(write_at_kernel, 0, 32, nullptr, p, 0);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(cudaFree(p), cudaSuccess);
}

static void a_lazy_stream_runs_when_somebody_waits(void **state)
{
    (void)state;
    cudaStream_t s;
    uint32_t *p = words(64), *pinned = nullptr;

    kg_emu_set_checks(KG_EMU_LAZY);
    assert_int_equal(cudaStreamCreate(&s), cudaSuccess);
    assert_int_equal(cudaMallocHost(reinterpret_cast<void **>(&pinned), 4), cudaSuccess);
    *pinned = 5;
    assert_int_equal(cudaMemcpyAsync(p, pinned, 4, cudaMemcpyHostToDevice, s), cudaSuccess);
    *pinned = 6; /* too early: the copy has not run */
    assert_int_equal(cudaStreamQuery(s), cudaErrorNotReady);
    assert_int_equal(cudaStreamSynchronize(s), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(s), cudaSuccess);
    assert_int_equal(cudaFreeHost(pinned), cudaSuccess);
    assert_int_equal(fetch(p, 64)[0], 6);
}

/* Two host threads, a device each: fibres of their own, faults of their own. */
static void host_threads_have_devices_and_faults_of_their_own(void **state)
{
    (void)state;
    kg_emu_set_device(2, 9, 0, 1ull << 28);
    cudaError_t end[2];
    float sum[2] = {0, 0};
    auto work = [&](int device) {
        void *p = nullptr;

        end[device] = cudaSetDevice(device);
        for (int i = 0; i < 50 && end[device] == cudaSuccess; i++) {
            end[device] = cudaMalloc(&p, 4096);
            float *f = static_cast<float *>(p);
            if (end[device] == cudaSuccess)
                end[device] = cudaMemset(p, 0, 4096);
            KG_LAUNCH(reduce_kernel, 3, 256, nullptr, f + 512, f, 500u);
            if (device == 1 && i == 30)
                KG_LAUNCH(write_at_kernel, 1, 32, nullptr, static_cast<uint32_t *>(p), 1024);
            if (cudaMemcpy(&sum[device], f + 513, 4, cudaMemcpyDeviceToHost) == cudaSuccess)
                sum[device] += 1;
            if (end[device] == cudaSuccess)
                end[device] = cudaFree(p);
        }
    };
    std::thread other(work, 1);
    work(0);
    other.join();
    assert_int_equal(end[0], cudaSuccess);
    assert_int_equal(end[1], cudaErrorIllegalAddress);
    assert_true(sum[0] == 1);
    assert_non_null(strstr(kg_emu_fault(), "write_at_kernel"));
    kg_emu_reset();
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    kg_emu_set_device(1, 9, 0, 1ull << 28);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_thread_of_every_block_runs_once_at_its_place, start),
        cmocka_unit_test_setup(barriers_order_shared_memory, start),
        cmocka_unit_test_setup(warp_operations_follow_their_definitions, start),
        cmocka_unit_test_setup(atomics_and_syncwarp_are_no_races, start),
        cmocka_unit_test_setup(shared_memory_out_of_bounds_is_found, start),
        cmocka_unit_test_setup(races_are_found, start),
        cmocka_unit_test_setup(barriers_that_part_are_found_not_waited_for, start),
        cmocka_unit_test_setup(lanes_missing_from_a_shuffle_are_found, start),
        cmocka_unit_test_setup(global_memory_out_of_bounds_is_found, start),
        cmocka_unit_test_setup(freed_memory_is_found, start),
        cmocka_unit_test_setup(host_memory_is_no_device_memory, start),
        cmocka_unit_test_setup(device_memory_is_closed_to_the_host_on_request, start),
        cmocka_unit_test_setup(a_full_stack_and_too_much_shared_memory_are_faults, start),
        cmocka_unit_test_setup(bad_shapes_are_refused, start),
        cmocka_unit_test_setup(host_threads_have_devices_and_faults_of_their_own, start),
        cmocka_unit_test_setup(a_lazy_stream_runs_when_somebody_waits, start),
    };

    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
