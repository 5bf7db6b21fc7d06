/*
 * exec-cuda over the emulator as one of several ranks, its collectives those of comm-symmem on
 * device memory: the same steps as exec-cpu takes with as many ranks give the same bits, and a rank
 * that is lost is an error. Ranks are processes, as in the server.
 */
#include "exec_ranks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#define PAGE 8
#define SEQS 3
#define STEPS 24
#define DRAFTS 4
#define MOST 96 /* tokens of a sequence */
#define NOTES 4096

static const char *model, *drafter;

/* What a run came to: everything it said, in order. */
struct notes {
    uint64_t at[NOTES];
    uint32_t n;
};

struct seq {
    uint32_t tokens[MOST + DRAFTS], pages[MOST / PAGE + 4];
    uint32_t n, n_prompt, past, n_pages, state, slot, fresh;
    struct kg_sampling sampling;
};

struct scene {
    struct xrig x;
    struct seq seqs[SEQS];
    struct notes *notes;
    uint64_t random;
};

static uint32_t below(struct scene *t, uint32_t n)
{
    t->random = t->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(t->random >> 33) % n;
}

static void note(struct scene *t, uint64_t value)
{
    assert_true(t->notes->n < NOTES);
    t->notes->at[t->notes->n++] = value;
}

static void open_scene(struct scene *t, uint32_t on_device, struct notes *notes)
{
    const struct xrig_options o = {.model = model,
                                   .draft = drafter,
                                   .threads = 1,
                                   .page_tokens = PAGE,
                                   .parts_per_slot = 4,
                                   .max_seqs = SEQS,
                                   .max_rows = 64,
                                   .n_pages = 96,
                                   .n_states = 8,
                                   .max_draft = DRAFTS,
                                   .sp_rows = 20};

    memset(t, 0, sizeof(*t));
    t->notes = notes;
    t->random = 11;
    xrig_on_device(on_device);
    xrig_open(&t->x, &o);
    for (uint32_t i = 0; i < SEQS; i++) {
        struct seq *q = &t->seqs[i];
        q->slot = i;
        q->n = q->n_prompt = 9 + 8 * i;
        q->fresh = 1;
        q->state = xrig_take(&t->x, KG_STATE);
        q->sampling = (struct kg_sampling){.temperature = i == 1 ? 0.8f : 0, .seed = 5 + i};
        for (uint32_t j = 0; j < q->n; j++)
            q->tokens[j] = 10 + below(t, 200);
    }
}

/* Drafts of the backend for a sequence; 0: it has none. */
static uint32_t ask_drafts(struct scene *t, const struct seq *q, uint32_t n)
{
    float survival[DRAFTS] = {0};
    struct kg_draft d = {.slot = q->slot, .n = n, .survival = survival};

    if (drafter == NULL)
        return 0;
    assert_int_equal(t->x.ops->draft(t->x.exec, &d, 1), KG_OK);
    note(t, d.n);
    note(t, xrig_hash(survival, d.n));
    return d.n;
}

/* The next rows of a sequence: a part of its prompt, a token, or a window behind it. */
static void choose(struct scene *t, struct seq *q, uint32_t decode, struct kg_seq *s)
{
    uint32_t left = q->n - q->past, rows = left, drafts = 0, force = KG_NONE, had = q->n_pages;

    if (left > 1) {
        rows = 1 + below(t, left < 11 ? left : 11);
    } else if (!decode) {
        uint32_t want = 1 + below(t, DRAFTS), mine = below(t, 3) == 0;
        drafts = mine ? 0 : ask_drafts(t, q, want);
        if (drafts == 0) { /* tokens of the host, of which some are accepted by order */
            drafts = want;
            force = below(t, drafts + 1);
            for (uint32_t k = 0; k < drafts; k++)
                q->tokens[q->n + k] = 20 + below(t, 100);
        }
        rows = 1 + drafts;
    }
    while (q->n_pages * PAGE < q->past + rows)
        q->pages[q->n_pages++] = xrig_take(&t->x, KG_PAGE);
    *s = (struct kg_seq){.slot = q->slot,
                         .id = q->slot + 1,
                         .flags = KG_SEQ_LOGITS | (rows >= left ? KG_SEQ_SAMPLE : 0),
                         .past = q->past,
                         .n_rows = rows,
                         .n_draft = drafts,
                         .tokens = q->tokens + q->past,
                         .pages = q->pages + (q->fresh ? 0 : had),
                         .n_pages = q->n_pages - (q->fresh ? 0 : had),
                         .state = q->state,
                         .state_src = q->fresh ? KG_STATE_ZERO : KG_STATE_KEEP,
                         .left = 50,
                         .force_accept = force};
    if (!q->fresh)
        return;
    s->flags |= KG_SEQ_RESET;
    s->history = q->tokens;
    s->n_history = q->n;
    s->output_start = q->n_prompt;
    s->sampling = &q->sampling;
}

