/*
 * Device memory: each block lies against an inaccessible page and its address is never used again,
 * so what a kernel touches outside of live blocks is a signal, told apart here by address.
 */
#include "tests/emu/internal.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "tests/emu/device.h"

namespace emu
{

static const size_t PAGE = 4096, ALIGN = 256, REGION = size_t(1) << 40;
static const size_t ALTSTACK_BYTES = 64 * 1024;
static const int CANARY = 0xff; /* a NaN where somebody reads it */

struct block {
    size_t bytes, padded;
    int device;
    bool live;
    char *map; /* pages that hold it */
    size_t map_bytes;
};

struct memory {
    std::mutex lock;
    char *base = nullptr, *next = nullptr;
    std::map<uintptr_t, block> blocks;
    std::map<uintptr_t, size_t> pinned, adopted;
    unsigned open = 0; /* kernels and copies at work */
};

static memory &mem()
{
    static memory m;
    return m;
}

static size_t up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static bool in_region(const void *p)
{
    const char *c = static_cast<const char *>(p);

    return mem().base != nullptr && c >= mem().base && c < mem().base + REGION;
}

/* The last block that starts at or before p; NULL: none. */
static const std::pair<const uintptr_t, block> *block_at(const void *p)
{
    auto it = mem().blocks.upper_bound(reinterpret_cast<uintptr_t>(p));

    return it == mem().blocks.begin() ? nullptr : &*std::prev(it);
}

static bool is_in(const std::map<uintptr_t, size_t> &ranges, const void *p, size_t bytes)
{
    auto it = ranges.upper_bound(reinterpret_cast<uintptr_t>(p));

    if (it == ranges.begin())
        return false;
    --it;
    return reinterpret_cast<uintptr_t>(p) + bytes <= it->first + it->second;
}

static bool is_pinned(const void *p, size_t bytes)
{
    return is_in(mem().pinned, p, bytes);
}

static void set_access(bool on)
{
    for (auto &b : mem().blocks)
        if (b.second.live)
            mprotect(b.second.map, b.second.map_bytes, on ? PROT_READ | PROT_WRITE : PROT_NONE);
}

open_memory::open_memory()
{
    if ((checks & KG_EMU_PROTECT) == 0)
        return;
    std::lock_guard<std::mutex> guard(mem().lock);
    if (mem().open++ == 0)
        set_access(true);
}

open_memory::~open_memory()
{
    if ((checks & KG_EMU_PROTECT) == 0)
        return;
    std::lock_guard<std::mutex> guard(mem().lock);
    if (--mem().open == 0)
        set_access(false);
}

void protect_memory(bool on)
{
    std::lock_guard<std::mutex> guard(mem().lock);

    set_access(!on);
}

unsigned long long bytes_used(int device)
{
    std::lock_guard<std::mutex> guard(mem().lock);
    unsigned long long sum = 0;

    for (auto &b : mem().blocks)
        if (b.second.live && (device < 0 || b.second.device == device))
            sum += b.second.padded;
    return sum;
}

/* What an address outside of live blocks is, in words. */
static std::string describe(const void *p)
{
    char text[200];
    const auto *b = block_at(p);
    uintptr_t a = reinterpret_cast<uintptr_t>(p);

    if (!in_region(p)) {
        snprintf(text, sizeof(text), "%p, which is no device memory", p);
        return text;
    }
    if (b != nullptr && !b->second.live && a < b->first + b->second.padded)
        snprintf(text, sizeof(text), "byte %zu of a block of %zu bytes that was freed",
                 size_t(a - b->first), b->second.bytes);
    else if (b != nullptr && a < b->first + b->second.bytes)
        snprintf(text, sizeof(text), "byte %zu of a block of %zu bytes", size_t(a - b->first),
                 b->second.bytes);
    else if (b != nullptr && a - (b->first + b->second.bytes) < PAGE)
        snprintf(text, sizeof(text), "%zu bytes past the end of a block of %zu bytes",
                 size_t(a - (b->first + b->second.bytes)), b->second.bytes);
    else
        snprintf(text, sizeof(text), "%p, in no block of device memory", p);
    return text;
}

static bool inside(const void *p, size_t bytes)
{
    const auto *b = block_at(p);
    uintptr_t a = reinterpret_cast<uintptr_t>(p);

    return (b != nullptr && b->second.live && a + bytes <= b->first + b->second.bytes) ||
           is_in(mem().adopted, p, bytes);
}

bool is_device(const void *p)
{
    if (in_region(p))
        return true;
    std::lock_guard<std::mutex> guard(mem().lock);

    return is_in(mem().adopted, p, 0);
}

bool is_page_locked(const void *p, size_t bytes)
{
    std::lock_guard<std::mutex> guard(mem().lock);

    return is_pinned(p, bytes);
}

std::string check_device_range(const void *p, size_t bytes)
{
    std::lock_guard<std::mutex> guard(mem().lock);

    if (inside(p, bytes))
        return "";
    const char *end = static_cast<const char *>(p) + (bytes == 0 ? 0 : bytes - 1);
    return "touches " + describe(inside(p, 0) ? end : p);
}

void check_pointer(const char *kernel, const void *p)
{
    std::string what;

    if (p == nullptr)
        return;
    {
        std::lock_guard<std::mutex> guard(mem().lock);
        if (inside(p, 0) || is_pinned(p, 0))
            return;
        what = describe(p);
    }
    keep_fault(cudaErrorIllegalAddress,
               std::string("kernel ") + kernel + ": a pointer argument is " + what);
}

static bool mapped(uintptr_t a)
{
    return msync(reinterpret_cast<void *>(a / PAGE * PAGE), PAGE, MS_ASYNC) == 0;
}

/* A structure by value: words that are addresses of this process, but not of the device. */
void check_words(const char *kernel, const void *arg, size_t bytes)
{
    if ((checks & KG_EMU_PROTECT) == 0)
        return;
    for (size_t i = 0; i + sizeof(uintptr_t) <= bytes; i += sizeof(uintptr_t)) {
        uintptr_t word;

        memcpy(&word, static_cast<const char *>(arg) + i, sizeof(word));
        void *p = reinterpret_cast<void *>(word);
        if (word < (uintptr_t(1) << 32) || word >> 47 != 0)
            continue;
        if (in_region(p) || mapped(word))
            check_pointer(kernel, p);
    }
}

void check_canaries(const char *after)
{
    std::string text;
    {
        std::lock_guard<std::mutex> guard(mem().lock);
        for (auto &b : mem().blocks) {
            const unsigned char *p = reinterpret_cast<unsigned char *>(b.first);

            for (size_t i = b.second.bytes; b.second.live && i < b.second.padded; i++) {
                if (p[i] == CANARY)
                    continue;
                char words[120];
                snprintf(words, sizeof(words),
                         ": wrote %zu bytes past the end of a block of %zu bytes",
                         i - b.second.bytes, b.second.bytes);
                text = std::string("kernel ") + after + words;
                break;
            }
        }
    }
    if (!text.empty())
        keep_fault(cudaErrorIllegalAddress, text);
}

/* ---- signals ------------------------------------------------------------------------------ */

static struct sigaction old_action;

static void on_segv(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (in_kernel()) {
        if (stack_overrun(info->si_addr))
            keep_fault(cudaErrorLaunchFailure, where() + ": the stack of a thread is full");
        else
            keep_fault(cudaErrorIllegalAddress, where() + ": touches " + describe(info->si_addr));
        abandon();
    }
    if (is_device(info->si_addr))
        keep_fault(cudaErrorIllegalAddress,
                   "host code touches device memory: " + describe(info->si_addr));
    sigaction(sig, &old_action, nullptr); /* comes again, and goes the way it would have gone */
}

struct altstack {
    std::unique_ptr<char[]> bytes{new char[ALTSTACK_BYTES]};
    stack_t old;
    altstack()
    {
        stack_t s = {};

        s.ss_sp = bytes.get();
        s.ss_size = ALTSTACK_BYTES;
        sigaltstack(&s, &old);
    }
    ~altstack()
    {
        sigaltstack(&old, nullptr);
    }
};

void catch_faults()
{
    static thread_local altstack stack;
    static std::mutex lock;
    struct sigaction now, ours = {};

    (void)stack;
    std::lock_guard<std::mutex> guard(lock);
    sigaction(SIGSEGV, nullptr, &now);
    if (now.sa_sigaction == on_segv)
        return;
    ours.sa_sigaction = on_segv;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    old_action = now;
    sigaction(SIGSEGV, &ours, nullptr);
}

/* ---- allocation --------------------------------------------------------------------------- */

static cudaError_t allocate(int device, size_t bytes, void **p)
{
    size_t padded = up(bytes, ALIGN), map_bytes = up(padded, PAGE);

    catch_faults();
    std::lock_guard<std::mutex> guard(mem().lock);
    memory &m = mem();
    if (m.base == nullptr) {
        void *r =
            mmap(nullptr, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (r == MAP_FAILED)
            return cudaErrorMemoryAllocation;
        m.base = static_cast<char *>(r);
        m.next = m.base + PAGE;
    }
    if (m.next + map_bytes + PAGE > m.base + REGION ||
        mprotect(m.next, map_bytes, PROT_READ | PROT_WRITE) != 0)
        return cudaErrorMemoryAllocation;
    char *start = m.next + map_bytes - padded;

    if (track)
        memset(start, CANARY, padded);
    else
        memset(start + bytes, CANARY, padded - bytes);
    m.blocks[reinterpret_cast<uintptr_t>(start)] = {bytes, padded, device, true, m.next, map_bytes};
    if ((checks & KG_EMU_PROTECT) != 0 && m.open == 0)
        mprotect(m.next, map_bytes, PROT_NONE);
    m.next += map_bytes + PAGE;
    *p = start;
    return cudaSuccess;
}

static cudaError_t release(void *p)
{
    {
        open_memory open;
        check_canaries("before cudaFree");
    }
    std::lock_guard<std::mutex> guard(mem().lock);
    auto it = mem().blocks.find(reinterpret_cast<uintptr_t>(p));

    if (it == mem().blocks.end() || !it->second.live)
        return cudaErrorInvalidValue;
    it->second.live = false;
    madvise(it->second.map, it->second.map_bytes, MADV_DONTNEED);
    mprotect(it->second.map, it->second.map_bytes, PROT_NONE);
    return cudaSuccess;
}

} // namespace emu

extern "C" void kg_emu_adopt(void *p, unsigned long long bytes)
{
    std::lock_guard<std::mutex> guard(emu::mem().lock);

    emu::mem().adopted[reinterpret_cast<uintptr_t>(p)] = size_t(bytes);
}

extern "C" void kg_emu_disown(void *p)
{
    std::lock_guard<std::mutex> guard(emu::mem().lock);

    emu::mem().adopted.erase(reinterpret_cast<uintptr_t>(p));
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    int device = emu::current_device();
    size_t free_bytes = 0, total = 0;
    cudaError_t e = cudaMemGetInfo(&free_bytes, &total);

    if (e != cudaSuccess)
        return e;
    if (bytes == 0) {
        *p = nullptr;
        return cudaSuccess;
    }
    if (bytes > free_bytes || emu::up(bytes, emu::ALIGN) > free_bytes)
        return emu::remember(cudaErrorMemoryAllocation);
    return emu::remember(emu::allocate(device, bytes, p));
}

cudaError_t cudaFree(void *p)
{
    if (p == nullptr)
        return cudaSuccess;
    emu::run_all_streams();
    cudaError_t e = emu::release(p);
    return emu::remember(e != cudaSuccess ? e : emu::device_fault());
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    void *q =
        emu::device_fault() == cudaSuccess ? aligned_alloc(64, emu::up(bytes + 1, 64)) : nullptr;

    if (q == nullptr)
        return emu::remember(emu::device_fault() != cudaSuccess ? emu::device_fault()
                                                                : cudaErrorMemoryAllocation);
    std::lock_guard<std::mutex> guard(emu::mem().lock);
    emu::mem().pinned[reinterpret_cast<uintptr_t>(q)] = bytes;
    *p = q;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    if (p == nullptr)
        return cudaSuccess;
    emu::run_all_streams();
    {
        std::lock_guard<std::mutex> guard(emu::mem().lock);
        if (emu::mem().pinned.erase(reinterpret_cast<uintptr_t>(p)) == 0)
            return emu::remember(cudaErrorInvalidValue);
    }
    free(p);
    return cudaSuccess;
}
