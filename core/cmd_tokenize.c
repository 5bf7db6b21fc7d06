/* kedge tokenize: the tokens of a text, as a table, as ids, or as JSON. */
#include "cmd.h"

#include "base/buf.h"
#include "base/utf8.h"
#include "text/tokenizer.h"
#include <stdlib.h>
#include <string.h>

#define USAGE "kedge tokenize (-m DIR | -c FILE) [--markup] [--ids] [--json] [TEXT | -]"
#define MAX_TEXT (256u << 20) /* bytes */

/* All of standard input. */
static int read_input(struct kg_buf *text, struct kg_error *err)
{
    char part[65536];
    size_t n;
    while ((n = fread(part, 1, sizeof(part), stdin)) > 0) {
        int rc = kg_buf_add(text, part, n);
        if (rc != KG_OK) {
            return kg_fail(err, rc, "standard input: more than %u bytes", MAX_TEXT);
        }
    }
    return ferror(stdin) ? kg_fail(err, KG_EIO, "standard input: cannot be read") : KG_OK;
}

static void add_ids(struct kg_buf *out, const struct kg_ids *ids, const char *gap)
{
    for (size_t i = 0; i < ids->n; i++) {
        (void)kg_buf_printf(out, "%s%u", i == 0 ? "" : gap, ids->v[i]);
    }
}

static void add_json(struct kg_buf *out, const struct kg_tok *tok, const struct kg_ids *ids)
{
    (void)kg_buf_printf(out, "{\"count\":%zu,\"tokens\":[", ids->n);
    add_ids(out, ids, ",");
    (void)kg_buf_puts(out, "],\"pieces\":[");
    for (size_t i = 0; i < ids->n; i++) {
        struct kg_span s = kg_tok_bytes(tok, ids->v[i]);
        (void)kg_buf_puts(out, i == 0 ? "" : ",");
        (void)kg_buf_json_str(out, s.p, s.n);
    }
    (void)kg_buf_puts(out, "]}\n");
}

/* A row per token: id, then its text as a JSON string, or its bytes in hex if they are no text. */
static void add_table(struct kg_buf *out, const struct kg_tok *tok, const struct kg_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++) {
        struct kg_span s = kg_tok_bytes(tok, ids->v[i]);
        (void)kg_buf_printf(out, "%7u  ", ids->v[i]);
        if (kg_utf8_valid(s.p, s.n) == s.n) {
            (void)kg_buf_json_str(out, s.p, s.n);
        } else {
            for (size_t k = 0; k < s.n; k++) {
                (void)kg_buf_printf(out, "%s%02x", k == 0 ? "" : " ", (unsigned)(uint8_t)s.p[k]);
            }
        }
        (void)kg_buf_putc(out, '\n');
    }
    (void)kg_buf_printf(out, "%zu tokens\n", ids->n);
}

struct job {
    const char *dir;
    const char *text; /* NULL or "-": standard input */
    int markup, only_ids, json;
};

static int tokenize(const struct job *job, struct kg_buf *in, struct kg_buf *out,
                    struct kg_error *err)
{
    struct kg_tok *tok = NULL;
    struct kg_ids ids = {0};
    int rc = kg_tok_open(job->dir, &tok, err);
    if (rc != KG_OK) {
        return rc;
    }
    struct kg_tok_scratch *scratch = kg_tok_scratch_new(tok);
    if (scratch == NULL) {
        rc = kg_fail(err, KG_ENOMEM, "tokenize: out of memory");
    } else if (job->text == NULL || strcmp(job->text, "-") == 0) {
        rc = read_input(in, err);
    } else {
        rc = kg_buf_puts(in, job->text);
    }
    if (rc == KG_OK) {
        rc = kg_tok_encode(tok, scratch, job->markup ? KG_TOK_MARKUP : KG_TOK_PLAIN,
                           kg_buf_cstr(in), in->len, &ids);
    }
    if (rc == KG_OK && job->json) {
        add_json(out, tok, &ids);
    } else if (rc == KG_OK && job->only_ids) {
        add_ids(out, &ids, " ");
        (void)kg_buf_putc(out, '\n');
    } else if (rc == KG_OK) {
        add_table(out, tok, &ids);
    }
    kg_ids_free(&ids);
    kg_tok_scratch_free(scratch);
    kg_tok_close(tok);
    rc = rc == KG_OK ? out->rc : rc;
    return rc == KG_OK || err->rc != 0 ? rc : kg_fail(err, rc, "tokenize: out of memory");
}

int kg_cmd_tokenize(int argc, char **argv)
{
    struct job job = {0};
    struct kg_cmd_line line;
    const struct kg_cmd_flag flags[] = {
        {"-m", "DIR", "checkpoint folder (else [model] path of the configuration)", &job.dir, NULL},
        {"--markup", NULL, "control strings become their ids", NULL, &job.markup},
        {"--ids", NULL, "print the ids only, on one line", NULL, &job.only_ids},
        {NULL, NULL, NULL, NULL, NULL},
    };
    int rc = kg_cmd_parse(&line, argc, argv, USAGE,
                          "Prints the tokens of TEXT, or of standard input.", flags, 1);
    if (rc >= 0) {
        return rc;
    }
    struct kg_config *config = NULL;
    if (job.dir == NULL) {
        rc = kg_cmd_config(&line, &config);
        if (rc >= 0) {
            return rc;
        }
        job.dir = kg_config_conf(config)->model_path;
    }
    struct kg_error err = {0};
    struct kg_buf in, out;
    kg_buf_init(&in, MAX_TEXT);
    kg_buf_init(&out, 0);
    job.text = line.n_rest > 0 ? line.rest[0] : NULL;
    job.json = line.json;
    if (job.dir[0] == '\0') {
        rc = kg_fail(&err, KG_ECONFIG, "tokenize: no checkpoint, give -m DIR");
    } else {
        rc = tokenize(&job, &in, &out, &err);
    }
    if (rc == KG_OK && fwrite(out.data, 1, out.len, stdout) != out.len) {
        rc = kg_fail(&err, KG_EIO, "standard output: cannot be written");
    }
    kg_buf_fini(&in);
    kg_buf_fini(&out);
    kg_config_destroy(config);
    return rc == KG_OK ? KG_EXIT_OK : kg_cmd_fail(&err);
}
