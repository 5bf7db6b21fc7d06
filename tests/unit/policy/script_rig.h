/* What tests of the policy share: a policy from a script's text, and calls with usual requests. */
#ifndef KEDGE_TESTS_UNIT_POLICY_SCRIPT_RIG_H
#define KEDGE_TESTS_UNIT_POLICY_SCRIPT_RIG_H

#include "policy/policy.h"

struct rig {
    char dir[64], path[96];
    struct kg_policy *policy;
    struct kg_error err;
    char log[4][600]; /* last lines, newest first */
    unsigned n_log;
};

/* Standard budgets without wall time: tests do not depend on the machine's speed. */
struct kg_policy_conf rig_conf(struct rig *r);
/* Opens a policy of this text; `conf` NULL for rig_conf. Returns kg_policy_create's result. */
int rig_open(struct rig *r, const char *script, const struct kg_policy_conf *conf);
/* The same for bytes, and for a file. */
int rig_open_bytes(struct rig *r, const char *script, size_t n, const struct kg_policy_conf *conf);
int rig_open_file(struct rig *r, const char *path);
void rig_write(struct rig *r, const char *script);
void rig_close(struct rig *r);

/* Usual requests; change what a case is about. */
struct kg_policy_arrive rig_request(void);
struct kg_policy_load rig_load(uint64_t now_ns);
struct kg_policy_admit rig_admit(void);
struct kg_policy_class rig_class(void);

#endif