static void keep(struct scene *t, struct seq *q, const struct kg_seq *s,
                 const struct kg_seq_result *r)
{
    note(t, r->n_accepted);
    note(t, r->past);
    assert_int_equal(r->flags & KG_RES_NAN, 0);
    assert_non_null(r->logits);
    for (uint32_t k = 0; k < s->n_rows; k++)
        note(t, xrig_hash(r->logits + (size_t)k * t->x.desc.vocab, t->x.desc.vocab));
    for (uint32_t k = 0; k < r->n_tokens; k++)
        note(t, r->tokens[k]);
    memcpy(q->tokens + q->n, r->tokens, r->n_tokens * sizeof(uint32_t));
    q->n += r->n_tokens;
    q->past = r->past;
    q->fresh = 0;
}

/* One step of all sequences; its rc. */
static int step(struct scene *t, uint32_t decode, struct kg_error *err)
{
    struct kg_seq seqs[SEQS];
    struct kg_batch batch = {
        .size = sizeof(batch), .step = ++t->x.step, .seqs = seqs, .n_seqs = SEQS};
    struct kg_result result = {.size = sizeof(result)};

    for (uint32_t i = 0; i < SEQS; i++) {
        choose(t, &t->seqs[i], decode, &seqs[i]);
        batch.n_rows += seqs[i].n_rows;
    }
    xrig_apply(&t->x, 2);
    int rc = t->x.ops->submit(t->x.exec, &batch, err);
    if (rc == KG_OK)
        rc = t->x.ops->wait(t->x.exec, &result, err);
    for (uint32_t i = 0; i < SEQS && rc == KG_OK; i++)
        keep(t, &t->seqs[i], &seqs[i], &result.seqs[i]);
    return rc;
}

static void run(uint32_t on_device, struct notes *notes)
{
    struct scene *t = malloc(sizeof(*t));
    struct kg_error err = {0};

    assert_non_null(t);
    open_scene(t, on_device, notes);
    for (uint32_t i = 0; i < STEPS; i++) {
        if (step(t, i % 3 > 0, &err) != KG_OK)
            fail_msg("%s, step %u: %s", on_device ? "device" : "host", i, err.text);
    }
    xrig_close(&t->x);
    free(t);
}

static void the_bits_of_exec_cpu_with_as_many_ranks(void **state)
{
    struct notes *host = calloc(1, sizeof(*host)), *device = calloc(1, sizeof(*device));

    (void)state;
    assert_true(host != NULL && device != NULL);
    run(0, host);
    run(1, device);
    assert_int_equal(device->n, host->n);
    for (uint32_t i = 0; i < host->n; i++) {
        if (device->at[i] != host->at[i])
            fail_msg("number %u of %u differs", i, host->n);
    }
    free(host);
    free(device);
}

static void plain_experts(void **state)
{
    model = "models/k3-tiny";
    the_bits_of_exec_cpu_with_as_many_ranks(state);
}

static void drafts_of_a_drafter(void **state)
{
    model = "models/k3-tiny";
    drafter = "models/k3-tiny-dspark";
    the_bits_of_exec_cpu_with_as_many_ranks(state);
    drafter = NULL;
}

static void mxfp4_experts(void **state)
{
    model = "models/k3-tiny-mxfp4";
    the_bits_of_exec_cpu_with_as_many_ranks(state);
}

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Rank 1 is killed, or stands still, before a step that is recorded or one that is not. */
static void lose(int with, uint32_t decode, uint64_t timeout_ns)
{
    struct notes *notes = calloc(1, sizeof(*notes));
    struct scene *t = malloc(sizeof(*t));
    struct kg_error err = {0};

    assert_true(notes != NULL && t != NULL);
    xranks_set_timeout(timeout_ns);
    open_scene(t, 1, notes);
    for (uint32_t i = 0; i < 9; i++)
        assert_int_equal(step(t, 1, &err), KG_OK); /* prompts, then steps that are recorded */
    uint64_t begin = now_ns();
    assert_int_equal(kill(xranks_pid(&t->x, 1), with), 0);
    assert_int_equal(step(t, decode, &err), KG_EDEVICE);
    assert_true(now_ns() - begin < 60000000000ull);
    if (strstr(err.text, "rank 1") == NULL)
        fail_msg("\"%s\" does not name rank 1", err.text);
    assert_int_equal(step(t, decode, &err), KG_EDEVICE);
    xranks_close_lost(&t->x);
    xrig_close(&t->x);
    xranks_set_timeout(60000000000ull);
    free(notes);
    free(t);
}

static void a_rank_that_is_lost_is_an_error_in_time(void **state)
{
    (void)state;
    model = "models/k3-tiny";
    for (uint32_t decode = 0; decode < 2; decode++) {
        lose(SIGKILL, decode, 60000000000ull);
        lose(SIGSTOP, decode, 10000000000ull);
    }
}

/* usage: cuda_ranks [RANKS [EP]] */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_experts),
        cmocka_unit_test(drafts_of_a_drafter),
        cmocka_unit_test(mxfp4_experts),
        cmocka_unit_test(a_rank_that_is_lost_is_an_error_in_time),
    };

    xrig_set_ranks(argc, argv);
    return _cmocka_run_group_tests("cuda_ranks", tests, xrig_world() > 1 ? 4 : 3, NULL, NULL);
}
