#include "kit.h"

/* Own decoder: not through the kernels' tables. */
static double e2m1(unsigned code, unsigned scale)
{
    unsigned exponent = code >> 1 & 3, mantissa = code & 1;
    double v = exponent == 0 ? mantissa * 0.5 : ldexp(1 + mantissa * 0.5, (int)exponent - 1);

    return ldexp(code & 8 ? -v : v, (int)scale - 127);
}

static void mxfp4_value_of_every_code_and_scale(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 16; code++) {
        for (unsigned scale = 0; scale < 255; scale++) {
            float want = (float)e2m1(code, scale), got = kg_mxfp4_value(code, scale);

            same_bits("mxfp4", &got, &want, 1);
        }
        assert_true(isnan(kg_mxfp4_value(code, 255)));
    }
}

/* Each of 256 bytes as the pair of an output, at a scale: read back through a product with a unit
 * vector, so that the decoder of the table is what is tested. */
static void mxfp4_product_decodes_all_bytes_at_scale_extremes(void **state)
{
    static const uint8_t scales[] = {0, 1, 2, 100, 126, 127, 128, 200, 252, 253, 254, 255};
    uint8_t *packed = take(256 * 16), *scale = take(256);
    struct kg_weight w;
    float x[32], y[256];

    (void)state;
    assert_int_equal(
        kg_weight_init(&w, KG_W_MXFP4, 256, 32, take(kg_weight_bytes(KG_W_MXFP4, 256, 32))), KG_OK);
    for (EACH_TABLE(t)) {
        if (t.k->math != KG_MATH_EXACT)
            continue;
        for (size_t n = 0; n < sizeof(scales); n++) {
            for (unsigned i = 0; i < 256 * 16; i++)
                packed[i] = (uint8_t)(i / 16);
            memset(scale, scales[n], 256);
            assert_int_equal(kg_weight_fill_mxfp4(&w, 0, 256, packed, scale), KG_OK);
            for (unsigned i = 0; i < 32; i++) {
                memset(x, 0, sizeof(x));
                x[i] = 1.0f;
                t.k->product(NULL, &(struct kg_product){&w, x, y, 32, 256, 1}, 1);
                for (unsigned o = 0; o < 256; o++) {
                    double want = e2m1(o >> (i % 2 * 4) & 15, scales[n]);
                    int other_inf = isinf((float)e2m1(o & 15, scales[n])) ||
                                    isinf((float)e2m1(o >> 4, scales[n]));

                    if (scales[n] == 255)
                        assert_true(isnan(y[o]));
                    else if (other_inf) /* 0 times infinity elsewhere in the row */
                        assert_true(isnan(y[o]));
                    else
                        near("mxfp4 product", y[o], want, 0);
                }
            }
        }
    }
    free(w.data);
    free(packed);
    free(scale);
}

static void packing_keeps_every_element_and_pads_with_zero(void **state)
{
    static const uint32_t sizes[] = {1, 2, 15, 16, 17, 31, 33, 127};
    uint64_t s = 1;

    (void)state;
    for (uint32_t type = KG_W_F32; type <= KG_W_BF16; type++) {
        for (size_t a = 0; a < 8; a++) {
            for (size_t b = 0; b < 8; b++) {
                uint32_t out = sizes[a], in = sizes[b], stride = in + 3;
                float *src = random_f(&s, (size_t)out * stride, 1), *turned = take_f(out * in);
                uint64_t bytes = kg_weight_bytes(type, out, in);
                struct kg_weight w, wt;

                assert_int_equal(kg_weight_init(&w, type, out, in, take(bytes)), KG_OK);
                assert_int_equal(kg_weight_init(&wt, type, out, in, take(bytes)), KG_OK);
                assert_int_equal(kg_weight_fill(&w, 0, 0, out, in, KG_F32, src, stride), KG_OK);
                for (uint32_t o = 0; o < out; o++)
                    for (uint32_t i = 0; i < in; i++)
                        turned[i * out + o] = src[o * stride + i];
                assert_int_equal(kg_weight_fill_t(&wt, 0, 0, out, in, KG_F32, turned, out), KG_OK);
                assert_memory_equal(w.data, wt.data, bytes);
                double sum = 0, packed = 0;
                for (uint32_t o = 0; o < out; o++) {
                    for (uint32_t i = 0; i < in; i++) {
                        float want = src[o * stride + i], got = kg_weight_at(&w, o, i);

                        near("packed", got, want, type == KG_W_BF16 ? 0x1p-8 : 0);
                        sum += fabsf(got);
                    }
                }
                for (uint64_t i = 0; i < bytes / (type == KG_W_F32 ? 4 : 2); i++)
                    packed += type == KG_W_F32 ? fabsf(((float *)w.data)[i])
                                               : fabsf(kg_f32_from_bf16(((uint16_t *)w.data)[i]));
                near("padding is zero", packed, sum, 1e-12);
                free(src);
                free(turned);
                free(w.data);
                free(wt.data);
            }
        }
    }
}

