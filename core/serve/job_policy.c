/* Who a request belongs to, and what the policy says to it. */
#include "serve/job.h"
#include "serve/split.h"

#include <string.h>

/* The tenant: the configured header, or else the body's user. */
static void name_tenant(struct kg_job *job)
{
    const char *header = job->serve->parts.conf->tenant_header;

    if (header[0] == '\0') {
        memcpy(job->tenant, job->task.call.user, sizeof(job->tenant));
        return;
    }
    struct kg_span v = kg_http_header_get(kg_http_req_head(job->req), header);
    if (v.p != NULL)
        kg_call_name(v.p, v.n, job->tenant);
}

static struct kg_arrive_view view_of(const struct kg_job *job, const struct kg_engine_stats *stats)
{
    const struct kg_serve *s = job->serve;
    const struct kg_call *call = &job->task.call;
    struct kg_arrive_view v = {
        .tenant = job->tenant,
        .user = call->user,
        .arm = kg_split_name(job),
        .chat = call->endpoint == KG_EP_CHAT,
        .stream = call->stream,
        .echo = call->echo,
        .n_prompts = call->n_prompts,
        .n = call->n,
        .priority = job->priority,
        .now_ns = kg_engine_now(s->parts.engine),
        .sequences = s->n_live,
        .max_sequences = s->n_slots,
        .stats = stats,
    };

    for (uint32_t i = 0; i < call->n_prompts; i++) {
        v.prompt_tokens += call->prompts[i].ids.n;
        if (call->prompts[i].max_tokens > v.max_tokens)
            v.max_tokens = call->prompts[i].max_tokens;
    }
    return v;
}

int kg_job_policy(struct kg_job *job, struct kg_api_error *err)
{
    const struct kg_serve_policy *p = job->serve->parts.policy;
    struct kg_call *call = &job->task.call;
    struct kg_arrive_answer a = {0};
    struct kg_engine_stats stats;

    name_tenant(job);
    int rc = kg_split_choose(job, err);
    if (rc != KG_OK)
        return rc;
    if (p == NULL || !p->has_arrive(p->ctx))
        return KG_OK;
    kg_engine_stats(job->serve->parts.engine, &stats);
    struct kg_arrive_view view = view_of(job, &stats);
    p->arrive(p->ctx, &view, &a);
    if (a.status != 0)
        return kg_api_fail(err, a.status, KG_POLICY_REJECTED, "", "%s", a.reason);
    if (a.tenant[0] != '\0')
        memcpy(job->tenant, a.tenant, sizeof(job->tenant));
    if (a.class_name[0] != '\0')
        memcpy(job->class_name, a.class_name, sizeof(job->class_name));
    if (a.has_priority)
        job->priority = a.priority;
    for (uint32_t i = 0; a.max_tokens != 0 && i < call->n_prompts; i++) {
        if (call->prompts[i].max_tokens > a.max_tokens)
            call->prompts[i].max_tokens = a.max_tokens;
    }
    return KG_OK;
}
