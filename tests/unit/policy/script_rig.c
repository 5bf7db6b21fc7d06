#include "script_rig.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void take_line(void *ctx, const char *text, bool failure)
{
    struct rig *r = ctx;

    memmove(r->log[1], r->log[0], sizeof(r->log) - sizeof(r->log[0]));
    (void)snprintf(r->log[0], sizeof(r->log[0]), "%s%s", failure ? "failure " : "", text);
    r->n_log++;
}

struct kg_policy_conf rig_conf(struct rig *r)
{
    return (struct kg_policy_conf){
        .path = r->path, .instructions = 100000, .log = take_line, .log_ctx = r};
}

static void make_file(struct rig *r, const char *text, size_t n)
{
    FILE *f = fopen(r->path, "wb");

    if (f == NULL || fwrite(text, 1, n, f) != n || fclose(f) != 0)
        abort();
}

void rig_write(struct rig *r, const char *script)
{
    make_file(r, script, strlen(script));
}

int rig_open_bytes(struct rig *r, const char *script, size_t n, const struct kg_policy_conf *conf)
{
    struct kg_policy_conf own;

    *r = (struct rig){.dir = "/tmp/kedge-policy-XXXXXX"};
    if (mkdtemp(r->dir) == NULL)
        abort();
    (void)snprintf(r->path, sizeof(r->path), "%s/policy.lua", r->dir);
    make_file(r, script, n);
    own = rig_conf(r);
    if (conf != NULL) {
        own = *conf;
        own.path = r->path;
        own.log = take_line;
        own.log_ctx = r;
    }
    return kg_policy_create(&own, &r->policy, &r->err);
}

int rig_open(struct rig *r, const char *script, const struct kg_policy_conf *conf)
{
    return rig_open_bytes(r, script, strlen(script), conf);
}

int rig_open_file(struct rig *r, const char *path)
{
    static char text[KG_POLICY_SCRIPT_BYTES];
    FILE *f = fopen(path, "rb");

    if (f == NULL)
        return KG_ENOENT;
    size_t n = fread(text, 1, sizeof(text), f);
    (void)fclose(f);
    return rig_open_bytes(r, text, n, NULL);
}

void rig_close(struct rig *r)
{
    kg_policy_destroy(r->policy);
    r->policy = NULL;
    (void)unlink(r->path);
    (void)rmdir(r->dir);
}

struct kg_policy_arrive rig_request(void)
{
    return (struct kg_policy_arrive){.tenant = "acme",
                                     .user = "ann",
                                     .arm = "blue",
                                     .endpoint = "chat",
                                     .n_prompts = 1,
                                     .n = 1,
                                     .prompt_tokens = 100,
                                     .max_tokens = 50};
}

struct kg_policy_load rig_load(uint64_t now_ns)
{
    return (struct kg_policy_load){.now_ns = now_ns,
                                   .sequences = 3,
                                   .max_sequences = 1024,
                                   .running = 2,
                                   .waiting = 1,
                                   .arena_bytes = 1000000,
                                   .live_bytes = 400000,
                                   .cached_bytes = 100000,
                                   .promised_bytes = 50000};
}

struct kg_policy_admit rig_admit(void)
{
    return (struct kg_policy_admit){.tenant = "acme",
                                    .class_name = "",
                                    .arm = "green",
                                    .now_ns = KG_NS_PER_S,
                                    .waited_ns = 7 * KG_NS_PER_MS,
                                    .priority = 2,
                                    .prompt_tokens = 100,
                                    .max_tokens = 50,
                                    .need_units = {3, 1},
                                    .need_bytes = {3000, 5000},
                                    .arena_bytes = 1000000,
                                    .free_bytes = 500000,
                                    .promised_bytes = 9000,
                                    .live_bytes = {300000, 100000},
                                    .cached_bytes = {60000, 40000},
                                    .live_units = {300, 20},
                                    .cached_units = {60, 8},
                                    .waiting = 4,
                                    .running = 6,
                                    .max_running = 64,
                                    .step_tokens = 512};
}

struct kg_policy_class rig_class(void)
{
    return (struct kg_policy_class){.tenant = "acme",
                                    .class_name = "chat",
                                    .arm = "red",
                                    .now_ns = KG_NS_PER_S,
                                    .block = 7,
                                    .sequences = 3,
                                    .batch = 12,
                                    .context_tokens = 4096,
                                    .verified = 200,
                                    .accepted = 120};
}
