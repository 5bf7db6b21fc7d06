/*
 * Between the calling thread and the engine thread: two rings and, per request, a few levels
 * (cancel, pause, finish) with one bit that says a message about them is under way. A request has
 * at most one SUBMIT and one CONTROL message in the inbox, so the inbox never overflows; the
 * outbox has room for the largest step before the step begins, so a step never waits.
 */
#include "base/hash.h"
#include "engine/internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* --- engine side --- */

static void read_submit(struct kg_engine *e, const struct kg_msg *m)
{
    kg_req_arrive(e, m->index, m->job);
    if (atomic_load_explicit(&e->lost, memory_order_relaxed)) {
        kg_req_end(e, &e->reqs[m->index], KG_FINISH_ERROR, KG_EDEVICE, e->error.text);
    } else {
        (void)kg_req_steer(e, m->index); /* a control message may have been read before it */
    }
}

/* Between two steps: other plugins. What the caller gave is exchanged for what was there. */
static void read_swap(struct kg_engine *e, struct kg_engine_swap *swap)
{
    if (swap->spec_ops != NULL) {
        kg_draft_swap(e, swap);
    }
    if (swap->sched_ops != NULL) {
        const struct kg_sched_ops *ops = e->parts.sched_ops;
        struct kg_sched *sched = e->parts.sched;
        e->parts.sched_ops = swap->sched_ops;
        e->parts.sched = swap->sched;
        swap->sched_ops = ops;
        swap->sched = sched;
        kg_req_introduce(e);
    }
    kg_draft_observe(e, 0); /* the cap of the coming step */
    kg_port_out(e, KG_NONE, KG_EVENT_SWAPPED, 0, 0);
}

int kg_port_drain(struct kg_engine *e, int in_flight)
{
    const struct kg_msg *m;
    size_t bytes;
    int n = 0;

    while ((m = kg_ring_peek(e->inbox, &bytes)) != NULL) {
        if (m->type == KG_MSG_SUBMIT) {
            read_submit(e, m);
            n++;
        } else if (in_flight) {
            break;
        } else if (m->type == KG_MSG_SWAP) {
            read_swap(e, m->swap);
            n++;
        } else {
            atomic_store(&e->control[m->index].pending, 0);
            n += kg_req_steer(e, m->index);
        }
        kg_ring_consume(e->inbox);
    }
    kg_req_settle(e);
    return n;
}

static int has_room(const struct kg_engine *e)
{
    return kg_ring_room(e->outbox) >= e->out_cap * sizeof(struct kg_out);
}

int kg_port_room(struct kg_engine *e)
{
    e->full = !has_room(e);
    if (e->full && e->test.on_full != NULL) {
        e->test.on_full(e->test.ctx);
    }
    return !e->full;
}

