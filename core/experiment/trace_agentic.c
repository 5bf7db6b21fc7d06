/*
 * Sessions of coding agents. A session is read whole, kept or dropped whole, and becomes a chain:
 * each request of an agent follows the one before it after the client's think time. A sub-agent's
 * chain hangs on the main agent's last request before it was started. Block ids belong to a
 * session.
 */
#include "experiment/trace_int.h"

#include <stdlib.h>
#include <string.h>

#define MAX_AGENTS 256
#define MAX_SESSION ((UINT64_C(1) << 22) - 1)
#define ID_BITS 40
#define NS_PER_MS 1e6

/* The last request of an agent in the session being read. */
struct agent {
    uint32_t last;          /* request, KG_NONE before the first */
    uint64_t end_ns;        /* its recorded end, from the agent's start */
    uint32_t parent;        /* sub-agent: request its first one follows */
    uint64_t parent_gap_ns; /* and how long after that one's end it began */
    uint64_t begin_ns;      /* recorded start, from the session's */
};

struct session {
    uint64_t number;
    uint32_t first;   /* request in the trace */
    uint32_t n_taken; /* sessions before this one */
    int open, bad;    /* bad: a prompt was over max_input */
    int begun;        /* a session line was seen */
    struct agent agents[MAX_AGENTS];
};

/* Takes a session's requests off the trace again. */
static void drop_session(struct kg_reader *r, const struct session *s)
{
    struct kg_trace *t = r->t;
    uint32_t n = t->n - s->first;

    t->n_dropped += n;
    if (n > 0) {
        t->n_pieces = t->reqs[s->first].pieces_at;
        t->n_text = t->reqs[s->first].tenant_at; /* its first text */
        t->n = s->first;
        /* The table still holds the numbers that were taken off. Names of earlier sessions are
         * forgotten with them: nothing asks for them here. */
        free(r->names.slots);
        r->names = (struct kg_names){0};
    }
}

static void end_session(struct kg_reader *r, struct session *s)
{
    if (s->open && s->bad) {
        drop_session(r, s);
    } else if (s->open && r->t->n > s->first) {
        s->n_taken++;
    }
    s->open = 0;
}

static int start_session(struct kg_reader *r, struct session *s, const json_t *o)
{
    int rc = kg_tj_need(r, o, "session", 0, MAX_SESSION, &s->number);

    end_session(r, s);
    s->first = r->t->n;
    s->open = s->begun = 1;
    s->bad = 0;
    for (uint32_t i = 0; i < MAX_AGENTS; i++) {
        s->agents[i] = (struct agent){.last = KG_NONE, .parent = KG_NONE};
    }
    return rc;
}

/* The agent a line speaks of, in a session that began; NULL after an error. */
static struct agent *find_agent(struct kg_reader *r, struct session *s, const json_t *o,
                                const char *key, uint64_t *number)
{
    uint64_t session = 0;

    *number = 0;
    if (kg_tj_need(r, o, "s", 0, MAX_SESSION, &session) != KG_OK ||
        kg_tj_u64(r, o, key, 1, MAX_AGENTS - 1, number) < 0) {
        return NULL;
    }
    if (!s->begun || session != s->number) {
        (void)KG_BAD(r, "s: session %llu was not begun", (unsigned long long)session);
        return NULL;
    }
    return &s->agents[*number];
}

static int start_agent(struct kg_reader *r, struct session *s, const json_t *o)
{
    uint64_t number, t_ns = 0;
    const struct agent *main_agent = &s->agents[0];
    struct agent *a = find_agent(r, s, o, "spawn", &number);

    if (a == NULL) {
        return KG_EINVAL;
    }
    int rc = kg_tj_time(r, o, "t", NS_PER_MS, &t_ns);
    if (rc < 0) {
        return rc;
    }
    a->parent = main_agent->last;
    a->begin_ns = t_ns;
    a->parent_gap_ns = t_ns > main_agent->end_ns ? t_ns - main_agent->end_ns : 0;
    return KG_OK;
}

