/* What the tests of faults over the fake devices share: a plugin, its fake, a run and what came of
 * it. */
#ifndef KEDGE_TESTS_CONFORMANCE_COMM_FAULTS_H
#define KEDGE_TESTS_CONFORMANCE_COMM_FAULTS_H

#include "fake_plan.h"
#include "rig.h"

#include "base/clock.h"

#define SOON_NS (5 * KG_NS_PER_S) /* far from any deadline of a hang, near for a busy machine */

struct faults {
    const struct kg_plugin *plugin;
    const char *fake_path;
    void *fake; /* the plan of the fake */
    struct fake_driver_plan *driver;
    struct {
        int rc;
        struct kg_error err;
    } said[RIG_WORLD]; /* what each rank was refused with in the last run; rc 0: it was not */
};
extern struct faults faults;

/* Command line: PLUGIN FAKE. plan: the name the fake exports its plan by. 0, or 2 with a line on
 * stderr. */
int faults_load(int argc, char **argv, const char *plan);
/* The driver's plan as at the start. */
void faults_reset(void);
/* Nothing the fakes share is held by anybody. */
void faults_nothing_is_held(void);

struct faults_run {
    uint32_t world;
    rig_case *run;
    uint64_t timeout_ns; /* of a collective */
    struct kg_log *log;  /* where the plugin writes; NULL: nowhere */
    uint32_t absent;     /* 1 + a rank that never comes; 0: all come */
    char *const *words;  /* [n] options after those that name the fake */
    int n;
};
/* Runs a case with `fake_options[n_fake]` and its own; fails the test when a rank found a fault. */
void faults_run(const struct faults_run *run, char *const *fake_options, int n_fake);

/* Every rank of the last run was refused with this code and these words. */
void faults_refused(uint32_t world, int rc, const char *words);

/* --- cases and what they use --- */

void open_only(struct rank *r);
/* One stuck kernel; another rank's thread aborts. */
void an_abort_ends_what_hangs(struct rank *r);
/* 4096 bytes of symmetric memory, sealed and then zeroed; NULL with a fault noted. */
float *sealed(struct rank *r);
/* A stream of the fake, NULL on failure; its end. */
void *new_stream(void);
void end_stream(void *stream);

#endif
