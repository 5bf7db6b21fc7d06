#include "tests/emu/shadow.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace emu
{

void shared_memory::start_launch(size_t limit_bytes, uint32_t n_threads)
{
    limit = limit_bytes;
    bytes.resize(limit + 64);
    if (track && clock.size() < n_threads) {
        clock.resize(n_threads);
        seen.resize(size_t(n_threads) * 32);
    }
}

void shared_memory::start_block()
{
    used = 0;
    n = 0;
    epoch++;
}

struct array *shared_memory::find(const struct shared_site *site)
{
    for (uint32_t i = 0; i < n; i++)
        if (slots[i].array.site == site)
            return &slots[i].array;
    size_t at = (used + 15) / 16 * 16, size = size_t(site->n) * site->bytes;

    if (n == MAX_ARRAYS || at + size > limit)
        return nullptr;
    struct slot *s = &slots[n++];
    char *base = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;

    used = at + size;
    s->array.site = site;
    s->array.data = base + at;
    if (track) {
        memset(s->array.data, 0xff, size);
        s->shadows.assign(site->n, shadow());
        s->array.shadow = s->shadows.data();
    } else {
        s->array.shadow = nullptr;
    }
    return &s->array;
}

void shared_memory::barrier()
{
    epoch++;
}

void shared_memory::syncwarp(uint32_t warp, uint32_t mask)
{
    uint32_t first = warp * 32, known[32] = {0};

    if (!track)
        return;
    for (uint32_t l = 0; l < 32; l++)
        if ((mask >> l & 1) != 0)
            for (uint32_t m = 0; m < 32; m++)
                known[m] = std::max(known[m], seen[size_t(first + l) * 32 + m]);
    for (uint32_t l = 0; l < 32; l++)
        if ((mask >> l & 1) != 0)
            known[l] = ++clock[first + l];
    for (uint32_t l = 0; l < 32; l++)
        if ((mask >> l & 1) != 0)
            memcpy(&seen[size_t(first + l) * 32], known, sizeof(known));
}

/* What `other` did at `time`, before the last barrier of both, is known to `me`. */
bool shared_memory::ordered(uint32_t me, uint32_t other, uint32_t time) const
{
    return me == other || (me / 32 == other / 32 && seen[size_t(me) * 32 + other % 32] > time);
}

static void race(const struct array *a, uint32_t i, const char *now, uint32_t other,
                 const char *before)
{
    const struct shared_site *s = a->site;
    char index[48];

    if (s->inner == 0)
        snprintf(index, sizeof(index), "[%u]", i);
    else
        snprintf(index, sizeof(index), "[%u][%u]", i / s->inner, i % s->inner);
    fault("race on shared array %s, element %s: %s, thread number %u of the block %s it since the "
          "last barrier",
          s->name, index, now, other, before);
}

void shared_memory::access(const struct array *a, uint32_t i, enum access how)
{
    struct shadow *s = &a->shadow[i];
    uint32_t me = self->flat, now = clock[me];

    if (s->epoch != epoch) {
        bool ever = s->ever_written;

        *s = shadow();
        s->ever_written = ever;
        s->epoch = epoch;
    }
    if (how != WRITE && !s->ever_written)
        fault("shared array %s, element %u is read before anybody in the block wrote it", a->site->name,
              i);
    if (s->written && !(how == ATOMIC && s->atomic) && !ordered(me, s->writer, s->write_time))
        race(a, i, how == READ ? "reads" : "writes", s->writer, "wrote");
    if (how == READ) {
        if (!s->read[0] || s->reader[0] / 32 == me / 32) {
            if (s->read[0] && s->reader[0] != me) {
                s->reader[1] = s->reader[0];
                s->read_time[1] = s->read_time[0];
                s->read[1] = true;
            }
            s->reader[0] = uint16_t(me);
            s->read_time[0] = now;
            s->read[0] = true;
        } else {
            s->other_read = true;
            s->other_reader = uint16_t(me);
        }
        return;
    }
    for (int r = 0; r < 2; r++)
        if (s->read[r] && !ordered(me, s->reader[r], s->read_time[r]))
            race(a, i, "writes", s->reader[r], "read");
    if (s->other_read && !ordered(me, s->other_reader, UINT32_MAX))
        race(a, i, "writes", s->other_reader, "read");
    s->writer = uint16_t(me);
    s->write_time = now;
    s->written = true;
    s->ever_written = true;
    s->atomic = how == ATOMIC;
}

} // namespace emu
