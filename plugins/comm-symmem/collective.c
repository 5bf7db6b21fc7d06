/*
 * The algorithms. By bytes a rank gives:
 *
 *   push      lines of 56 bytes with their own flag: the reader finds data and flag in one cache
 *             line, nobody waits for a counter
 *   one-shot  each rank lays its input down, all meet, each rank adds everything
 *   two-shot  all meet, each rank adds its slice from everyone's input, all meet, slices are
 * gathered
 *
 * The bits are the same for all: ranks are added in rank order. Larger inputs go in pieces of at
 * most `stage` bytes. An input in symmetric memory is read where it lies; ranks then meet once more
 * before they leave, unless they have to anyway.
 */
#include "symmem.h"

#include <string.h>

/* One collective on its way. */
struct job {
    struct kg_comm *c;
    const struct kg_coll *k;
    struct symm_channel *ch;
    struct symm_said said;
    uint64_t sum;     /* checksum mode: of the output */
    size_t one;       /* bytes of an element */
    uint64_t flag;    /* of this piece's lines: its number, and 16 bits of what the call is */
    uint64_t give_up; /* deadline of the waits for lines */
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static char *half_of(const struct job *j, uint32_t rank, uint64_t where, uint64_t half)
{
    return symm_chan_area(j->c, j->k->channel, rank) + where + (j->ch->piece & 1) * half;
}

static char *stage_of(const struct job *j, uint32_t rank)
{
    return half_of(j, rank, j->c->plan.stage, j->c->plan.stage_half);
}

/* [world] counts, [world] checksums, by destination. */
static uint64_t *notes_of(const struct job *j, uint32_t rank)
{
    return (uint64_t *)half_of(j, rank, j->c->plan.notes, j->c->plan.notes_half);
}

static void count_metric(const struct job *j, int metric)
{
    if (j->c->host->cells != NULL)
        kg_add(&j->c->host->cells[metric], 1);
}

static int meet(struct job *j)
{
    return symm_meet_all(j->c, j->k->channel, &j->said, j->sum);
}

/* Says where the input lies if that is in symmetric memory and worth reading there. */
static int lies_open(struct job *j, const void *in, uint64_t bytes)
{
    const char *from = symm_area(j->c, j->c->rank);

    j->said.in_offset = SYMM_NOWHERE;
    if (bytes <= j->c->one_shot_max || (const char *)in < from ||
        (const char *)in + bytes > from + j->c->symm_bytes)
        return 0;
    j->said.in_offset = (uint64_t)((const char *)in - from);
    return 1;
}

/* A rank's input at this meeting: where it lies, or its stage. */
static const char *source_of(const struct job *j, uint32_t rank, int *open)
{
    uint64_t offset = symm_heard(j->c, j->k->channel, rank)->in_offset;

    if (offset == SYMM_NOWHERE)
        return stage_of(j, rank);
    *open = 1;
    return symm_area(j->c, rank) + offset;
}

/* --- push --- */

static struct symm_line *lines_of(const struct job *j, uint32_t rank)
{
    return (struct symm_line *)half_of(j, rank, j->c->plan.lines, j->c->plan.lines_half);
}

/* 16 bits of what the call is. */
static uint64_t mark_of(const struct symm_said *s)
{
    uint64_t h = (s->what + ((uint64_t)s->root << 32)) * 0x9e3779b97f4a7c15ull;

    return ((h ^ s->count) * 0xff51afd7ed558ccdull) >> 48;
}

#define LOOKS 40   /* about what a cache line takes to come */
#define ABREAST 8u /* lines asked for at once */

/* A short look at the first `n` lines of everyone. All are asked for before the first is waited
 * for, so that they come side by side. */
static void look(const struct job *j, uint64_t n)
{
    for (uint32_t r = 0; r < j->c->world; r++) {
        const struct symm_line *l = lines_of(j, r);
        for (int i = 0; i < LOOKS; i++) {
            uint64_t wrong = 0;
            for (uint64_t k = 0; k < n && k < ABREAST; k++)
                wrong |= atomic_load_explicit(&l[k].flag, memory_order_relaxed) ^ j->flag;
            if (wrong == 0)
                break;
        }
    }
}

/* Writes `bytes` into this rank's lines, at least one line, and arrives; `expect`: bytes that some
 * other rank sends. */
static void push(struct job *j, const void *data, uint64_t bytes, uint64_t expect)
{
    struct symm_line *l = lines_of(j, j->c->rank);
    uint64_t at = 0;

    j->flag = j->ch->piece << 16 | mark_of(&j->said);
    for (; at + SYMM_LINE_DATA <= bytes; at += SYMM_LINE_DATA, l++) {
        memcpy(l->data, (const char *)data + at, SYMM_LINE_DATA);
        atomic_store_explicit(&l->flag, j->flag, memory_order_release);
    }
    if (at < bytes || at == 0) {
        memcpy(l->data, (const char *)data + at, (size_t)(bytes - at));
        atomic_store_explicit(&l->flag, j->flag, memory_order_release);
    }
    symm_arrive(j->c, j->k->channel, &j->said, 0);
    look(j, expect / SYMM_LINE_DATA + (expect % SYMM_LINE_DATA != 0));
    symm_tell(j->c, j->k->channel);
}

/* Waits until a line of another rank is there. */
static int line_came(struct job *j, uint32_t rank, const struct symm_line *l)
{
    uint64_t want = j->flag;

    for (uint32_t i = 0;; i++) {
        uint64_t flag = atomic_load_explicit(&l->flag, memory_order_acquire);
        if (flag == want)
            return KG_OK;
        if (flag >> 16 == want >> 16)
            return symm_lose(j->c, SYMM_DIFFER, rank);
        if (i == j->c->conf.spins)
            break;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    int rc = symm_await(j->c, j->k->channel, rank, &j->give_up);
    if (rc == KG_OK && atomic_load_explicit(&l->flag, memory_order_acquire) != want)
        rc = symm_lose(j->c, SYMM_DIFFER, rank); /* it came, with another call */
    return rc;
}

/* All first lines are there: everyone is in this piece. */
static int all_came(struct job *j)
{
    int rc = KG_OK;

    for (uint32_t r = 0; r < j->c->world && rc == KG_OK; r++)
        rc = line_came(j, r, lines_of(j, r));
    return rc;
}

static int push_reduce(struct job *j)
{
    const void *x[SYMM_MAX_WORLD];
    uint64_t bytes = j->k->count * j->one;

    push(j, j->k->in, bytes, bytes);
    for (uint64_t at = 0, l = 0; at < bytes; at += SYMM_LINE_DATA, l++) {
        for (uint32_t r = 0; r < j->c->world; r++) {
            const struct symm_line *line = lines_of(j, r) + l;
            int rc = r == j->c->rank ? KG_OK : line_came(j, r, line);
            if (rc != KG_OK)
                return rc;
            x[r] = line->data;
        }
        symm_sum(j->k->dtype, (char *)j->k->out + at, x, j->c->world,
                 least(SYMM_LINE_DATA, bytes - at) / j->one);
    }
    return KG_OK;
}

/* Copies a rank's lines out as they come. */
static int pull_lines(struct job *j, uint32_t rank, void *out, uint64_t bytes)
{
    const struct symm_line *l = lines_of(j, rank);

    for (uint64_t at = 0; at < bytes; at += SYMM_LINE_DATA, l++) {
        int rc = line_came(j, rank, l);
        if (rc != KG_OK)
            return rc;
        memcpy((char *)out + at, l->data, (size_t)least(SYMM_LINE_DATA, bytes - at));
    }
    return KG_OK;
}

static int push_gather(struct job *j)
{
    uint64_t bytes = j->k->count * j->one;
    int rc = KG_OK;

    push(j, j->k->in, bytes, bytes);
    for (uint32_t r = 0; r < j->c->world && rc == KG_OK; r++)
        rc = pull_lines(j, r, (char *)j->k->out + r * bytes, bytes);
    return rc;
}

static int push_broadcast(struct job *j)
{
    uint64_t bytes = j->k->count * j->one;
    int is_root = j->c->rank == j->k->root;

    push(j, j->k->in, is_root ? bytes : 0, 1);
    int rc = all_came(j);
    if (rc == KG_OK && !(is_root && j->k->in == j->k->out))
        rc = pull_lines(j, j->k->root, j->k->out, bytes);
    return rc;
}

/* --- through the stage --- */

static int one_shot(struct job *j, uint64_t at, uint64_t n)
{
    const void *x[SYMM_MAX_WORLD];

    memcpy(stage_of(j, j->c->rank), (const char *)j->k->in + at * j->one, n * j->one);
    int rc = meet(j);
    for (uint32_t r = 0; r < j->c->world; r++)
        x[r] = stage_of(j, r);
    if (rc == KG_OK)
        symm_sum(j->k->dtype, (char *)j->k->out + at * j->one, x, j->c->world, n);
    return rc;
}

static int two_shot(struct job *j, uint64_t at, uint64_t n)
{
    const void *x[SYMM_MAX_WORLD];
    const struct symm_plan *p = &j->c->plan;
    uint64_t per = ((n + j->c->world - 1) / j->c->world + 31) / 32 * 32; /* whole cache lines */
    uint64_t lo = least(n, per * j->c->rank), hi = least(n, lo + per);
    int open = 0;

    if (!lies_open(j, (const char *)j->k->in + at * j->one, n * j->one))
        memcpy(stage_of(j, j->c->rank), (const char *)j->k->in + at * j->one, n * j->one);
    int rc = meet(j);
    if (rc != KG_OK)
        return rc;
    for (uint32_t r = 0; r < j->c->world; r++)
        x[r] = source_of(j, r, &open) + lo * j->one;
    symm_sum(j->k->dtype, half_of(j, j->c->rank, p->result, p->result_half), x, j->c->world,
             hi - lo);
    rc = meet(j);
    for (uint32_t r = 0; r < j->c->world && rc == KG_OK; r++) {
        lo = least(n, per * r);
        hi = least(n, lo + per);
        memcpy((char *)j->k->out + (at + lo) * j->one, half_of(j, r, p->result, p->result_half),
               (hi - lo) * j->one);
    }
    return rc;
}

static int all_reduce(struct job *j)
{
    uint64_t bytes = j->k->count * j->one, most = j->c->conf.stage / j->one;
    int two = bytes > j->c->one_shot_max;
    int rc = KG_OK;

    count_metric(j, bytes <= j->c->push_max ? SYMM_M_PUSH
                    : two                   ? SYMM_M_TWO_SHOT
                                            : SYMM_M_ONE_SHOT);
    if (bytes <= j->c->push_max) {
        j->ch->piece++;
        return push_reduce(j);
    }
    for (uint64_t at = 0; at < j->k->count && rc == KG_OK; at += most) {
        uint64_t n = least(most, j->k->count - at);
        j->ch->piece++;
        rc = two ? two_shot(j, at, n) : one_shot(j, at, n);
    }
    return rc;
}

/* Checksum mode, blocks by destination: what is sent to p at this piece. */
static void note_sum(struct job *j, uint32_t p, const void *block, uint64_t bytes)
{
    if (j->c->conf.checksum)
        notes_of(j, j->c->rank)[j->c->world + p] = symm_hash(block, bytes, p);
}

static int check_sum(struct job *j, uint32_t r, const void *block, uint64_t bytes)
{
    if (!j->c->conf.checksum ||
        notes_of(j, r)[j->c->world + j->c->rank] == symm_hash(block, bytes, j->c->rank))
        return KG_OK;
    return symm_lose(j->c, SYMM_CORRUPT, r);
}

static int scatter_piece(struct job *j, uint64_t at, uint64_t n)
{
    const void *x[SYMM_MAX_WORLD];
    const char *in = j->k->in;
    uint64_t count = j->k->count;
    int open = lies_open(j, in, count * j->one * j->c->world);

    for (uint32_t p = 0; p < j->c->world; p++) {
        const char *block = in + (p * count + at) * j->one;
        if (!open)
            memcpy(stage_of(j, j->c->rank) + p * n * j->one, block, n * j->one);
        note_sum(j, p, block, n * j->one);
    }
    int rc = meet(j);
    open = 0;
    for (uint32_t r = 0; r < j->c->world && rc == KG_OK; r++) {
        int lies = 0;
        const char *from = source_of(j, r, &lies);
        open |= lies;
        x[r] = lies ? from + (j->c->rank * count + at) * j->one : from + j->c->rank * n * j->one;
        rc = check_sum(j, r, x[r], n * j->one);
    }
    if (rc != KG_OK)
        return rc;
    symm_sum(j->k->dtype, (char *)j->k->out + at * j->one, x, j->c->world, n);
    return open ? meet(j) : KG_OK;
}

static int reduce_scatter(struct job *j)
{
    uint64_t most = j->c->conf.stage / (j->one * j->c->world);
    int rc = KG_OK;

    for (uint64_t at = 0; at < j->k->count && rc == KG_OK; at += most) {
        j->ch->piece++;
        rc = scatter_piece(j, at, least(most, j->k->count - at));
    }
    return rc;
}

static int gather_piece(struct job *j, uint64_t at, uint64_t n)
{
    const char *in = (const char *)j->k->in + at * j->one;
    int open = lies_open(j, in, n * j->one);

    if (!open)
        memcpy(stage_of(j, j->c->rank), in, n * j->one);
    int rc = meet(j);
    open = 0;
    for (uint32_t r = 0; r < j->c->world && rc == KG_OK; r++) {
        char *to = (char *)j->k->out + (r * j->k->count + at) * j->one;
        const char *from = source_of(j, r, &open);
        if (r != j->c->rank)
            memcpy(to, from, n * j->one);
        else if (to != in)
            memmove(to, in, n * j->one);
    }
    return rc == KG_OK && open ? meet(j) : rc;
}

static int all_gather(struct job *j)
{
    uint64_t most = j->c->conf.stage / j->one;
    int rc = KG_OK;

    if (j->k->count * j->one <= j->c->push_max) {
        j->ch->piece++;
        return push_gather(j);
    }
    for (uint64_t at = 0; at < j->k->count && rc == KG_OK; at += most) {
        j->ch->piece++;
        rc = gather_piece(j, at, least(most, j->k->count - at));
    }
    return rc;
}

/* Elements at..at+n of what one rank sends to another, of `all`. */
static uint64_t part(uint64_t all, uint64_t at, uint64_t n)
{
    return all > at ? least(all - at, n) : 0;
}

static int exchange_piece(struct job *j, uint64_t at, uint64_t n)
{
    uint64_t *notes = notes_of(j, j->c->rank);
    uint64_t count = j->k->count;

    for (uint32_t p = 0; p < j->c->world; p++) {
        const char *block = (const char *)j->k->in + (p * count + at) * j->one;
        notes[p] = j->k->counts != NULL ? j->k->counts[p] : count;
        uint64_t bytes = part(notes[p], at, n) * j->one;
        memcpy(stage_of(j, j->c->rank) + p * n * j->one, block, bytes);
        note_sum(j, p, block, bytes);
    }
    int rc = meet(j);
    for (uint32_t r = 0; r < j->c->world && rc == KG_OK; r++) {
        uint64_t bytes = part(notes_of(j, r)[j->c->rank], at, n) * j->one;
        const char *block = stage_of(j, r) + j->c->rank * n * j->one;
        rc = check_sum(j, r, block, bytes);
        if (rc == KG_OK)
            memcpy((char *)j->k->out + (r * count + at) * j->one, block, bytes);
    }
    return rc;
}

static int all_to_all(struct job *j)
{
    uint64_t most = j->c->conf.stage / (j->one * j->c->world);
    int rc = KG_OK;

    for (uint64_t at = 0; at < j->k->count && rc == KG_OK; at += most) {
        j->ch->piece++;
        rc = exchange_piece(j, at, least(most, j->k->count - at));
    }
    return rc;
}

static int cast_piece(struct job *j, uint64_t at, uint64_t n)
{
    const char *in = (const char *)j->k->in + at * j->one;
    int is_root = j->c->rank == j->k->root;
    int open = 0;

    j->said.in_offset = SYMM_NOWHERE;
    if (is_root && !lies_open(j, in, n * j->one))
        memcpy(stage_of(j, j->c->rank), in, n * j->one);
    int rc = meet(j);
    if (rc != KG_OK)
        return rc;
    const char *from = source_of(j, j->k->root, &open);
    if (!is_root)
        memcpy((char *)j->k->out + at * j->one, from, n * j->one);
    else if (j->k->out != j->k->in)
        memmove((char *)j->k->out + at * j->one, in, n * j->one);
    return open ? meet(j) : KG_OK;
}

static int broadcast(struct job *j)
{
    uint64_t most = j->c->conf.stage / j->one;
    int rc = KG_OK;

    if (j->k->count * j->one <= j->c->push_max) {
        j->ch->piece++;
        return push_broadcast(j);
    }
    for (uint64_t at = 0; at < j->k->count && rc == KG_OK; at += most) {
        j->ch->piece++;
        rc = cast_piece(j, at, least(most, j->k->count - at));
    }
    return rc;
}

/* Checksum mode: outputs that must be equal on all ranks are. */
static int compare_outputs(struct job *j, uint64_t elements)
{
    j->said.in_offset = SYMM_NOWHERE;
    j->sum = symm_hash(j->k->out, elements * j->one, 1);
    int rc = meet(j);
    for (uint32_t r = 0; r < j->c->world && rc == KG_OK; r++) {
        if (symm_heard_sum(j->c, j->k->channel, r) != j->sum)
            rc = symm_lose(j->c, SYMM_CORRUPT, r);
    }
    return rc;
}

int symm_run(struct kg_comm *c, enum symm_op op, const struct kg_coll *k)
{
    struct job j = {.c = c,
                    .k = k,
                    .ch = &c->channels[k->channel],
                    .one = kg_dtype_bytes(k->dtype),
                    .said = {.what = (uint32_t)op | k->dtype << 8,
                             .root = op == SYMM_BROADCAST ? k->root : 0,
                             .count = k->count,
                             .in_offset = SYMM_NOWHERE}};
    int equal = c->conf.checksum;
    int rc;

    switch (op) {
    case SYMM_ALL_REDUCE:
        rc = all_reduce(&j);
        break;
    case SYMM_REDUCE_SCATTER:
        rc = reduce_scatter(&j);
        equal = 0;
        break;
    case SYMM_ALL_GATHER:
        rc = all_gather(&j);
        break;
    case SYMM_ALL_TO_ALL:
        rc = all_to_all(&j);
        equal = 0;
        break;
    default:
        rc = broadcast(&j);
        break;
    }
    if (rc == KG_OK && equal)
        rc = compare_outputs(&j, k->count * (op == SYMM_ALL_GATHER ? c->world : 1));
    return rc;
}
