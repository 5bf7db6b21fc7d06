/* Runs the threads of a block as fibres: start, switch, barriers, warp operations, faults. */
#include "tests/emu/internal.h"

#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sys/mman.h>
#include <vector>

#include "tests/emu/shadow.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KG_EMU_ASAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define KG_EMU_ASAN 1
#endif
#ifdef KG_EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__) && !defined(KG_EMU_UCONTEXT)
#define KG_EMU_SWITCH 1 /* else by ucontext, with two system calls at each switch */
#else
#include <ucontext.h>
#endif

namespace emu
{

static const size_t STACK_BYTES = 256 * 1024, GUARD_BYTES = 1024 * 1024;
static const uint32_t MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / 32;
static const size_t SHARED_BYTES = 48 * 1024;

enum state : uint32_t {
    READY,
    AT_BARRIER,
    AT_WARP,
    ENDED,
};

KG_EMU_TLS struct thread *self;

/* ---- switching ---------------------------------------------------------------------------- */

#ifdef KG_EMU_SWITCH
extern "C" void kg_emu_switch(void **save, void *to);
asm(".text\n"
    ".globl kg_emu_switch\n"
    ".hidden kg_emu_switch\n"
    ".type kg_emu_switch,@function\n"
    "kg_emu_switch:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n"
    ".size kg_emu_switch, .-kg_emu_switch\n");
#endif

struct fibre {
    char *map; /* guard, then the stack */
    size_t colour;
#ifdef KG_EMU_SWITCH
    void *sp;
#else
    ucontext_t context;
#endif
    void *fake = nullptr; /* the sanitizer's */
};

/* One warp operation under way: lanes that wait with one mask. */
struct meeting {
    uint32_t mask, arrived;
};

struct warp {
    struct meeting meetings[32];
    uint32_t n_meetings, present, ended;
};

/* Everything of one host thread that runs kernels. */
struct runner {
    struct group group;
    const struct launch *launch = nullptr;
    std::vector<struct thread> threads;
    struct warp warps[MAX_WARPS];
    std::vector<std::unique_ptr<fibre>> fibres;
    std::vector<fibre *> idle;
    fibre main;
    fibre *running = nullptr;
    struct thread *ready[MAX_THREADS];
    uint32_t ready_head, n_ready, n_threads, started, ended, at_barrier;
    bool failed = false;
    shared_memory shared;
    const char *main_stack = nullptr; /* the sanitizer's */
    size_t main_stack_bytes = 0;
    ~runner();
};

static thread_local std::unique_ptr<runner> owned;
static KG_EMU_TLS runner *runners; /* the same, without the cost of a look at `owned` */

static runner *mine()
{
    if (runners == nullptr) {
        owned.reset(new runner);
        owned->threads.resize(MAX_THREADS);
        runners = owned.get();
    }
    return runners;
}

runner::~runner()
{
    for (auto &f : fibres)
        munmap(f->map, GUARD_BYTES + STACK_BYTES);
}

static void fibre_main();

static void fibre_reset(fibre *f)
{
    char *low = f->map + GUARD_BYTES;
    /* tops of stacks at different places of a page: else all of them share a few cache sets */
    size_t bytes = STACK_BYTES - f->colour;

#ifdef KG_EMU_ASAN
    __asan_unpoison_memory_region(low, STACK_BYTES); /* marks of frames that were left */
#endif
#ifdef KG_EMU_SWITCH
    void **top = reinterpret_cast<void **>(low + bytes);

    top -= 1; /* the slot of a return address: fibre_main is entered as if by a call */
    *top = nullptr;
    *--top = reinterpret_cast<void *>(&fibre_main);
    top -= 6;
    memset(top, 0, 6 * sizeof(void *));
    f->sp = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = low;
    f->context.uc_stack.ss_size = bytes;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fibre_main, 0);
#endif
    f->fake = nullptr;
}

static fibre *fibre_take(runner *r)
{
    if (!r->idle.empty()) {
        fibre *f = r->idle.back();

        r->idle.pop_back();
        return f;
    }
    std::unique_ptr<fibre> f(new fibre);
    void *map = mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (map == MAP_FAILED || mprotect(map, GUARD_BYTES, PROT_NONE) != 0) {
        fprintf(stderr, "emu: no memory for stacks\n");
        abort();
    }
    f->map = static_cast<char *>(map);
    f->colour = r->fibres.size() % 60 * 64;
    fibre_reset(f.get());
    r->fibres.push_back(std::move(f));
    return r->fibres.back().get();
}

