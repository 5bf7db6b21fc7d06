/* Ranks whose memory the host cannot touch: cases work on copies of it in host memory, which are
 * carried to the device before each collective and back after it. One rank a thread. */
#ifndef KEDGE_TESTS_CONFORMANCE_COMM_MIRROR_H
#define KEDGE_TESTS_CONFORMANCE_COMM_MIRROR_H

#include <kedge/comm.h>

/*
 * Loads the driver (NULL: the machine's) and returns the operations of `real` with copies, to be
 * used by one group at a time; they live as long as the program. NULL with a reason in *err when
 * there is no driver, or when it has fewer than `world` devices (rank i has device i).
 */
const struct kg_comm_ops *mirror_ops(const struct kg_comm_ops *real, const char *driver,
                                     uint32_t world, struct kg_error *err);

#endif