/* Runs of ids "first, count, ..." into the prompt, its rest behind them. */
static int read_runs(struct kg_reader *r, struct session *s, struct kg_trace_req *q,
                     const json_t *o, uint64_t length, uint32_t block)
{
    const json_t *h = NULL;
    uint64_t blocks = 0;
    int rc = kg_tj_array(r, o, "h", &h);

    if (rc <= 0 || json_array_size(h) % 2 != 0) {
        return rc < 0 ? rc : KG_BAD(r, "h: %s", rc == 0 ? "missing" : "an odd number of entries");
    }
    for (size_t i = 0; i < json_array_size(h); i += 2) {
        const json_t *first = json_array_get(h, i), *count = json_array_get(h, i + 1);
        json_int_t id = json_integer_value(first), n = json_integer_value(count);
        if (!json_is_integer(first) || !json_is_integer(count) || id < 0 || n < 1 ||
            n > KG_TRACE_MAX_TOKENS || id >= (INT64_C(1) << ID_BITS) - KG_TRACE_MAX_TOKENS) {
            return KG_BAD(r, "h[%zu]: no run of block ids", i);
        }
        uint64_t key = (s->number + 1) << ID_BITS | (uint64_t)id;
        blocks += (uint64_t)n;
        if (blocks > length / block) {
            break;
        }
        rc = kg_trace_blocks(r, q, key, (uint64_t)n);
        if (rc != KG_OK) {
            return rc;
        }
    }
    if (blocks != length / block) {
        return KG_BAD(r, "h: %llu blocks, %llu tokens have %llu full ones of %u",
                      (unsigned long long)blocks, (unsigned long long)length,
                      (unsigned long long)(length / block), block);
    }
    q->n_named = (uint32_t)blocks * q->block;
    return kg_trace_piece(r, q, KG_ID_TAIL(r->t->n), q->n_prompt - q->n_named);
}

/* Start of the session being read. */
static uint64_t start_of(const struct kg_reader *r, const struct session *s)
{
    uint64_t n = r->conf->n_sessions;

    return n > 0 ? (uint64_t)((double)r->conf->spread_ns * s->n_taken / (double)n) : 0;
}

/* Arrival: the first request of a session at its start, others behind the one before. Returns 0
 * when it was recorded behind the horizon. */
static int place(struct kg_reader *r, struct session *s, struct agent *a, struct kg_trace_req *q,
                 const json_t *o)
{
    uint64_t t_ns = 0, svc_ns = 0, think_ns = 0;
    int has_t = kg_tj_time(r, o, "t", NS_PER_MS, &t_ns);
    int has_svc = kg_tj_time(r, o, "svc", NS_PER_MS, &svc_ns);
    int has_think = kg_tj_time(r, o, "think", NS_PER_MS, &think_ns);

    if (has_t < 0 || has_svc < 0 || has_think < 0) {
        return KG_EINVAL;
    }
    if (r->conf->horizon_ns != 0 && start_of(r, s) + a->begin_ns + t_ns > r->conf->horizon_ns) {
        return 0;
    }
    if (a->last != KG_NONE) {
        q->after = a->last;
        q->delay_ns = has_think ? think_ns : t_ns > a->end_ns ? t_ns - a->end_ns : 0;
    } else if (a->parent != KG_NONE) {
        q->after = a->parent;
        q->delay_ns = a->parent_gap_ns;
    } else {
        q->arrive_ns = start_of(r, s) + t_ns;
    }
    a->last = r->t->n;
    a->end_ns = t_ns + svc_ns;
    return 1;
}

