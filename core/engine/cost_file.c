/* A cost surface as text: written once on the machine, read where decisions must not depend on it.
 */
#include "base/line.h"
#include "base/num.h"
#include "engine/cost.h"

#include <errno.h>
#include <string.h>

#define FIRST_LINE "kedge-surface 1"
#define MOST 1e15         /* ns */
#define MOST_DRAFT 65536u /* tokens */

/* Keys in the order of the file; a line may not have an earlier one than the line before. */
enum { KEY_TOKEN, KEY_PROMPT_TOKEN, KEY_STEP, KEY_CHUNK, KEY_DRAFT_TOKEN, KEY_DRAFT, N_KEYS };

static const struct {
    const char *name;
    uint32_t n_values;
} keys[N_KEYS] = {{"token_ns", 1}, {"prompt_token_ns", 1}, {"step", 3},
                  {"chunk", 2},    {"draft_token_ns", 1},  {"draft", 3}};

struct reader {
    const char *path;
    uint32_t line;
    uint32_t begun;     /* the first line was there */
    uint32_t n[N_KEYS]; /* lines seen of each key */
    uint32_t i, j;      /* step: the point that comes next */
    uint32_t di, dj;    /* draft: the same */
    struct kg_cost_table t;
    struct kg_error *err;
};

#define BAD(r, fmt, ...) \
    kg_fail((r)->err, KG_ECONFIG, "%.80s:%u: " fmt, (r)->path, (r)->line, __VA_ARGS__)

static int number(struct reader *r, const char *what, const char *text, double *v)
{
    if (kg_num_f64(text, v) != KG_OK || !(*v >= 0 && *v <= MOST)) {
        return BAD(r, "%s: wanted a number from 0 to 1e15, found \"%.40s\"", what, text);
    }
    return KG_OK;
}

/* The value of an axis: the one that is its turn. */
static int axis(struct reader *r, const char *what, const char *text, uint32_t wanted)
{
    uint64_t v;

    if (kg_num_u64(text, &v) != KG_OK || v != wanted) {
        return BAD(r, "%s \"%.40s\": %u comes next", what, text, wanted);
    }
    return KG_OK;
}

static int read_step(struct reader *r, char *const v[])
{
    struct kg_cost_table *t = &r->t;
    uint64_t seqs = 0;
    double ns = 0.0;

    /* The first row of points says how many there are; from then on each row ends there. */
    if (r->n[KEY_STEP] > 0 &&
        (r->i > 0 ? r->j == t->n_rows : kg_num_u64(v[0], &seqs) == KG_OK && seqs != 1)) {
        t->n_rows = r->j;
        r->i++;
        r->j = 0;
    }
    if (r->i == KG_COST_SEQS || r->j == KG_COST_ROWS || (r->i > 0 && r->j >= t->n_rows)) {
        return BAD(r, "step %.20s %.20s: more points than the grid can have", v[0], v[1]);
    }
    int rc = axis(r, "sequences", v[0], 1u << 2 * r->i);
    if (rc == KG_OK) {
        rc = axis(r, "rows", v[1], 1u << r->j);
    }
    if (rc == KG_OK) {
        rc = number(r, "ns", v[2], &ns);
    }
    double left = r->j > 0 ? t->ns[r->i][r->j - 1] : 0.0;
    double fewer = r->i > 0 ? t->ns[r->i - 1][r->j] : 0.0;
    if (rc == KG_OK && (ns < left || ns < fewer)) {
        return BAD(r, "step %s %s: %s ns, less than with fewer %s", v[0], v[1], v[2],
                   ns < left ? "rows" : "sequences");
    }
    if (rc == KG_OK) {
        t->ns[r->i][r->j++] = ns;
    }
    return rc;
}

static int read_chunk(struct reader *r, char *const v[])
{
    struct kg_cost_table *t = &r->t;
    double ns = 0.0;

    if (t->n_chunk == KG_COST_ROWS) {
        return BAD(r, "chunk %.20s: more than %u points", v[0], KG_COST_ROWS);
    }
    int rc = axis(r, "rows", v[0], 1u << t->n_chunk);
    if (rc == KG_OK) {
        rc = number(r, "ns", v[1], &ns);
    }
    if (rc == KG_OK && t->n_chunk > 0 && ns < t->chunk_ns[t->n_chunk - 1]) {
        return BAD(r, "chunk %s: %s ns, less than with fewer rows", v[0], v[1]);
    }
    if (rc == KG_OK) {
        t->chunk_ns[t->n_chunk++] = ns;
    }
    return rc;
}

