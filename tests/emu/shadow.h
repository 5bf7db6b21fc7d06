/* Shared memory of the running block, and who touched what of it since the last barrier. */
#ifndef KEDGE_TESTS_EMU_SHADOW_H
#define KEDGE_TESTS_EMU_SHADOW_H

#include "tests/emu/cuda_runtime.h"

#include <memory>
#include <vector>

namespace emu
{

/*
 * Of one element, since the last barrier (`epoch`): the last writer, the last two readers of one
 * warp, and whether a second warp read. Two readers are enough to blame a later writer: one of them
 * is not the writer. Times are clocks of the thread, counted in __syncwarp.
 */
struct shadow {
    uint32_t epoch, write_time, read_time[2];
    uint16_t writer, reader[2], other_reader;
    bool ever_written, written, atomic, read[2], other_read;
};

class shared_memory
{
    struct slot {
        struct array array;
        std::vector<struct shadow> shadows;
    };
    static const uint32_t MAX_ARRAYS = 32;
    std::vector<char> bytes;
    size_t used = 0, limit = 0;
    struct slot slots[MAX_ARRAYS];
    uint32_t n = 0, epoch = 0;
    std::vector<uint32_t> clock; /* of each thread */
    std::vector<uint32_t> seen;  /* [thread][lane]: what it knows of its warp's clocks */

    bool ordered(uint32_t me, uint32_t other, uint32_t time) const;

  public:
    void start_launch(size_t limit_bytes, uint32_t n_threads);
    void start_block();
    /* NULL: no room. */
    struct array *find(const struct shared_site *site);
    void barrier();
    void syncwarp(uint32_t warp, uint32_t mask);
    void access(const struct array *a, uint32_t i, enum access how);
};

} // namespace emu

#endif