static int read_request(struct kg_reader *r, struct session *s, const json_t *o)
{
    struct kg_trace_req q = kg_trace_blank(r);
    uint32_t block = r->conf->block != 0 ? r->conf->block : 64;
    uint64_t number, k, length, output;
    char name[64];
    struct agent *a = find_agent(r, s, o, "a", &number);

    if (a == NULL) {
        return KG_EINVAL;
    }
    if (number != 0 && r->conf->main_only) {
        return KG_OK;
    }
    if (block % r->conf->scale != 0) {
        return KG_BAD(r, "block: %u tokens cannot be divided by the scale %u", block,
                      r->conf->scale);
    }
    int rc = kg_tj_need(r, o, "k", 0, UINT32_MAX, &k);
    if (rc == KG_OK) {
        rc = kg_tj_need(r, o, "in", 0, KG_TRACE_MAX_TOKENS, &length);
    }
    if (rc == KG_OK) {
        rc = kg_tj_need(r, o, "out", 0, KG_TRACE_MAX_TOKENS, &output);
    }
    if (rc != KG_OK) {
        return rc;
    }
    q.block = block / r->conf->scale;
    q.n_prompt = kg_trace_scaled(r, length);
    q.n_output = kg_trace_scaled(r, output);
    s->bad |= r->conf->max_input != 0 && q.n_prompt > r->conf->max_input;
    rc = read_runs(r, s, &q, o, length, block);
    if (rc == KG_OK) {
        (void)snprintf(name, sizeof(name), "s%llu", (unsigned long long)s->number);
        rc = kg_trace_tenant(r, &q, name);
    }
    if (rc == KG_OK) {
        rc = place(r, s, a, &q, o);
    }
    if (rc <= 0) {
        return rc;
    }
    (void)snprintf(name, sizeof(name), number == 0 ? "s%llu.%llu" : "s%llu.%llu.a%llu",
                   (unsigned long long)s->number, (unsigned long long)k,
                   (unsigned long long)number);
    return kg_trace_add(r, &q, name);
}

static int read_line(struct kg_reader *r, struct session *s, const json_t *o)
{
    static const char *const known[] = {"session", "tool",  "sys",    "n",    "s",      "k",
                                        "a",       "t",     "in",     "out",  "think",  "svc",
                                        "ttft",    "m",     "stream", "stop", "it",     "ot",
                                        "h",       "spawn", "kind",   "dur",  "status", NULL};

    kg_tj_unknown(r, o, known);
    if (json_object_get(o, "session") != NULL) {
        return start_session(r, s, o);
    }
    if (json_object_get(o, "spawn") != NULL) {
        return r->conf->main_only ? KG_OK : start_agent(r, s, o);
    }
    return read_request(r, s, o);
}

static int read_lines(struct kg_reader *r, struct session *s)
{
    uint32_t most = r->conf->n_sessions;
    const char *text;
    size_t n;
    int rc;

    while ((rc = kg_lines_next(r->lines, &text, &n, r->err)) > 0) {
        json_t *o = NULL;
        rc = kg_tj_line(r, text, n, &o);
        if (rc == KG_OK && json_object_get(o, "session") != NULL) {
            end_session(r, s);
            if (kg_trace_full(r) || (most != 0 && s->n_taken >= most)) {
                json_decref(o);
                return KG_OK;
            }
        }
        if (rc == KG_OK) {
            rc = read_line(r, s, o);
        }
        json_decref(o);
        if (rc != KG_OK) {
            return rc;
        }
    }
    return rc;
}

int kg_read_agentic(struct kg_reader *r)
{
    struct session *s = calloc(1, sizeof(*s));

    if (s == NULL) {
        return kg_fail(r->err, KG_ENOMEM, "out of memory");
    }
    int rc = read_lines(r, s);
    end_session(r, s);
    free(s);
    /* A limit may fall inside a session: what is behind it goes, chains stay whole. */
    if (rc == KG_OK && r->conf->limit != 0 && r->t->n > r->conf->limit) {
        r->t->n = (uint32_t)r->conf->limit;
    }
    return rc;
}