static void switch_to(runner *r, fibre *to, bool leave_for_good = false)
{
    fibre *from = r->running;

    r->running = to;
#ifdef KG_EMU_ASAN
    const void *low = to == &r->main ? static_cast<const void *>(r->main_stack)
                                     : static_cast<const void *>(to->map + GUARD_BYTES);
    size_t bytes = to == &r->main ? r->main_stack_bytes : STACK_BYTES - to->colour;
    __sanitizer_start_switch_fiber(leave_for_good ? nullptr : &from->fake, low, bytes);
#else
    (void)leave_for_good;
#endif
#ifdef KG_EMU_SWITCH
    kg_emu_switch(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
#ifdef KG_EMU_ASAN
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

/* ---- faults ------------------------------------------------------------------------------- */

bool in_kernel()
{
    return runners != nullptr && runners->running != nullptr && runners->running != &runners->main;
}

std::string where()
{
    char text[200];

    if (!in_kernel())
        return "host";
    uint3 b = self->block->block_idx, t = self->idx;
    snprintf(text, sizeof(text), "kernel %s, block %u,%u,%u, thread %u,%u,%u",
             runners->launch->name, b.x, b.y, b.z, t.x, t.y, t.z);
    return text;
}

void abandon()
{
    runner *r = mine();

    r->failed = true;
    switch_to(r, &r->main, true);
    abort();
}

void fault(const char *fmt, ...)
{
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    keep_fault(cudaErrorLaunchFailure, where() + ": " + text);
    abandon();
}

bool stack_overrun(const void *address)
{
    if (!in_kernel())
        return false;
    const char *a = static_cast<const char *>(address), *map = runners->running->map;

    return a >= map && a < map + GUARD_BYTES;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == nullptr ? path : slash + 1;
}

static const char *what_op(uint32_t op)
{
    return op == OP_SYNC       ? "__syncthreads"
           : op == OP_SYNCWARP ? "__syncwarp"
           : op == OP_SHFL     ? "a shuffle"
                               : "a vote";
}

/* Nobody can go on: some thread waits for one that has ended or waits elsewhere. */
[[noreturn]] static void stuck(runner *r)
{
    struct thread *waiting = nullptr, *other = nullptr;

    for (uint32_t i = 0; i < r->n_threads && waiting == nullptr; i++)
        if (r->threads[i].state == AT_WARP)
            waiting = &r->threads[i];
    for (uint32_t i = 0; i < r->n_threads && waiting == nullptr; i++)
        if (r->threads[i].state == AT_BARRIER)
            waiting = &r->threads[i];
    self = waiting;
    if (waiting->state == AT_WARP) {
        for (uint32_t l = 0; l < 32 && other == nullptr; l++) {
            struct thread *t = &r->threads[waiting->warp * 32 + l];

            if ((waiting->mask >> l & 1) == 0)
                continue;
            if (waiting->warp * 32 + l >= r->n_threads)
                fault("%s at %s:%d: lane %u of mask 0x%08x does not exist", what_op(waiting->op),
                      base_name(waiting->file), waiting->line, l, waiting->mask);
            if (t->state != AT_WARP || t->mask != waiting->mask)
                other = t;
        }
    } else {
        for (uint32_t i = 0; i < r->n_threads && other == nullptr; i++)
            if (r->threads[i].state != AT_BARRIER || r->threads[i].line != waiting->line)
                other = &r->threads[i];
    }
    const char *kind =
        waiting->state == AT_WARP ? "lanes of the mask missing" : "divergent barrier";
    if (other == nullptr)
        fault("%s in %s at %s:%d", kind, what_op(waiting->op), base_name(waiting->file),
              waiting->line);
    if (other->state == ENDED)
        fault("%s: waits in %s at %s:%d, thread %u,%u,%u has ended", kind, what_op(waiting->op),
              base_name(waiting->file), waiting->line, other->idx.x, other->idx.y, other->idx.z);
    fault("%s: waits in %s at %s:%d, thread %u,%u,%u in %s at %s:%d", kind, what_op(waiting->op),
          base_name(waiting->file), waiting->line, other->idx.x, other->idx.y, other->idx.z,
          what_op(other->op), base_name(other->file), other->line);
}

/* ---- scheduling --------------------------------------------------------------------------- */

static struct thread *pop_ready(runner *r)
{
    struct thread *t = r->ready[r->ready_head];

    r->ready_head = (r->ready_head + 1) % MAX_THREADS;
    r->n_ready--;
    return t;
}

static void push_ready(runner *r, struct thread *t)
{
    t->state = READY;
    r->ready[(r->ready_head + r->n_ready++) % MAX_THREADS] = t;
}

/* The running thread waits: goes on with another one, returns when it may go on itself. */
static void wait(runner *r)
{
    struct thread *me = self;

    if (r->n_ready > 0) {
        struct thread *t = pop_ready(r);

        self = t;
        switch_to(r, static_cast<fibre *>(t->fibre));
    } else if (r->started < r->n_threads) {
        switch_to(r, fibre_take(r));
    } else {
        stuck(r);
    }
    self = me;
}

/* Threads one after another on this stack, until one of them waits and another stack goes on. */
static void fibre_main()
{
    runner *r = mine();

#ifdef KG_EMU_ASAN
    const void *low;
    size_t bytes;

    __sanitizer_finish_switch_fiber(nullptr, &low, &bytes);
    if (r->main_stack == nullptr) {
        r->main_stack = static_cast<const char *>(low);
        r->main_stack_bytes = bytes;
    }
#endif
    for (;;) {
        uint32_t n = r->started++;
        struct thread *t = &r->threads[(checks & KG_EMU_BACKWARD) != 0 ? r->n_threads - 1 - n : n];

        t->fibre = r->running;
        self = t;
        r->launch->call(r->launch->args);
        t->state = ENDED;
        r->ended++;
        if (r->n_ready > 0) {
            fibre *me = r->running;

            self = pop_ready(r);
            r->idle.push_back(me);
            switch_to(r, static_cast<fibre *>(self->fibre));
        } else if (r->started == r->n_threads) {
            if (r->ended != r->n_threads)
                stuck(r);
            r->idle.push_back(r->running);
            switch_to(r, &r->main);
        }
    }
}

void barrier(const char *file, int line)
{
    runner *r = mine();
    struct thread *me = self;

    me->op = OP_SYNC;
    me->file = file;
    me->line = line;
    if (++r->at_barrier < r->n_threads) {
        me->state = AT_BARRIER;
        wait(r);
        return;
    }
    for (uint32_t i = 0; i < r->n_threads; i++) {
        struct thread *t = &r->threads[i];

        if (t->line != line || strcmp(t->file, file) != 0) {
            self = t;
            fault("divergent barrier: waits in __syncthreads at %s:%d, thread %u,%u,%u at %s:%d",
                  base_name(t->file), t->line, me->idx.x, me->idx.y, me->idx.z, base_name(file),
                  line);
        }
    }
    r->at_barrier = 0;
    r->shared.barrier();
    for (uint32_t i = 0; i < r->n_threads; i++)
        if (&r->threads[i] != me)
            push_ready(r, &r->threads[i]);
}

static void finish_meeting(runner *r, struct thread *last, uint32_t mask)
{
    struct thread *lanes = &r->threads[last->warp * 32];
    uint32_t votes = 0;

    for (uint32_t l = 0; l < 32; l++) {
        struct thread *t = &lanes[l];

        if ((mask >> l & 1) == 0)
            continue;
        if (t->op != last->op || t->line != last->line) {
            self = t;
            fault("lanes of one mask at different places: %s at %s:%d, lane %u in %s at %s:%d",
                  what_op(t->op), base_name(t->file), t->line, last->lane, what_op(last->op),
                  base_name(last->file), last->line);
        }
        votes |= (t->value != 0 ? 1u : 0u) << l;
    }
    for (uint32_t l = 0; l < 32; l++) {
        struct thread *t = &lanes[l];

        if ((mask >> l & 1) == 0)
            continue;
        if (last->op == OP_SHFL) {
            if ((mask >> t->from & 1) == 0) {
                self = t;
                fault("a shuffle at %s:%d reads lane %d, which mask 0x%08x does not hold",
                      base_name(t->file), t->line, t->from, mask);
            }
            t->result = lanes[t->from].value;
        } else {
            t->result = votes;
        }
    }
    if (last->op == OP_SYNCWARP)
        r->shared.syncwarp(last->warp, mask);
    for (uint32_t l = 0; l < 32; l++)
        if ((mask >> l & 1) != 0 && &lanes[l] != last)
            push_ready(r, &lanes[l]);
}

uint64_t warp_op(enum op op, uint32_t mask, uint64_t value, int from, const char *file, int line)
{
    runner *r = mine();
    struct thread *me = self;
    struct warp *w = &r->warps[me->warp];
    uint32_t m = 0;

    if (op == OP_SYNCWARP) /* __syncwarp() of a block that ends inside a warp */
        mask &= w->present;
    me->op = op;
    me->mask = mask;
    me->file = file;
    me->line = line;
    me->value = value;
    me->from = from;
    if ((mask >> me->lane & 1) == 0)
        fault("%s at %s:%d: mask 0x%08x does not hold the calling lane %u", what_op(op),
              base_name(file), line, mask, me->lane);
    while (m < w->n_meetings && w->meetings[m].mask != mask)
        m++;
    if (m == w->n_meetings) {
        w->meetings[w->n_meetings++] = {mask, 0};
    }
    w->meetings[m].arrived |= 1u << me->lane;
    if (w->meetings[m].arrived != mask) {
        me->state = AT_WARP;
        wait(r);
        return me->result;
    }
    w->meetings[m] = w->meetings[--w->n_meetings];
    finish_meeting(r, me, mask);
    return me->result;
}

/* ---- blocks ------------------------------------------------------------------------------- */

struct array *shared_array(const struct shared_site *site)
{
    runner *r = mine();
    struct array *a = r->shared.find(site);

    if (a == nullptr)
        fault("shared memory: with %s more than %zu bytes", site->name, SHARED_BYTES);
    return a;
}

void shared_access(const struct array *a, uint32_t i, enum access how)
{
    mine()->shared.access(a, i, how);
}

void shared_bounds(const struct array *a, int64_t row, int64_t i)
{
    const struct shared_site *s = a->site;

    if (s->inner == 0)
        fault("shared array %s[%u]: index %lld", s->name, s->n, (long long)i);
    fault("shared array %s[%u][%u]: index [%lld][%lld]", s->name, s->n / s->inner, s->inner,
          (long long)row, (long long)i);
}

static void start_threads(runner *r)
{
    dim3 d = r->group.block_dim;
    uint32_t n = 0;

    for (uint32_t z = 0; z < d.z; z++) {
        for (uint32_t y = 0; y < d.y; y++) {
            for (uint32_t x = 0; x < d.x; x++, n++) {
                struct thread *t = &r->threads[n];

                t->idx = {x, y, z};
                t->flat = n;
                t->lane = n % 32;
                t->warp = n / 32;
                t->block = &r->group;
            }
        }
    }
    r->n_threads = n;
    for (uint32_t w = 0; w * 32 < n; w++)
        r->warps[w].present = n - w * 32 >= 32 ? 0xffffffffu : (1u << (n - w * 32)) - 1;
}

static void run_block(runner *r)
{
    r->ready_head = r->n_ready = r->started = r->ended = r->at_barrier = 0;
    for (uint32_t i = 0; i < r->n_threads; i++)
        r->threads[i].state = READY;
    for (uint32_t w = 0; w * 32 < r->n_threads; w++)
        r->warps[w].n_meetings = 0;
    r->shared.start_block();
    switch_to(r, fibre_take(r));
}

static unsigned long long launches, lose_at; /* lose_at 0: never */

void run(const struct launch *l)
{
    runner *r = mine();
    uint64_t n = uint64_t(l->grid.x) * l->grid.y * l->grid.z;

    if (device_fault() != cudaSuccess)
        return;
    if (__atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED) ==
        __atomic_load_n(&lose_at, __ATOMIC_RELAXED)) {
        keep_fault(cudaErrorLaunchFailure,
                   std::string("kernel ") + l->name + ": the device is lost");
        return;
    }
    catch_faults(); /* a test framework may have taken the signal since */
    open_memory open;

    r->launch = l;
    r->running = &r->main;
    r->failed = false;
    r->group.block_dim = l->block;
    r->group.grid_dim = l->grid;
    start_threads(r);
    r->shared.start_launch(SHARED_BYTES, r->n_threads);
    for (uint64_t i = 0; i < n && !r->failed; i++) {
        uint64_t b = (checks & KG_EMU_BACKWARD) != 0 ? n - 1 - i : i;

        r->group.block_idx = {unsigned(b % l->grid.x), unsigned(b / l->grid.x % l->grid.y),
                              unsigned(b / l->grid.x / l->grid.y)};
        run_block(r);
    }
    if (r->failed) { /* stacks of threads that will never go on */
        r->idle.clear();
        for (auto &f : r->fibres) {
            fibre_reset(f.get());
            r->idle.push_back(f.get());
        }
    }
    r->running = nullptr;
    if (!r->failed && track)
        check_canaries(l->name);
    r->launch = nullptr;
    self = nullptr;
}

int launch_allowed(const char *name, dim3 grid, dim3 block)
{
    uint64_t threads = uint64_t(block.x) * block.y * block.z;

    (void)name;
    if (device_fault() != cudaSuccess) {
        remember(device_fault());
        return 0;
    }
    if (threads == 0 || threads > MAX_THREADS || block.z > 64 || grid.x == 0 || grid.y == 0 ||
        grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
        remember(cudaErrorInvalidConfiguration);
        return 0;
    }
    return 1;
}

} // namespace emu

extern "C" void kg_emu_lose_after(unsigned long long kernels)
{
    unsigned long long at = kernels == 0 ? 0 : kg_emu_launches() + kernels;

    __atomic_store_n(&emu::lose_at, at, __ATOMIC_RELAXED);
}

extern "C" unsigned long long kg_emu_launches(void)
{
    return __atomic_load_n(&emu::launches, __ATOMIC_RELAXED);
}