static void wake_room(struct kg_engine *e)
{
    uint64_t one = 1;

    /* EAGAIN would mean the counter is full: then it is readable already. */
    while (write(e->room_fd, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

/*
 * A descriptor of its own: the inbox's is readable while messages wait, which nobody reads until
 * there is room, and what reads them would clear a wake that came before.
 */
void kg_port_wait_room(struct kg_engine *e)
{
    struct pollfd p = {.fd = e->room_fd, .events = POLLIN};
    uint64_t n;

    while (read(e->room_fd, &n, sizeof(n)) < 0 && errno == EINTR) {
    }
    /* Ask to be woken, then look again: the reader frees room, then looks at the flag. */
    atomic_store(&e->blocked, 1);
    if (!has_room(e) && !atomic_load(&e->stop)) {
        (void)poll(&p, 1, -1);
    }
    atomic_store(&e->blocked, 0);
}

void kg_port_wake(struct kg_engine *e)
{
    kg_ring_wake(e->inbox);
    wake_room(e);
}

void kg_port_out(struct kg_engine *e, uint32_t index, uint32_t type, uint32_t first, uint32_t n)
{
    if (e->n_out < e->out_cap) { /* always: out_cap is the most a step can say */
        e->out[e->n_out++] = (struct kg_out){index, type, first, n};
    }
}

void kg_port_flush(struct kg_engine *e)
{
    if (e->n_out > 0) {
        (void)kg_ring_put(e->outbox, e->out, e->n_out * sizeof(*e->out));
        e->n_out = 0;
    }
}

/* --- caller side: requests --- */

static uint32_t map_at(const struct kg_port *p, uint64_t id)
{
    return (uint32_t)kg_hash_mix(id) & p->map_mask;
}

/* Place of an id in the map, or the empty place where it would go. */
static uint32_t map_find(const struct kg_port *p, uint64_t id)
{
    uint32_t at = map_at(p, id);

    while (p->map[at] != KG_NONE && p->jobs[p->map[at]]->id != id) {
        at = (at + 1) & p->map_mask;
    }
    return at;
}

/* Removes an id and closes the gap, so that a search may stop at the first empty place. */
static void map_remove(struct kg_port *p, uint64_t id)
{
    uint32_t hole = map_find(p, id);

    for (uint32_t at = hole;;) {
        at = (at + 1) & p->map_mask;
        if (p->map[at] == KG_NONE) {
            break;
        }
        uint32_t home = map_at(p, p->jobs[p->map[at]]->id);
        if (((at - home) & p->map_mask) >= ((at - hole) & p->map_mask)) {
            p->map[hole] = p->map[at];
            hole = at;
        }
    }
    p->map[hole] = KG_NONE;
}

static int check_sampling(const struct kg_sampling *s, struct kg_error *err)
{
    if (!(s->temperature >= 0.0f && s->temperature <= 100.0f)) {
        return kg_fail(err, KG_EINVAL, "temperature must be between 0 and 100");
    }
    if (!(s->top_p >= 0.0f && s->top_p <= 1.0f) || !(s->min_p >= 0.0f && s->min_p <= 1.0f)) {
        return kg_fail(err, KG_EINVAL, "top_p and min_p must be between 0 and 1");
    }
    if (!(s->repetition_penalty >= 0.0f && s->repetition_penalty <= 1e6f)) {
        return kg_fail(err, KG_EINVAL, "repetition_penalty must be above 0");
    }
    if (!(s->frequency_penalty >= -2.0f && s->frequency_penalty <= 2.0f) ||
        !(s->presence_penalty >= -2.0f && s->presence_penalty <= 2.0f)) {
        return kg_fail(err, KG_EINVAL, "penalties must be between -2 and 2");
    }
    if (s->accept > KG_ACCEPT_BLOCK) {
        return kg_fail(err, KG_EINVAL, "%u is no rule of acceptance", s->accept);
    }
    if (s->n_logprobs > KG_MAX_LOGPROBS || s->n_stop_ids > KG_MAX_STOP_IDS) {
        return kg_fail(err, KG_EINVAL, "at most %d logprobs and %d stop ids, not %u and %u",
                       KG_MAX_LOGPROBS, KG_MAX_STOP_IDS, s->n_logprobs, s->n_stop_ids);
    }
    return KG_OK;
}

/* Positions of a prompt must rise and lie within it. */
static int check_positions(const char *what, const uint32_t *at, uint32_t n, uint32_t n_prompt,
                           struct kg_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        if (at[i] > n_prompt || (i > 0 && at[i] <= at[i - 1])) {
            return kg_fail(err, KG_EINVAL, "%s %u (%u) is out of order or behind the prompt", what,
                           i, at[i]);
        }
    }
    return KG_OK;
}

static int check_request(const struct kg_engine *e, const struct kg_request *q,
                         struct kg_error *err)
{
    if (q->id == 0 || q->tokens == NULL || q->n_prompt == 0 || q->max_tokens == 0) {
        return kg_fail(err, KG_EINVAL, "id, prompt and max_tokens must not be empty");
    }
    if (e->port.map[map_find(&e->port, q->id)] != KG_NONE) {
        return kg_fail(err, KG_EINVAL, "a request with id %llu lives already",
                       (unsigned long long)q->id);
    }
    for (uint32_t i = 0; i < q->n_prompt; i++) {
        if (q->tokens[i] >= e->desc.vocab) {
            return kg_fail(err, KG_EINVAL, "prompt token %u is %u, the vocabulary ends at %u", i,
                           q->tokens[i], e->desc.vocab);
        }
    }
    if (q->arm >= e->n_arms) {
        return kg_fail(err, KG_EINVAL, "arm %u: there are %u", q->arm, e->n_arms);
    }
    int rc = check_positions("boundary", q->boundaries, q->n_boundaries, q->n_prompt, err);
    if (rc == KG_OK) {
        rc = check_positions("mark", q->marks, q->n_marks, q->n_prompt, err);
    }
    return rc == KG_OK ? check_sampling(&q->sampling, err) : rc;
}

/* What can never fit is refused with the numbers; *max_tokens is cut to the context limit. */
static int check_size(const struct kg_engine *e, const struct kg_request *q, uint32_t *max_tokens,
                      struct kg_error *err)
{
    if (q->n_prompt >= e->max_context) {
        return kg_fail(err, KG_ENEVER,
                       "the prompt has %u tokens; with one token of output the context limit of "
                       "%u tokens is passed",
                       q->n_prompt, e->max_context);
    }
    uint32_t room = e->max_context - q->n_prompt;
    uint32_t most = q->max_tokens < room ? q->max_tokens : room;
    uint64_t pages = kg_adm_max_pages(e, q->n_prompt, most);
    if (pages > e->max_pages) {
        return kg_fail(err, KG_ENEVER,
                       "%u prompt tokens and %u of output need %llu pages of %u tokens and a "
                       "state; the memory pool holds %u pages beside a state",
                       q->n_prompt, most, (unsigned long long)pages, e->layout.page_tokens,
                       e->max_pages);
    }
    *max_tokens = most;
    return KG_OK;
}

/* Bytes of `n` elements, rounded up so that the next array is aligned; 0 on overflow. */
static size_t span(uint64_t n, size_t each)
{
    size_t bytes;

    if (__builtin_mul_overflow(n, each, &bytes) || bytes > SIZE_MAX / 8) {
        return 0;
    }
    return (bytes + 15) & ~(size_t)15;
}

/* One block with all arrays of a request; NULL when there is no memory. */
static struct kg_job *job_create(const struct kg_engine *e, const struct kg_request *q,
                                 uint32_t max_tokens)
{
    const struct kg_sampling *s = &q->sampling;
    uint32_t n_lp = s->n_logprobs > 0 || s->want_logprob ? 1 + s->n_logprobs : 0;
    uint32_t n_echo = q->flags & KG_REQ_ECHO ? 1 + s->n_logprobs : 0;
    uint64_t n_tokens = (uint64_t)q->n_prompt + max_tokens;
    size_t head = span(1, sizeof(struct kg_job));
    size_t tokens = span(n_tokens, sizeof(uint32_t));
    size_t pages = span(kg_adm_max_pages(e, q->n_prompt, max_tokens), sizeof(uint32_t));
    size_t cached = span(kg_adm_max_pages(e, q->n_prompt, max_tokens), 1);
    size_t chain =
        e->tier != NULL ? span(n_tokens / e->layout.page_tokens + 1, sizeof(struct kg_chain)) : 0;
    size_t bounds = span((uint64_t)q->n_boundaries + q->n_marks + 1, sizeof(uint32_t));
    size_t lp = span((uint64_t)max_tokens * n_lp + 1, sizeof(struct kg_logprob));
    size_t echo = span((uint64_t)q->n_prompt * n_echo + 1, sizeof(struct kg_logprob));
    size_t bytes = head + chain + tokens + pages + cached + bounds + lp + echo;

    if ((chain == 0 && e->tier != NULL) || tokens == 0 || pages == 0 || cached == 0 ||
        bounds == 0 || lp == 0 || echo == 0) {
        return NULL;
    }
    struct kg_job *j = malloc(bytes);
    if (j == NULL) {
        return NULL;
    }
    uint8_t *at = (uint8_t *)j + head + chain;
    *j = (struct kg_job){.bytes = bytes,
                         .id = q->id,
                         .tenant = q->tenant,
                         .salt = kg_arm_salt(&e->arms[q->arm], q->salt),
                         .n_prompt = q->n_prompt,
                         .max_tokens = max_tokens,
                         .flags = q->flags,
                         .priority = q->priority,
                         .arm = q->arm,
                         .n_lp = n_lp,
                         .n_echo_lp = n_echo,
                         .n_boundaries = q->n_boundaries,
                         .n_marks = q->n_marks,
                         .sampling = q->sampling};
    if (j->sampling.accept == KG_ACCEPT_COUPLED) {
        j->sampling.accept = e->arms[q->arm].accept;
    }
    if (q->tenant_name != NULL) {
        (void)snprintf(j->tenant_name, sizeof(j->tenant_name), "%s", q->tenant_name);
    }
    if (q->class_name != NULL) {
        (void)snprintf(j->class_name, sizeof(j->class_name), "%s", q->class_name);
    }
    j->chain = chain > 0 ? (struct kg_chain *)(void *)((uint8_t *)j + head) : NULL;
    j->tokens = (uint32_t *)(void *)at;
    j->pages = (uint32_t *)(void *)(at += tokens);
    j->cached = at += pages;
    j->boundaries = (uint32_t *)(void *)(at += cached);
    j->marks = j->boundaries + q->n_boundaries;
    j->logprobs = (struct kg_logprob *)(void *)(at += bounds);
    j->echo = (struct kg_logprob *)(void *)(at + lp);
    memcpy(j->tokens, q->tokens, q->n_prompt * sizeof(*q->tokens));
    if (q->n_boundaries > 0) {
        memcpy(j->boundaries, q->boundaries, q->n_boundaries * sizeof(*q->boundaries));
    }
    if (q->n_marks > 0) {
        memcpy(j->marks, q->marks, q->n_marks * sizeof(*q->marks));
    }
    if (e->tier != NULL && !(q->flags & KG_REQ_NO_CACHE)) {
        kg_tier_name(e, j, q->n_prompt / e->layout.page_tokens);
    }
    return j;
}

int kg_engine_submit(struct kg_engine *engine, const struct kg_request *req, struct kg_error *err)
{
    struct kg_port *p = &engine->port;
    uint32_t max_tokens = 0;

    if (atomic_load(&engine->lost)) {
        return kg_fail(err, KG_EDEVICE, "the backend is lost");
    }
    int rc = check_request(engine, req, err);
    if (rc == KG_OK) {
        rc = check_size(engine, req, &max_tokens, err);
    }
    if (rc != KG_OK) {
        return rc;
    }
    if (p->n_free == 0) {
        return kg_fail(err, KG_EAGAIN, "%u requests are waiting or running, no more are taken",
                       engine->conf.max_requests);
    }
    struct kg_job *job = job_create(engine, req, max_tokens);
    if (job == NULL) {
        return kg_fail(err, KG_ENOMEM, "no memory for a request of %u + %u tokens", req->n_prompt,
                       max_tokens);
    }
    uint32_t index = p->free_index[p->n_free - 1];
    struct kg_control *c = &engine->control[index];
    atomic_store_explicit(&c->cancel, 0, memory_order_relaxed);
    atomic_store_explicit(&c->pause, 0, memory_order_relaxed);
    atomic_store_explicit(&c->finish_at, 0, memory_order_relaxed);
    struct kg_msg m = {.type = KG_MSG_SUBMIT, .index = index, .job = job};
    if (kg_ring_put(engine->inbox, &m, sizeof(m)) != KG_OK) {
        free(job);
        return kg_fail(err, KG_EAGAIN, "the engine's inbox is full");
    }
    p->n_free--;
    p->jobs[index] = job;
    p->map[map_find(p, req->id)] = index;
    return KG_OK;
}

/* Index of a request that lives and whose DONE was not read yet, or KG_NONE. */
static uint32_t index_of(const struct kg_engine *e, uint64_t id)
{
    return e->port.map[map_find(&e->port, id)];
}

/* After a level was set. */
static void notify(struct kg_engine *e, uint32_t index)
{
    struct kg_msg m = {.type = KG_MSG_CONTROL, .index = index};

    if (atomic_exchange(&e->control[index].pending, 1) == 0) {
        (void)kg_ring_put(e->inbox, &m, sizeof(m)); /* sized for all requests: never full */
    }
}

void kg_engine_cancel(struct kg_engine *engine, uint64_t id)
{
    uint32_t index = index_of(engine, id);

    if (index != KG_NONE) {
        atomic_store(&engine->control[index].cancel, 1);
        notify(engine, index);
    }
}

void kg_engine_finish(struct kg_engine *engine, uint64_t id, uint32_t n_output)
{
    uint32_t index = index_of(engine, id);

    if (index != KG_NONE) {
        atomic_store(&engine->control[index].finish_at, n_output == KG_NONE ? 0 : n_output + 1);
        notify(engine, index);
    }
}

void kg_engine_pause(struct kg_engine *engine, uint64_t id, bool paused)
{
    uint32_t index = index_of(engine, id);

    if (index != KG_NONE) {
        atomic_store(&engine->control[index].pause, paused ? 1 : 0);
        notify(engine, index);
    }
}

int kg_engine_swap(struct kg_engine *engine, struct kg_engine_swap *swap, struct kg_error *err)
{
    struct kg_port *p = &engine->port;
    uint64_t caps = swap->spec_caps;

    if (p->swapping) {
        return kg_fail(err, KG_EAGAIN, "another change of plugins is under way");
    }
    if (swap->spec_ops != NULL && swap->arm >= engine->n_arms) {
        return kg_fail(err, KG_EINVAL, "arm %u: there are %u", swap->arm, engine->n_arms);
    }
    if (swap->spec_ops != NULL) {
        swap->block = kg_draft_block(engine, swap->spec_ops, swap->spec, caps);
        swap->block = swap->block < engine->max_block ? swap->block : engine->max_block;
        if ((caps & KG_SPEC_CAP_MODEL) && !(engine->desc.caps & KG_EXEC_CAP_DRAFT)) {
            return kg_fail(err, KG_ECONFIG, "it needs a drafter, and none was loaded at start");
        }
        if ((caps & (KG_SPEC_CAP_MODEL | KG_SPEC_CAP_HOST)) && swap->block == 0) {
            return kg_fail(err, KG_ECONFIG,
                           "the backend was opened without room for drafts ([engine] max_draft)");
        }
    }
    struct kg_msg m = {.type = KG_MSG_SWAP, .index = KG_NONE, .swap = swap};
    if (kg_ring_put(engine->inbox, &m, sizeof(m)) != KG_OK) {
        return kg_fail(err, KG_EAGAIN, "the engine's inbox is full");
    }
    p->swapping = 1;
    return KG_OK;
}

/* --- caller side: events --- */

/* The request whose DONE was handed out last is forgotten now. */
static void forget_ended(struct kg_port *p)
{
    if (p->ended != KG_NONE) {
        map_remove(p, p->jobs[p->ended]->id);
        free(p->jobs[p->ended]);
        p->jobs[p->ended] = NULL;
        p->free_index[p->n_free++] = p->ended;
        p->ended = KG_NONE;
    }
}

static void fill_event(const struct kg_job *job, const struct kg_out *o, struct kg_event *event)
{
    if (o->type == KG_EVENT_DONE) {
        *event = job->done;
        return;
    }
    /* Not the whole struct: most of it is DONE's, and this runs once per token. */
    event->id = job->id;
    event->type = o->type;
    event->n = o->n;
    if (o->type == KG_EVENT_TOKENS) {
        event->tokens = job->tokens + job->n_prompt + o->first;
        event->n_logprobs = job->n_lp;
        event->logprobs = job->n_lp > 0 ? job->logprobs + (size_t)o->first * job->n_lp : NULL;
    } else {
        event->tokens = job->tokens + 1 + o->first;
        event->n_logprobs = job->n_echo_lp;
        event->logprobs = job->echo + (size_t)o->first * job->n_echo_lp;
    }
}

int kg_engine_next(struct kg_engine *engine, struct kg_event *event)
{
    struct kg_port *p = &engine->port;
    size_t bytes;

    forget_ended(p);
    if (p->record != NULL && p->at == p->n_record) {
        kg_ring_consume(engine->outbox);
        p->record = NULL;
        /* Once there is room for a step, and not after each record: a sleep and a wake each. */
        if (atomic_load(&engine->blocked) && has_room(engine) &&
            atomic_exchange(&engine->blocked, 0)) {
            wake_room(engine);
        }
    }
    if (p->record == NULL) {
        p->record = kg_ring_peek(engine->outbox, &bytes);
        if (p->record == NULL) {
            return KG_EAGAIN;
        }
        p->n_record = (uint32_t)(bytes / sizeof(struct kg_out));
        p->at = 0;
    }
    const struct kg_out *o = &p->record[p->at++];
    if (o->type == KG_EVENT_SWAPPED) {
        event->id = 0;
        event->type = KG_EVENT_SWAPPED;
        p->swapping = 0;
        return KG_OK;
    }
    fill_event(p->jobs[o->index], o, event);
    if (o->type == KG_EVENT_DONE) {
        p->ended = o->index;
    }
    return KG_OK;
}

int kg_engine_fd(const struct kg_engine *engine)
{
    return kg_ring_fd(engine->outbox);
}

/* --- both: life --- */

int kg_port_create(struct kg_engine *e)
{
    struct kg_port *p = &e->port;
    uint32_t n = e->conf.max_requests, places = 4;

    while (places < 2 * n) {
        places *= 2;
    }
    p->ended = KG_NONE;
    p->map_mask = places - 1;
    p->jobs = calloc(n, sizeof(*p->jobs));
    p->free_index = calloc(n, sizeof(*p->free_index));
    p->map = malloc(places * sizeof(*p->map));
    e->control = calloc(n, sizeof(*e->control));
    /* All requests end in one step at worst; besides, each running one says two things, and one
     * swap may be carried out. */
    e->out_cap = n + 2 * e->conf.max_seqs + 1;
    e->out = calloc(e->out_cap, sizeof(*e->out));
    if (p->jobs == NULL || p->free_index == NULL || p->map == NULL || e->control == NULL ||
        e->out == NULL) {
        return KG_ENOMEM;
    }
    e->room_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (e->room_fd < 0) {
        return KG_EIO;
    }
    memset(p->map, 0xff, places * sizeof(*p->map));
    for (uint32_t i = 0; i < n; i++) {
        p->free_index[p->n_free++] = n - 1 - i;
    }
    int rc = kg_ring_create(2 * (size_t)(n + 8) * (sizeof(struct kg_msg) + 8), &e->inbox);
    if (rc == KG_OK) {
        rc = kg_ring_create(4 * (size_t)e->out_cap * sizeof(struct kg_out) + 64, &e->outbox);
    }
    return rc;
}

void kg_port_destroy(struct kg_engine *e)
{
    struct kg_port *p = &e->port;

    for (uint32_t i = 0; p->jobs != NULL && i < e->conf.max_requests; i++) {
        free(p->jobs[i]);
    }
    free(p->jobs);
    free(p->free_index);
    free(p->map);
    free(e->control);
    free(e->out);
    kg_ring_destroy(e->inbox);
    kg_ring_destroy(e->outbox);
    if (e->room_fd >= 0) {
        (void)close(e->room_fd);
    }
}