/* A number of drafted tokens: ascending in the first row, then those of the first row again. */
static int read_size(struct reader *r, const char *text, uint32_t *size)
{
    const struct kg_draft_cost *d = &r->t.draft;
    uint32_t least = r->dj > 0 ? d->sizes[r->dj - 1] + 1 : 1;
    uint64_t v;

    if (r->di > 0) {
        *size = d->sizes[r->dj];
        return axis(r, "tokens", text, *size);
    }
    if (kg_num_u64(text, &v) != KG_OK || v < least || v > MOST_DRAFT) {
        return BAD(r, "tokens \"%.40s\": wanted %u .. %u", text, least, MOST_DRAFT);
    }
    *size = (uint32_t)v;
    return KG_OK;
}

static int read_draft(struct reader *r, char *const v[])
{
    struct kg_draft_cost *d = &r->t.draft;
    uint64_t seqs = 0;
    uint32_t size = 0;
    double ns = 0.0;

    if (r->n[KEY_DRAFT] > 0 &&
        (r->di > 0 ? r->dj == d->n_sizes : kg_num_u64(v[0], &seqs) == KG_OK && seqs != 1)) {
        d->n_sizes = r->dj;
        r->di++;
        r->dj = 0;
    }
    if (r->di == KG_COST_SEQS || r->dj == KG_COST_DRAFTS) {
        return BAD(r, "draft %.20s %.20s: more points than the grid can have", v[0], v[1]);
    }
    int rc = axis(r, "sequences", v[0], 1u << 2 * r->di);
    if (rc == KG_OK) {
        rc = read_size(r, v[1], &size);
    }
    if (rc == KG_OK) {
        rc = number(r, "ns", v[2], &ns);
    }
    if (rc != KG_OK) {
        return rc;
    }
    if ((r->dj > 0 && ns < d->ns[r->di][r->dj - 1]) ||
        (r->di > 0 && ns < d->ns[r->di - 1][r->dj])) {
        return BAD(r, "draft %s %s: %s ns, less than a smaller one", v[0], v[1], v[2]);
    }
    d->sizes[r->dj] = size;
    d->ns[r->di][r->dj++] = ns;
    return KG_OK;
}

static int read_key(struct reader *r, uint32_t key, char *const v[])
{
    for (uint32_t k = key + 1; k < N_KEYS; k++) {
        if (r->n[k] > 0) {
            return BAD(r, "%s stands behind %s", keys[key].name, keys[k].name);
        }
    }
    if (r->n[key] > 0 && keys[key].n_values == 1) {
        return BAD(r, "%s: given twice", keys[key].name);
    }
    int rc = KG_OK;
    switch (key) {
    case KEY_TOKEN:
        rc = number(r, keys[key].name, v[0], &r->t.token_ns);
        break;
    case KEY_PROMPT_TOKEN:
        rc = number(r, keys[key].name, v[0], &r->t.prompt_token_ns);
        break;
    case KEY_STEP:
        rc = read_step(r, v);
        break;
    case KEY_CHUNK:
        rc = read_chunk(r, v);
        break;
    case KEY_DRAFT_TOKEN:
        rc = number(r, keys[key].name, v[0], &r->t.draft.token_ns);
        break;
    default:
        rc = read_draft(r, v);
        break;
    }
    r->n[key]++;
    return rc;
}

/* One line, split at blanks; what is empty or comment is passed over. */
static int read_line(struct reader *r, char *line)
{
    char *words[5], *rest = line, *word;
    uint32_t n = 0;

    line[strcspn(line, "#\r\n")] = '\0';
    while ((word = strsep(&rest, " \t")) != NULL) {
        if (*word != '\0' && n < 5) {
            words[n++] = word;
        }
    }
    if (n == 0) {
        return KG_OK;
    }
    if (!r->begun) {
        r->begun = n == 2 && strcmp(words[0], "kedge-surface") == 0 && strcmp(words[1], "1") == 0;
        return r->begun ? KG_OK : BAD(r, "wanted \"%s\" on the first line", FIRST_LINE);
    }
    for (uint32_t k = 0; k < N_KEYS; k++) {
        if (strcmp(words[0], keys[k].name) == 0) {
            return n - 1 == keys[k].n_values
                       ? read_key(r, k, words + 1)
                       : BAD(r, "%s: wanted %u numbers behind it", keys[k].name, keys[k].n_values);
        }
    }
    return BAD(r, "%.40s: no such key", words[0]);
}

