#include "text/text.h"

#include <stdlib.h>
#include <string.h>

/* The capacity to grow to for n elements of `bytes` each, or 0 if that overflows. */
static size_t grown(size_t cap, size_t n, size_t bytes)
{
    size_t want = cap < 16 ? 16 : cap + cap / 2;
    if (want < n) {
        want = n;
    }
    return want > SIZE_MAX / 2 / bytes ? 0 : want;
}

int kg_ids_reserve(struct kg_ids *ids, size_t more)
{
    if (more <= ids->cap - ids->n) {
        return KG_OK;
    }
    size_t cap = more > SIZE_MAX / 8 ? 0 : grown(ids->cap, ids->n + more, sizeof(*ids->v));
    uint32_t *v = cap == 0 ? NULL : realloc(ids->v, cap * sizeof(*v));
    if (v == NULL) {
        return KG_ENOMEM;
    }
    ids->v = v;
    ids->cap = cap;
    return KG_OK;
}

int kg_text_reserve(struct kg_text *text, size_t more)
{
    /* One byte beyond the contents is kept for the NUL. */
    if (text->cap > text->n && more < text->cap - text->n) {
        return KG_OK;
    }
    size_t cap = more > SIZE_MAX / 8 ? 0 : grown(text->cap, text->n + more + 1, 1);
    char *v = cap == 0 ? NULL : realloc(text->v, cap);
    if (v == NULL) {
        return KG_ENOMEM;
    }
    text->v = v;
    text->cap = cap;
    return KG_OK;
}

int kg_ids_push(struct kg_ids *ids, uint32_t id)
{
    if (ids->n == ids->cap && kg_ids_reserve(ids, 1) != KG_OK) {
        return KG_ENOMEM;
    }
    ids->v[ids->n++] = id;
    return KG_OK;
}

int kg_text_add(struct kg_text *text, const void *bytes, size_t n)
{
    if (kg_text_reserve(text, n) != KG_OK) {
        return KG_ENOMEM;
    }
    if (n > 0) {
        memcpy(text->v + text->n, bytes, n);
    }
    text->n += n;
    text->v[text->n] = '\0';
    return KG_OK;
}

int kg_text_puts(struct kg_text *text, const char *zstr)
{
    return kg_text_add(text, zstr, strlen(zstr));
}

void kg_ids_free(struct kg_ids *ids)
{
    free(ids->v);
    *ids = (struct kg_ids){0};
}

void kg_text_free(struct kg_text *text)
{
    free(text->v);
    *text = (struct kg_text){0};
}
