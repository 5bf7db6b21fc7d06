/*
 * Where checkpoints are written. Pure functions: what is known of a request and the rows of its
 * next step in, positions out. A position is a multiple of page_tokens.
 */
#ifndef KEDGE_ENGINE_INDEX_POLICY_H
#define KEDGE_ENGINE_INDEX_POLICY_H

#include <kedge/types.h>

/* [prefix] checkpoint, in the order of the option's values. */
enum kg_ckpt_policy {
    KG_CKPT_OFF = 0,      /* none */
    KG_CKPT_INTERVAL = 1, /* every `interval` tokens */
    KG_CKPT_BOUNDARY = 2, /* message ends, end of prompt, end of answer */
    KG_CKPT_BRANCH = 3,   /* where this request leaves what the index has seen */
    KG_CKPT_AUTO = 4,     /* boundary + branch + one per octave of length, by value */
};

/* Why a position was chosen: bits. */
#define KG_CKPT_WHY_INTERVAL 1u
#define KG_CKPT_WHY_MESSAGE 2u
#define KG_CKPT_WHY_PROMPT 4u  /* page * floor((n_prompt - 1) / page) */
#define KG_CKPT_WHY_ANSWER 8u  /* a page crossing of the output: replaces the one before it */
#define KG_CKPT_WHY_BRANCH 16u /* second sighting */
#define KG_CKPT_WHY_OCTAVE 32u /* sparse: interval * 2^k */
#define KG_CKPT_WHY_ASKED 64u  /* the request asked for it: under every policy but off */

struct kg_ckpt_view {
    uint32_t policy;      /* enum kg_ckpt_policy */
    uint32_t page_tokens; /* >= 1 */
    uint32_t interval;    /* tokens; rounded down to pages, at least one page */
    uint32_t gap;         /* auto: tokens whose pages take the bytes of a state; message ends closer
                             than that behind another checkpoint are left out */
    uint32_t max_orders;  /* of a step */
    uint32_t n_prompt;    /* tokens to prefill */
    uint32_t past;        /* committed tokens */
    uint32_t n_rows;      /* rows of the step: positions lie in (past, past + n_rows] */
    uint32_t branch;      /* equal tokens the index has seen, 0 for none (match.seen_tokens) */
    uint32_t last;        /* position of the request's last checkpoint, its hit included; 0 none */
    const uint32_t *boundaries; /* [n_boundaries] message ends, ascending */
    uint32_t n_boundaries;
    const uint32_t *marks; /* [n_marks] positions the request asks for, ascending */
    uint32_t n_marks;
};

struct kg_ckpt {
    uint32_t position; /* tokens */
    uint32_t why;      /* KG_CKPT_WHY_* */
};

/*
 * Positions of the next step, ascending: their number, at most max_orders. *n_rows gets the rows
 * the step may have: all of v->n_rows, or fewer so that it ends at the last position that fits.
 */
uint32_t kg_ckpt_orders(const struct kg_ckpt_view *v, struct kg_ckpt *out, uint32_t *n_rows);

/* Kind of a checkpoint for the index (below KG_INDEX_KINDS): its rarest reason, and how much of the
 * prompt of n_prompt tokens the index had seen: less than a quarter, than three, more, all pages.
 */
uint32_t kg_ckpt_kind(uint32_t why, uint32_t seen, uint32_t n_prompt, uint32_t page_tokens);

/*
 * Whether a checkpoint of this kind is worth writing at all, under auto: prompts of which most is
 * new are on probation. Their ends and octaves are kept while ends of such prompts are hit at least
 * half as often as those of prompts that go on from others; what is seen twice gets its branch
 * anyway. share[KG_INDEX_KINDS] and known[KG_INDEX_KINDS] as kg_index_shares gives them; a kind of
 * which too little is known is written.
 */
int kg_ckpt_proven(uint32_t kind, const double *share, const uint32_t *known);

/* Whether a checkpoint of value `worth` may take the place of the cheapest cached state: auto asks
 * for more value per byte, the others take it whenever something can be evicted. */
int kg_ckpt_wins(uint32_t policy, double worth, double cheapest);

#endif