/* All there, and each row of points as long as the first. */
static int finish(struct reader *r)
{
    struct kg_cost_table *t = &r->t;

    struct kg_draft_cost *d = &t->draft;
    for (uint32_t k = 0; k < N_KEYS; k++) {
        int drafts = k >= KEY_DRAFT_TOKEN; /* both or neither */
        if (r->n[k] == 0 && (!drafts || r->n[KEY_DRAFT_TOKEN] + r->n[KEY_DRAFT] > 0)) {
            return BAD(r, "the file ends without %s", keys[k].name);
        }
    }
    if (r->i == 0) {
        t->n_rows = r->j;
    }
    if (r->j != t->n_rows) {
        return BAD(r, "the file ends before step %u %u", 1u << 2 * r->i, 1u << r->j);
    }
    t->n_seqs = r->i + 1;
    d->n_sizes = r->di == 0 ? r->dj : d->n_sizes;
    if (r->dj != d->n_sizes) {
        return BAD(r, "the file ends before draft %u %u", 1u << 2 * r->di, d->sizes[r->dj]);
    }
    d->n_seqs = r->n[KEY_DRAFT] > 0 ? r->di + 1 : 0;
    return KG_OK;
}

static int read_all(struct reader *r, FILE *f)
{
    char line[256];
    int rc;

    while ((rc = kg_line_read(f, line, sizeof(line))) != KG_ENOENT) {
        r->line++;
        if (rc == KG_ELIMIT) {
            return BAD(r, "a line over %u bytes", (unsigned)sizeof(line) - 2);
        }
        if (rc != KG_OK) {
            return BAD(r, "a byte of %d: this is no text", 0);
        }
        rc = read_line(r, line);
        if (rc != KG_OK) {
            return rc;
        }
    }
    if (ferror(f)) {
        return kg_fail(r->err, KG_EIO, "%.150s: %s", r->path, strerror(errno));
    }
    return finish(r);
}

int kg_cost_read(const char *path, struct kg_cost_table *t, struct kg_error *err)
{
    struct reader r = {.path = path, .err = err};
    FILE *f = fopen(path, "r");

    if (f == NULL) {
        return kg_fail(err, errno == ENOENT ? KG_ENOENT : KG_EIO, "%.150s: %s", path,
                       strerror(errno));
    }
    int rc = read_all(&r, f);
    (void)fclose(f);
    if (rc == KG_OK) {
        *t = r.t;
    }
    return rc;
}

static void write_drafts(const struct kg_draft_cost *d, FILE *f)
{
    if (d->n_seqs > 0) {
        (void)fprintf(f, "draft_token_ns %.17g\n", d->token_ns);
    }
    for (uint32_t i = 0; i < d->n_seqs; i++) {
        for (uint32_t j = 0; j < d->n_sizes; j++) {
            (void)fprintf(f, "draft %u %u %.17g\n", 1u << 2 * i, d->sizes[j], d->ns[i][j]);
        }
    }
}

int kg_cost_write(const struct kg_cost_table *t, const char *about, FILE *f)
{
    (void)fprintf(f, FIRST_LINE "\n# %s\ntoken_ns %.17g\nprompt_token_ns %.17g\n", about,
                  t->token_ns, t->prompt_token_ns);
    for (uint32_t i = 0; i < t->n_seqs; i++) {
        for (uint32_t j = 0; j < t->n_rows; j++) {
            (void)fprintf(f, "step %u %u %.17g\n", 1u << 2 * i, 1u << j, t->ns[i][j]);
        }
    }
    for (uint32_t j = 0; j < t->n_chunk; j++) {
        (void)fprintf(f, "chunk %u %.17g\n", 1u << j, t->chunk_ns[j]);
    }
    write_drafts(&t->draft, f);
    return fflush(f) == 0 && !ferror(f) ? KG_OK : KG_EIO;
}
