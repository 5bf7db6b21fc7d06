#include "kit.h"

static void adding_gives_the_bits_of_plain_c(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 1;
    uint32_t rows = 3, cols = 1000;
    size_t stride = cols + 5, n = rows * stride;
    float *a = random_f(&s, n, 1), *b = random_f(&s, n, 1), *want = take_f(n);
    float *da = dev_copy(&r, a, n * 4), *db = dev_copy(&r, b, n * 4),
          *dy = dev_copy(&r, want, n * 4);

    (void)state;
    r.ref->add(NULL, want, stride, a, stride, b, stride, rows, cols);
    r.k->add(r.team, dy, stride, da, stride, db, stride, rows, cols);
    float *got = host_copy(&r, dy, n * 4);
    same_bits("add", got, want, n);
    kg_cuda_free(r.cuda, da);
    kg_cuda_free(r.cuda, db);
    kg_cuda_free(r.cuda, dy);
    free(a);
    free(b);
    free(want);
    free(got);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adding_gives_the_bits_of_plain_c),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
