/*
 * The emulator of the CUDA run time, seen from tests; C. Device code runs on the host, the threads
 * of a block as fibres, blocks one after another. cuda_runtime.h beside this file is what device
 * sources see; core/docs/gpu.md says what is checked and what is not.
 *
 * A fault in a kernel ends the launch. It is printed on stderr, kept as the device's error like on
 * a GPU (every later call on the device fails), and cudaGetErrorString gives its text.
 *
 * Environment, read once: KG_EMU_DEVICES (1), KG_EMU_MEMORY bytes per device (2 GiB),
 * KG_EMU_CAPABILITY ("9.0"), KG_EMU_CHECKS, letters of the switches below ("rplobt").
 */
#ifndef KEDGE_TESTS_EMU_EMU_H
#define KEDGE_TESTS_EMU_EMU_H

#ifdef __cplusplus
extern "C" {
#endif

enum kg_emu_checks {
    KG_EMU_RACES = 1,    /* r: shared memory: races, reads of what nobody wrote */
    KG_EMU_PROTECT = 2,  /* p: device memory cannot be touched but by kernels and copies; slow */
    KG_EMU_LAZY = 4,     /* l: the stream runs no earlier than somebody waits for it */
    KG_EMU_BACKWARD = 8, /* b: blocks and threads start last first */
    KG_EMU_QUIET = 16,   /* o: faults are kept, not printed */
    KG_EMU_THREADS = 32, /* t: a stream is a thread, so its work may wait for other ranks'; not
                            with p; for streams made from then on */
};

/* For the whole process; not while work is queued. */
void kg_emu_set_checks(unsigned checks);
unsigned kg_emu_checks(void);
/* Text of the first fault since the reset, "" when there is none. */
const char *kg_emu_fault(void);
/* Forgets faults, on all devices. */
void kg_emu_reset(void);
/* Facts for the next kg_cuda_count or open, over those of the environment. devices < 0: no driver.
 */
void kg_emu_set_device(int devices, int major, int minor, unsigned long long memory_bytes);
/* Kernels run since the start of the process. */
unsigned long long kg_emu_launches(void);
/* The kernel so many launches from now fails, and with it the device; 0: none does. */
void kg_emu_lose_after(unsigned long long kernels);
/* Bytes copied from devices to the host since the start of the process. */
unsigned long long kg_emu_brought(void);
/* Bytes allocated on all devices now. */
unsigned long long kg_emu_bytes(void);

/* For a driver that shares devices with the emulator (collectives of their own). */
#define KG_EMU_SHARED __attribute__((visibility("default")))
/* Runs fn on a copy of `bytes` at arg, in the order of a stream of the emulator's; while it is
 * captured, whenever the graph is launched. */
KG_EMU_SHARED void kg_emu_queue(void *stream, void (*fn)(void *arg), const void *arg,
                                unsigned long long bytes);
KG_EMU_SHARED int kg_emu_capturing(void *stream);
/* Memory that somebody else mapped becomes device memory, until it is disowned. */
KG_EMU_SHARED void kg_emu_adopt(void *p, unsigned long long bytes);
KG_EMU_SHARED void kg_emu_disown(void *p);

#ifdef __cplusplus
}
#endif

#endif
