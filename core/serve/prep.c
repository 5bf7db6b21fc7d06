#include "serve/prep.h"

#include "base/ring.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A record of one pointer with its head, as the ring counts it, and slack for its wrap. */
#define RECORD_BYTES 32

struct thread {
    const struct kg_api *api;
    struct kg_ring *in, *out;
    struct kg_tok_scratch *scratch;
    pthread_t id;
    bool running;
    uint32_t n_tasks; /* loop thread's count */
    _Atomic bool stop;
};

struct kg_prep {
    uint32_t max_tasks; /* per thread */
    uint32_t n;
    struct thread threads[];
};

static void *thread_main(void *arg)
{
    struct thread *t = arg;

    while (!atomic_load_explicit(&t->stop, memory_order_acquire)) {
        struct kg_prep_task *task;
        size_t n;
        const void *record = kg_ring_peek(t->in, &n);
        if (record == NULL) { /* which cleared the word to stop, if that came before it */
            if (!atomic_load_explicit(&t->stop, memory_order_acquire))
                kg_ring_wait(t->in, -1);
            continue;
        }
        memcpy(&task, record, sizeof(task));
        kg_ring_consume(t->in);
        task->rc = kg_call_prepare(t->api, t->scratch, task->endpoint, task->body, &task->call,
                                   &task->err);
        /* Cannot be full: no more tasks are let in than both rings hold. */
        (void)kg_ring_put(t->out, &task, sizeof(task));
    }
    return NULL;
}

static int start_thread(struct kg_prep *p, struct thread *t, const struct kg_api *api,
                        struct kg_error *err)
{
    size_t bytes = (size_t)p->max_tasks * RECORD_BYTES + 256;
    int rc;

    t->api = api;
    t->scratch = kg_tok_scratch_new(api->tok);
    if (t->scratch == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    rc = kg_ring_create(bytes, &t->in);
    if (rc == KG_OK)
        rc = kg_ring_create(bytes, &t->out);
    if (rc != KG_OK)
        return kg_fail(err, rc, "preparation thread: no ring");
    if (pthread_create(&t->id, NULL, thread_main, t) != 0)
        return kg_fail(err, KG_EIO, "cannot start a preparation thread");
    t->running = true;
    return KG_OK;
}

int kg_prep_create(const struct kg_api *api, struct kg_prep **prep, struct kg_error *err)
{
    uint32_t n = api->conf->prep_threads;
    struct kg_prep *p = calloc(1, sizeof(*p) + n * sizeof(p->threads[0]));

    if (p == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    p->n = n;
    p->max_tasks = api->conf->prep_queue;
    for (uint32_t i = 0; i < n; i++) {
        int rc = start_thread(p, &p->threads[i], api, err);
        if (rc != KG_OK) {
            kg_prep_destroy(p);
            return rc;
        }
    }
    *prep = p;
    return KG_OK;
}

void kg_prep_destroy(struct kg_prep *p)
{
    if (p == NULL)
        return;
    for (uint32_t i = 0; i < p->n; i++) {
        struct thread *t = &p->threads[i];
        if (t->running) {
            atomic_store_explicit(&t->stop, true, memory_order_release);
            kg_ring_wake(t->in);
            (void)pthread_join(t->id, NULL);
        }
        kg_ring_destroy(t->in);
        kg_ring_destroy(t->out);
        kg_tok_scratch_free(t->scratch);
    }
    free(p);
}

int kg_prep_submit(struct kg_prep *p, struct kg_prep_task *task)
{
    struct thread *t = &p->threads[0];
    int rc;

    for (uint32_t i = 1; i < p->n; i++) {
        if (p->threads[i].n_tasks < t->n_tasks)
            t = &p->threads[i];
    }
    if (t->n_tasks >= p->max_tasks)
        return KG_EAGAIN;
    rc = kg_ring_put(t->in, &task, sizeof(task));
    if (rc == KG_OK)
        t->n_tasks++;
    return rc;
}

struct kg_prep_task *kg_prep_next(struct kg_prep *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        struct thread *t = &p->threads[i];
        struct kg_prep_task *task;
        size_t n;
        const void *record = kg_ring_peek(t->out, &n);
        if (record == NULL)
            continue;
        memcpy(&task, record, sizeof(task));
        kg_ring_consume(t->out);
        t->n_tasks--;
        return task;
    }
    return NULL;
}

uint32_t kg_prep_n_threads(const struct kg_prep *p)
{
    return p->n;
}

int kg_prep_fd(const struct kg_prep *p, uint32_t thread)
{
    return kg_ring_fd(p->threads[thread].out);
}

uint32_t kg_prep_n_tasks(const struct kg_prep *p)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n; i++)
        n += p->threads[i].n_tasks;
    return n;
}
