#include "model/accept.h"

#include <math.h>

static int is_finite_row(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            return 0;
        }
    }
    return 1;
}

/* A forced draft takes the place of the pick. */
static void force_token(const struct kg_sample_row *row, uint32_t token,
                        struct kg_sample_pick *pick, struct kg_logprob *logprobs)
{
    const struct kg_sampling *s = row->sampling;

    *pick = (struct kg_sample_pick){.token = token};
    for (uint32_t i = 0; i < s->n_stop_ids && row->n_output >= s->min_tokens; i++) {
        if (s->stop_ids[i] == token) {
            pick->flags = KG_RES_STOP;
        }
    }
    if (logprobs != NULL) {
        (void)kg_sample_logprobs(row->logits, row->vocab, token, s->n_logprobs, logprobs);
    }
}

void kg_accept_run(const struct kg_accept *run, void *scratch, struct kg_accepted *out)
{
    uint32_t forced = run->force < run->n_draft ? run->force : run->n_draft;
    int more = 1;

    *out = (struct kg_accepted){0};
    for (uint32_t j = 0; more; j++) {
        uint32_t at = run->position + j;
        struct kg_sample_row row = {.logits = run->logits + (size_t)j * run->vocab,
                                    .vocab = run->vocab,
                                    .position = at,
                                    .n_output = at > run->output_start ? at - run->output_start : 0,
                                    .sampling = run->sampling,
                                    .counts = run->counts};
        struct kg_logprob *lp = NULL;
        struct kg_sample_pick pick;

        if (run->logprobs != NULL) {
            lp = run->logprobs + (size_t)j * (1 + run->sampling->n_logprobs);
        }
        kg_sample(&row, scratch, &pick, lp);
        if ((pick.flags & KG_RES_NAN) ||
            (run->hidden != NULL &&
             !is_finite_row(run->hidden + (size_t)j * run->width, run->width))) {
            *out = (struct kg_accepted){.flags = KG_RES_NAN};
            return;
        }
        more = j < run->n_draft && kg_accept_coupled(run->drafts[j], pick.token);
        if (run->force != KG_NONE) {
            more = j < forced;
            if (more && run->drafts[j] != pick.token) {
                force_token(&row, run->drafts[j], &pick, lp);
            }
        }
        out->n_accepted += (uint32_t)more;
        run->tokens[out->n_tokens++] = pick.token;
        if (run->counts != NULL) {
            (void)kg_token_counts_add(run->counts, pick.token, 1);
        }
        out->flags |= pick.flags;
        more = more && !(pick.flags & KG_RES_STOP) && out->n_tokens < run->left;
    }
}
