#include "hooks.h"

#include "base/clock.h"
#include "base/ring.h"
#include "policy/policy.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static void copy_name(char *to, size_t size, const char *from)
{
    (void)snprintf(to, size, "%s", from);
}

/* --- loop thread --- */

static bool has_arrive(void *ctx)
{
    const struct kg_hooks *h = ctx;

    return kg_policy_has(h->policy, KG_HOOK_ARRIVE);
}

static void arrive(void *ctx, const struct kg_arrive_view *v, struct kg_arrive_answer *a)
{
    struct kg_hooks *h = ctx;
    const struct kg_pool_bytes *b = &v->stats->bytes;
    const struct kg_policy_arrive req = {.tenant = v->tenant,
                                         .user = v->user,
                                         .arm = v->arm,
                                         .endpoint = v->chat ? "chat" : "completions",
                                         .stream = v->stream,
                                         .echo = v->echo,
                                         .n_prompts = v->n_prompts,
                                         .n = v->n,
                                         .prompt_tokens = v->prompt_tokens,
                                         .max_tokens = v->max_tokens,
                                         .priority = v->priority};
    const struct kg_policy_load load = {.now_ns = v->now_ns,
                                        .sequences = v->sequences,
                                        .max_sequences = v->max_sequences,
                                        .running = v->stats->n_running,
                                        .waiting = v->stats->n_waiting,
                                        .arena_bytes = b->arena,
                                        .live_bytes = b->live[KG_PAGE] + b->live[KG_STATE],
                                        .cached_bytes = b->cached[KG_PAGE] + b->cached[KG_STATE],
                                        .promised_bytes = b->promised};
    struct kg_policy_arrived out;

    kg_policy_arrive(h->policy, &req, &load, &out);
    *a = (struct kg_arrive_answer){.status = (int)out.reject,
                                   .has_priority = out.has_priority,
                                   .priority = out.priority,
                                   .max_tokens = out.max_tokens};
    copy_name(a->reason, sizeof(a->reason), out.reason);
    copy_name(a->tenant, sizeof(a->tenant), out.tenant);
    copy_name(a->class_name, sizeof(a->class_name), out.class_name);
}

static int reload(void *ctx, struct kg_error *err)
{
    struct kg_hooks *h = ctx;

    return kg_policy_reload(h->policy, err);
}

/* --- engine thread --- */

static int step(void *ctx)
{
    struct kg_hooks *h = ctx;

    return kg_policy_step(h->policy);
}

static struct kg_policy_admit request_of(const struct kg_admit_view *v)
{
    const struct kg_pool_bytes *b = &v->bytes;
    struct kg_policy_admit r = {.tenant = v->tenant,
                                .class_name = v->class_name,
                                .arm = v->arm,
                                .now_ns = v->now_ns,
                                .waited_ns = v->now_ns - v->arrival_ns,
                                .priority = v->priority,
                                .prompt_tokens = v->n_prompt,
                                .max_tokens = v->max_tokens,
                                .hit_page_tokens = v->hit_page_tokens,
                                .hit_state_tokens = v->hit_state_tokens,
                                .arena_bytes = b->arena,
                                .free_bytes = b->holes + b->gap,
                                .promised_bytes = b->promised,
                                .waiting = v->n_waiting,
                                .running = v->n_running,
                                .max_running = v->max_running,
                                .step_tokens = v->step_tokens};

    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        r.need_units[k] = v->need[k];
        r.need_bytes[k] = v->need[k] * v->unit_bytes[k];
        r.live_bytes[k] = b->live[k];
        r.cached_bytes[k] = b->cached[k];
        r.live_units[k] = v->live[k];
        r.cached_units[k] = v->cached[k];
    }
    return r;
}

static int admit(void *ctx, const struct kg_admit_view *v, struct kg_admit_answer *a)
{
    static const uint32_t verdicts[] = {[KG_VERDICT_ADMIT] = KG_ADMIT_YES,
                                        [KG_VERDICT_DEFER] = KG_ADMIT_LATER,
                                        [KG_VERDICT_REJECT] = KG_ADMIT_NEVER};
    static const uint32_t lifetimes[] = {[KG_POLICY_LIFETIME_PROMPT] = KG_LIFETIME_PROMPT,
                                         [KG_POLICY_LIFETIME_MAX] = KG_LIFETIME_MAX,
                                         [KG_POLICY_LIFETIME_EXPECTED] = KG_LIFETIME_EXPECTED};
    struct kg_hooks *h = ctx;
    struct kg_policy_admitted out = {0};

    if (!kg_policy_has(h->policy, KG_HOOK_ADMIT))
        return KG_ENOENT;
    const struct kg_policy_admit req = request_of(v);
    bool spent = kg_policy_spent(h->policy);
    if (!kg_policy_admit(h->policy, &req, &out))
        return spent ? KG_EAGAIN : KG_ENOENT;
    a->verdict = verdicts[out.verdict];
    if (out.lifetime != KG_POLICY_LIFETIME_KEEP)
        a->lifetime = lifetimes[out.lifetime];
    a->defer_ns = out.defer_ms * KG_NS_PER_MS;
    copy_name(a->text, sizeof(a->text), out.reason);
    return KG_OK;
}

