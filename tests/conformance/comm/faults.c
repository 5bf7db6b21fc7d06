#include "faults.h"

#include "conf.h"
#include "plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST_OPTIONS 8

struct faults faults;

int faults_load(int argc, char **argv, const char *plan)
{
    struct kg_plugin_ref ref;
    struct kg_error err = {0};

    if (argc != 3 || kg_plugin_load("", KG_KIND_COMM, argv[1], &ref, &err) != KG_OK) {
        (void)fprintf(stderr, "usage: %s PLUGIN FAKE: %s\n", argv[0], err.text);
        return 2;
    }
    faults.plugin = ref.plugin;
    faults.fake_path = argv[2];
    void *so = dlopen(faults.fake_path, RTLD_NOW);
    faults.fake = so != NULL ? dlsym(so, plan) : NULL;
    faults.driver = so != NULL ? dlsym(so, "fake_driver_plan") : NULL;
    if (faults.fake != NULL && faults.driver != NULL)
        return 0;
    (void)fprintf(stderr, "%s: %s\n", argv[0], dlerror());
    return 2;
}

void faults_reset(void)
{
    atomic_store(&faults.driver->devices, FAKE_DEVICES);
    atomic_store(&faults.driver->init_result, 0);
    atomic_store(&faults.driver->capturing, 0);
    atomic_store(&faults.driver->fails, 0);
    atomic_store(&faults.driver->keeps, 0);
    for (int r = 0; r < FAKE_DEVICES; r++)
        atomic_store(&faults.driver->stuck[r], 0);
}

void faults_nothing_is_held(void)
{
    assert_int_equal(atomic_load(&faults.driver->streams), 0);
    assert_int_equal(atomic_load(&faults.driver->events), 0);
    assert_int_equal(atomic_load(&faults.driver->contexts), 0);
}

static void note(struct rank *r, int rc, const struct kg_error *err)
{
    faults.said[r->rank].rc = rc;
    faults.said[r->rank].err = *err;
}

void faults_run(const struct faults_run *run, char *const *fake_options, int n_fake)
{
    char fault[300], *all[MOST_OPTIONS];
    struct kg_arena options;
    struct kg_error err = {0};

    assert_true(n_fake + run->n <= MOST_OPTIONS);
    memcpy(all, fake_options, (size_t)n_fake * sizeof(*all));
    if (run->n > 0)
        memcpy(all + n_fake, run->words, (size_t)run->n * sizeof(*all));
    kg_arena_init(&options, 0, 0);
    void *conf = comm_conf(faults.plugin, &options, all, n_fake + run->n, &err);
    if (conf == NULL)
        fail_msg("%s", err.text);
    const struct rig rig = {.plugin = faults.plugin,
                            .world = run->world,
                            .timeout_ns = run->timeout_ns,
                            .conf = conf,
                            .refused = note,
                            .absent = run->absent,
                            .log = run->log};
    memset(faults.said, 0, sizeof(faults.said));
    int ok = rig_run(&rig, run->run, fault);
    kg_arena_fini(&options);
    if (!ok)
        fail_msg("%s", fault);
}

void faults_refused(uint32_t world, int rc, const char *words)
{
    for (uint32_t r = 0; r < world; r++) {
        if (faults.said[r].rc != rc || strstr(faults.said[r].err.text, words) == NULL)
            fail_msg("rank %u: %d \"%s\", wanted %d \"%s\"", r, faults.said[r].rc,
                     faults.said[r].err.text, rc, words);
    }
}

/* --- cases and what they use --- */

void open_only(struct rank *r)
{
    (void)r;
}

float *sealed(struct rank *r)
{
    float *x = rig_symm(r, 4096);
    struct kg_error err;

    if (x != NULL)
        memset(x, 0, 4096);
    if (r->ops->seal(r->comm, &err) != KG_OK)
        rig_fault(r, __LINE__, err.text);
    return x;
}

static void *abort_soon(void *arg)
{
    struct rank *r = arg;

    r->ops->abort(r->comm);
    return NULL;
}

void an_abort_ends_what_hangs(struct rank *r)
{
    float *x = sealed(r);
    struct kg_coll c = {.dtype = KG_F32, .count = 8, .in = x, .out = x};
    pthread_t thread;

    WANT(r, x != NULL);
    if (r->rank == 0)
        atomic_store(&faults.driver->stuck[0], 1);
    WANT(r, r->ops->barrier(r->comm, 0) == KG_OK);
    if (r->rank == 1)
        WANT(r, pthread_create(&thread, NULL, abort_soon, r) == 0);
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_EDEVICE);
    if (r->rank == 1)
        (void)pthread_join(thread, NULL);
}

static void *in_fake(const char *name)
{
    void *so = dlopen(faults.fake_path, RTLD_NOW | RTLD_NOLOAD), *f = NULL;

    if (so != NULL) {
        f = dlsym(so, name);
        (void)dlclose(so); /* it stays: faults_load has it open */
    }
    return f;
}

void *new_stream(void)
{
    int (*create)(void **stream, unsigned int flags);
    void *stream = NULL;

    *(void **)&create = in_fake("cuStreamCreate");
    if (create != NULL)
        (void)create(&stream, 1);
    return stream;
}

void end_stream(void *stream)
{
    int (*destroy)(void *stream);

    *(void **)&destroy = in_fake("cuStreamDestroy_v2");
    if (destroy != NULL && stream != NULL)
        (void)destroy(stream);
}
