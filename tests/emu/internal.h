/* What the emulator's own files share. */
#ifndef KEDGE_TESTS_EMU_INTERNAL_H
#define KEDGE_TESTS_EMU_INTERNAL_H

#include "tests/emu/cuda_runtime.h"
#include "tests/emu/emu.h"

#include <string>

namespace emu
{

extern unsigned checks; /* enum kg_emu_checks */

/* -1: none */
int current_device();
/* Keeps the first text as the device's fault and prints it. */
void keep_fault(cudaError_t code, const std::string &text);
/* cudaSuccess, or the fault of the current device. */
cudaError_t device_fault();
/* Keeps e for cudaGetLastError and returns it. */
cudaError_t remember(cudaError_t e);
/* Runs what waits in lazy streams. */
void run_all_streams();

/* True while a kernel runs on this host thread. */
bool in_kernel();
/* "kernel (block 0,0,0 thread 3,0,0)" of the running thread. */
std::string where();
/* Ends the running launch; the fault is kept already. */
[[noreturn]] void abandon();
/* Address lies in the guard of a fibre's stack. */
bool stack_overrun(const void *address);
/* Takes SIGSEGV, on a stack of its own for this host thread. */
void catch_faults();

/* Memory: opens device memory for a kernel or copy, and closes it again. */
struct open_memory {
    open_memory();
    ~open_memory();
};
/* Bytes past the end of an allocation that somebody wrote are a fault. */
void check_canaries(const char *after);

} // namespace emu

#endif