static bool has_admit(void *ctx)
{
    const struct kg_hooks *h = ctx;

    return kg_policy_has(h->policy, KG_HOOK_ADMIT);
}

static bool has_window(void *ctx)
{
    const struct kg_hooks *h = ctx;

    return kg_policy_has(h->policy, KG_HOOK_WINDOW);
}

static int window(void *ctx, const struct kg_window_view *v, struct kg_window_answer *a)
{
    struct kg_hooks *h = ctx;
    const struct kg_policy_class c = {.tenant = v->tenant,
                                      .class_name = v->class_name,
                                      .arm = v->arm,
                                      .now_ns = v->now_ns,
                                      .block = v->block,
                                      .sequences = v->n_seqs,
                                      .batch = v->batch,
                                      .context_tokens = v->context_tokens,
                                      .verified = v->verified,
                                      .accepted = v->accepted};
    struct kg_policy_window out = {0};
    bool spent = kg_policy_spent(h->policy);

    if (!kg_policy_window(h->policy, &c, &out))
        return spent ? KG_EAGAIN : KG_ENOENT;
    a->rule = out.has_cap ? KG_WINDOW_CAP : out.has_set ? KG_WINDOW_SET : KG_WINDOW_FREE;
    a->length = out.length;
    return KG_OK;
}

/* --- life --- */

#define LINES_BYTES 16384

static void log_in_step(void *ctx, const char *text, bool failure)
{
    struct kg_hooks *h = ctx;

    (void)failure;
    if (h->lines != NULL) /* full: more came than anybody wants to read */
        (void)kg_ring_put(h->lines, text, strlen(text) + 1);
    else
        kg_log_text(h->log, KG_LOG_INFO, "policy", "kg.log", text);
}

static void write_lines(void *ctx)
{
    struct kg_hooks *h = ctx;
    const char *text;
    size_t n;

    while (h->lines != NULL && (text = kg_ring_peek(h->lines, &n)) != NULL) {
        kg_log_text(h->log, KG_LOG_INFO, "policy", "kg.log", text);
        kg_ring_consume(h->lines);
    }
}

int kg_hooks_defer_lines(struct kg_hooks *h, struct kg_error *err)
{
    int rc = kg_ring_create(LINES_BYTES, &h->lines);

    return rc == KG_OK ? rc : kg_fail(err, rc, "no room for the lines of the policy script");
}

static void log_line(void *ctx, const char *text, bool failure)
{
    struct kg_hooks *h = ctx;

    if (failure)
        kg_log_line(h->log, KG_LOG_WARN, "policy", "the policy script failed", "reason=\"%s\"",
                    text);
    else
        kg_log_text(h->log, KG_LOG_INFO, "policy", "kg.log", text);
}

int kg_hooks_open(const struct kg_conf *conf, bool timed, struct kg_log *log,
                  struct kg_metrics *metrics, struct kg_hooks **hooks, struct kg_error *err)
{
    struct kg_error why = {0};

    *hooks = NULL;
    if (conf->lua_script[0] == '\0')
        return KG_OK;
    struct kg_hooks *h = calloc(1, sizeof(*h));
    if (h == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    /* Names come from clients: which of them share a place must not be known. Simulated runs,
     * though, are to be equal. */
    uint64_t seed = 0;
    if (timed && getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed))
        seed = kg_now_ns();
    const struct kg_policy_conf policy = {
        .path = conf->lua_script,
        .instructions = conf->lua_instructions,
        .arrive_ns = timed ? conf->lua_arrive_us * (KG_NS_PER_MS / 1000) : 0,
        .step_ns = timed ? conf->lua_step_us * (KG_NS_PER_MS / 1000) : 0,
        .admit_on_error = conf->lua_on_error == 1,
        .seed = seed,
        .log = log_line,
        .log_in_step = log_in_step,
        .log_ctx = h};
    h->log = log;
    h->engine = (struct kg_engine_policy){h, step, admit, has_admit, has_window, window};
    h->serve = (struct kg_serve_policy){h, has_arrive, arrive, reload, write_lines};
    int rc = kg_policy_create(&policy, &h->policy, &why);
    if (rc == KG_OK)
        rc = kg_policy_metrics(h->policy, metrics, &why);
    if (rc != KG_OK) {
        kg_hooks_close(h);
        return kg_fail(err, rc == KG_ENOMEM ? rc : KG_ECONFIG, "[lua] script = %s: %s",
                       conf->lua_script, why.text);
    }
    *hooks = h;
    return KG_OK;
}

void kg_hooks_list(const struct kg_hooks *h, char *text, size_t size)
{
    static const char *const names[KG_N_HOOKS] = {"arrive", "admit", "window"};
    size_t n = 0;

    (void)snprintf(text, size, "none");
    for (int i = 0; i < KG_N_HOOKS; i++) {
        if (kg_policy_has(h->policy, (enum kg_policy_hook)i) && n < size)
            n += (size_t)snprintf(text + n, size - n, "%s%s", n > 0 ? ", " : "", names[i]);
    }
}

void kg_hooks_close(struct kg_hooks *h)
{
    if (h == NULL)
        return;
    write_lines(h);
    kg_policy_destroy(h->policy);
    kg_ring_destroy(h->lines);
    free(h);
}