/* From bf16 every value arrives unchanged, whatever the type it is packed into. */
static void bf16_sources_are_copied_exactly(void **state)
{
    uint64_t s = 4;
    uint16_t src[33 * 40];

    (void)state;
    for (size_t i = 0; i < 33 * 40; i++)
        src[i] = kg_bf16_from_f32(rnd_f(&s));
    for (uint32_t type = KG_W_F32; type <= KG_W_BF16; type++) {
        struct kg_weight w, t;
        void *data = take(kg_weight_bytes(type, 35, 41)),
             *turned = take(kg_weight_bytes(type, 41, 35));

        assert_int_equal(kg_weight_init(&w, type, 35, 41, data), KG_OK);
        assert_int_equal(kg_weight_init(&t, type, 41, 35, turned), KG_OK);
        assert_int_equal(kg_weight_fill(&w, 2, 1, 33, 39, KG_BF16, src, 40), KG_OK);
        assert_int_equal(kg_weight_fill_t(&t, 1, 2, 39, 33, KG_BF16, src, 40), KG_OK);
        for (uint32_t o = 0; o < 35; o++) {
            for (uint32_t i = 0; i < 41; i++) {
                int inside = o >= 2 && i >= 1 && i < 40;
                float want = inside ? kg_f32_from_bf16(src[(o - 2) * 40 + i - 1]) : 0;

                assert_true(kg_weight_at(&w, o, i) == want);
                assert_true(kg_weight_at(&t, i, o) == want);
            }
        }
        free(data);
        free(turned);
    }
}

static void blocks_filled_apart_equal_one_fill_and_gaps_stay_zero(void **state)
{
    uint64_t s = 2;
    float *src = random_f(&s, 40 * 50, 1);
    struct kg_weight whole, parts;
    uint64_t bytes = kg_weight_bytes(KG_W_BF16, 40, 50);

    (void)state;
    assert_int_equal(kg_weight_init(&whole, KG_W_BF16, 40, 50, take(bytes)), KG_OK);
    assert_int_equal(kg_weight_init(&parts, KG_W_BF16, 40, 50, take(bytes)), KG_OK);
    assert_int_equal(kg_weight_fill(&whole, 0, 0, 40, 50, KG_F32, src, 50), KG_OK);
    assert_int_equal(kg_weight_fill(&parts, 0, 0, 13, 50, KG_F32, src, 50), KG_OK);
    assert_float_equal(kg_weight_at(&parts, 13, 0), 0, 0);
    assert_int_equal(kg_weight_fill(&parts, 13, 0, 27, 21, KG_F32, src + 13 * 50, 50), KG_OK);
    assert_int_equal(kg_weight_fill(&parts, 13, 21, 27, 29, KG_F32, src + 13 * 50 + 21, 50), KG_OK);
    assert_memory_equal(whole.data, parts.data, bytes);
    assert_int_equal(kg_weight_fill(&parts, 30, 0, 11, 50, KG_F32, src, 50), KG_EINVAL);
    assert_int_equal(kg_weight_fill(&parts, 0, 30, 1, 21, KG_F32, src, 50), KG_EINVAL);
    assert_int_equal(kg_weight_fill(&parts, 0, 0, 1, 1, KG_U8, src, 50), KG_EINVAL);
    free(src);
    free(whole.data);
    free(parts.data);
}

static void bad_shapes_are_refused(void **state)
{
    struct kg_weight w;
    _Alignas(64) char data[4096];

    (void)state;
    assert_int_equal(kg_weight_bytes(7, 16, 16), 0);
    assert_int_equal(kg_weight_bytes(KG_W_F32, 0, 16), 0);
    assert_int_equal(kg_weight_bytes(KG_W_F32, 16, 0), 0);
    assert_int_equal(kg_weight_bytes(KG_W_F32, UINT32_MAX, UINT32_MAX), 0);
    assert_int_equal(kg_weight_init(&w, KG_W_F32, 16, 16, data + 4), KG_EINVAL);
    assert_int_equal(kg_weight_init(&w, KG_W_F32, 16, 16, NULL), KG_EINVAL);
    assert_int_equal(kg_weight_init(&w, 9, 16, 16, data), KG_EINVAL);
    assert_int_equal(kg_weight_init(&w, KG_W_F32, 16, 33, data), KG_OK);
    assert_int_equal(kg_weight_fill_mxfp4(&w, 0, 16, (uint8_t *)data, (uint8_t *)data), KG_EINVAL);
}

/* The nearest of the two neighbours, ties to the even one, found without bit tricks. */
static void bf16_rounds_to_nearest_even(void **state)
{
    uint64_t s = 3;

    (void)state;
    for (int n = 0; n < 200000; n++) {
        uint32_t bits = (uint32_t)rnd(&s);
        float x, lo, hi;

        if (n % 16 == 0)
            bits = (bits & 0xffff0000u) | 0x8000u; /* a tie */
        memcpy(&x, &bits, sizeof(x));
        if (isnan(x)) {
            assert_true(isnan(kg_f32_from_bf16(kg_bf16_from_f32(x))));
            continue;
        }
        uint16_t down = (uint16_t)(bits >> 16), got = kg_bf16_from_f32(x);
        lo = kg_f32_from_bf16(down);
        hi = kg_f32_from_bf16((uint16_t)(down + 1));
        if (isinf(lo) || isinf(hi))
            continue; /* the largest numbers round to infinity or not: see below */
        double below = fabs((double)x - lo), above = fabs((double)hi - x);
        uint16_t want = below < above   ? down
                        : above < below ? (uint16_t)(down + 1)
                                        : (uint16_t)(down + down % 2);
        assert_int_equal(got, want);
    }
    assert_int_equal(kg_bf16_from_f32(INFINITY), 0x7f80);
    assert_int_equal(kg_bf16_from_f32(3.4028234e38f), 0x7f80);
    assert_int_equal(kg_bf16_from_f32(-0.0f), 0x8000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mxfp4_value_of_every_code_and_scale),
        cmocka_unit_test(mxfp4_product_decodes_all_bytes_at_scale_extremes),
        cmocka_unit_test(packing_keeps_every_element_and_pads_with_zero),
        cmocka_unit_test(bf16_sources_are_copied_exactly),
        cmocka_unit_test(blocks_filled_apart_equal_one_fill_and_gaps_stay_zero),
        cmocka_unit_test(bad_shapes_are_refused),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
    };

    return cmocka_run_group_tests(tests, say_skipped, NULL);
}
