/* Reading config.json: the two real configurations, and one refusal per way to get it wrong. */
#include "model/config.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The fields of the published Kimi-Linear configuration that shape the model. */
static const char linear[] =
    "{\"architectures\": [\"KimiLinearForCausalLM\"], \"model_type\": \"kimi_linear\",\n"
    "\"bos_token_id\": 163584, \"eos_token_id\": 163586, \"pad_token_id\": 163839,\n"
    "\"dtype\": \"bfloat16\", \"first_k_dense_replace\": 1, \"head_dim\": 72,\n"
    "\"hidden_act\": \"silu\", \"hidden_size\": 2304, \"intermediate_size\": 9216,\n"
    "\"kv_lora_rank\": 512, \"linear_attn_config\": {\n"
    "\"full_attn_layers\": [4, 8, 12, 16, 20, 24, 27], \"head_dim\": 128,\n"
    "\"kda_layers\": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],\n"
    "\"num_heads\": 32, \"short_conv_kernel_size\": 4},\n"
    "\"mla_use_nope\": true, \"model_max_length\": 1048576, \"moe_intermediate_size\": 1024,\n"
    "\"moe_layer_freq\": 1, \"moe_renormalize\": true,\n"
    "\"moe_router_activation_func\": \"sigmoid\", \"num_attention_heads\": 32,\n"
    "\"num_expert_group\": 1, \"num_experts\": 256, \"num_experts_per_token\": 8,\n"
    "\"num_hidden_layers\": 27, \"num_key_value_heads\": 32, \"num_nextn_predict_layers\": 0,\n"
    "\"num_shared_experts\": 1, \"q_lora_rank\": null, \"qk_nope_head_dim\": 128,\n"
    "\"qk_rope_head_dim\": 64, \"rms_norm_eps\": 1e-05, \"rope_scaling\": null,\n"
    "\"rope_theta\": 10000.0, \"routed_scaling_factor\": 2.446,\n"
    "\"tie_word_embeddings\": false, \"topk_group\": 1, \"use_grouped_topk\": true,\n"
    "\"v_head_dim\": 128, \"vocab_size\": 163840}";

/* A K3-shaped one: outer and text configuration, bounded gate, latent experts, residuals. */
static const char k3[] =
    "{\"architectures\": [\"KimiK3ForConditionalGeneration\"], \"model_type\": \"kimi_k3\",\n"
    "\"bos_token_id\": 900, \"eos_token_id\": 902, \"pad_token_id\": 999,\n"
    "\"tie_word_embeddings\": false, \"vision_config\": {\"hidden_size\": 1024},\n"
    "\"text_config\": {\"architectures\": [\"KimiLinearForCausalLM\"],\n"
    "\"model_type\": \"kimi_linear\", \"activation_situ_beta\": 4.0,\n"
    "\"activation_situ_linear_beta\": 25.0, \"attn_res_block_size\": 12,\n"
    "\"first_k_dense_replace\": 1, \"hidden_act\": \"situ\", \"hidden_size\": 7168,\n"
    "\"intermediate_size\": 33792, \"kv_lora_rank\": 512, \"latent_moe_use_norm\": true,\n"
    "\"linear_attn_config\": {\"full_attn_layers\": [4, 5], \"gate_lower_bound\": -5.0,\n"
    "\"head_dim\": 128, \"kda_layers\": [1, 2, 3], \"num_heads\": 96,\n"
    "\"short_conv_kernel_size\": 4, \"use_full_rank_gate\": true},\n"
    "\"max_position_embeddings\": 1048576, \"mla_use_nope\": true,\n"
    "\"mla_use_output_gate\": true, \"moe_intermediate_size\": 3072,\n"
    "\"num_attention_heads\": 96, \"num_experts\": 896, \"num_experts_per_token\": 16,\n"
    "\"num_hidden_layers\": 5, \"num_key_value_heads\": 96, \"num_shared_experts\": 2,\n"
    "\"q_lora_rank\": 1536, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64,\n"
    "\"quantization_config\": {\"quant_method\": \"compressed-tensors\",\n"
    "\"format\": \"mxfp4-pack-quantized\", \"config_groups\": {\"group_0\": {\"weights\":\n"
    "{\"num_bits\": 4, \"group_size\": 32, \"type\": \"float\"}}}},\n"
    "\"rms_norm_eps\": 1e-05, \"routed_expert_hidden_size\": 3584, \"v_head_dim\": 128,\n"
    "\"vocab_size\": 1000}}";

static int parse(const char *text, const char *generation, struct kg_model_config *c,
                 struct kg_error *err)
{
    return kg_model_config_parse("config.json", text, strlen(text), generation,
                                 generation == NULL ? 0 : strlen(generation), c, err);
}

static void config_kimi_linear_is_read_as_published(void **state)
{
    struct kg_model_config c;
    struct kg_error err = {0};

    (void)state;
    assert_int_equal(parse(linear, NULL, &c, &err), KG_OK);
    assert_int_equal(c.family, KG_KIMI_LINEAR);
    assert_int_equal(c.hidden, 2304);
    assert_int_equal(c.n_layers, 27);
    assert_int_equal(c.n_kda_layers, 20);
    assert_int_equal(c.n_mla_layers, 7);
    for (uint32_t l = 0; l < 27; l++) {
        int mla = l == 26 || l % 4 == 3;
        assert_int_equal(c.layer_kind[l], mla ? KG_LAYER_MLA : KG_LAYER_KDA);
        assert_int_equal(c.layer_moe[l], l > 0);
    }
    assert_int_equal(c.q_lora, 0);
    assert_int_equal(c.decay, KG_DECAY_SOFTPLUS);
    assert_int_equal(c.full_gate, 0);
    assert_int_equal(c.mla_gate, 0);
    assert_int_equal(c.act, KG_FFN_SILU);
    assert_int_equal(c.latent, 0);
    assert_int_equal(c.latent_norm, 0);
    assert_int_equal(kg_expert_width(&c), 2304);
    assert_int_equal(kg_kda_width(&c), 4096);
    assert_int_equal(c.shared_inter, 1024);
    assert_int_equal(c.dense_inter, 9216);
    assert_int_equal(c.block_layers, 0);
    assert_int_equal(c.mxfp4, 0);
    assert_int_equal(c.max_context, 1048576);
    assert_true(c.routed_scale == 2.446f);
    assert_true(c.rms_eps == 1e-5f && c.latent_eps == 1e-5f);
    assert_int_equal(c.bos, 163584);
    assert_int_equal(c.pad, 163839);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 163586);
}

static void config_kimi_k3_is_read_through_its_text_config(void **state)
{
    struct kg_model_config c;
    struct kg_error err = {0};

    (void)state;
    assert_int_equal(parse(k3, NULL, &c, &err), KG_OK);
    assert_int_equal(c.family, KG_KIMI_K3);
    assert_int_equal(c.layer_kind[3], KG_LAYER_MLA);
    assert_int_equal(c.layer_kind[4], KG_LAYER_MLA);
    assert_int_equal(c.decay, KG_DECAY_BOUNDED);
    assert_true(c.decay_floor == -5.0f);
    assert_int_equal(c.full_gate, 1);
    assert_int_equal(c.mla_gate, 1);
    assert_int_equal(c.act, KG_FFN_SITU);
    assert_true(c.act_beta == 4.0f && c.act_linear_beta == 25.0f);
    assert_int_equal(c.latent, 3584);
    assert_int_equal(c.latent_norm, 1);
    assert_int_equal(kg_expert_width(&c), 3584);
    assert_int_equal(c.shared_inter, 6144);
    assert_int_equal(c.q_lora, 1536);
    assert_int_equal(c.block_layers, 12);
    assert_int_equal(c.mxfp4, 1);
    assert_true(c.routed_scale == 1.0f);
    assert_int_equal(c.bos, 900); /* the outer object fills in */
    assert_int_equal(c.eos[0], 902);
}

static void config_end_ids_come_from_both_files_without_doubles(void **state)
{
    static const struct {
        const char *generation;
        uint32_t n, ids[3];
    } cases[] = {
        {"{\"eos_token_id\": 902}", 1, {902}},  {"{\"eos_token_id\": [5, 902, 5]}", 2, {5, 902}},
        {"{\"max_length\": 3}", 1, {902}},      {"{\"eos_token_id\": null}", 1, {902}},
        {"{\"eos_token_id\": 7}", 2, {7, 902}},
    };
    struct kg_model_config c;
    struct kg_error err = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(parse(k3, cases[i].generation, &c, &err), KG_OK);
        assert_int_equal(c.n_eos, cases[i].n);
        assert_memory_equal(c.eos, cases[i].ids, cases[i].n * sizeof(uint32_t));
    }
    assert_int_equal(parse(k3, "{\"eos_token_id\": 1000}", &c, &err), KG_EINVAL);
    assert_non_null(strstr(err.text, "generation_config.json: eos_token_id"));
    assert_int_equal(parse(k3, "{\"eos_token_id\": \"x\"}", &c, &err), KG_EINVAL);
    assert_int_equal(parse(k3, "[]", &c, &err), KG_EINVAL);
    assert_int_equal(parse(k3, "{", &c, &err), KG_EINVAL);
    assert_int_equal(parse(k3, "{\"eos_token_id\": [1,2,3,4,5,6,7,8,9]}", &c, &err), KG_EINVAL);
}

static void config_every_wrong_field_is_refused_by_name(void **state)
{
    /* text to find, what to put there, words the refusal must hold */
    static const struct {
        const char *base, *find, *put, *want;
    } cases[] = {
        {linear, "\"hidden_size\": 2304", "\"x\": 1", "hidden_size is missing"},
        {linear, "\"hidden_size\": 2304", "\"hidden_size\": null", "hidden_size is missing"},
        {linear, "\"hidden_size\": 2304", "\"hidden_size\": \"2304\"", "hidden_size must be an"},
        {linear, "\"hidden_size\": 2304", "\"hidden_size\": 2304.0", "hidden_size must be an"},
        {linear, "\"hidden_size\": 2304", "\"hidden_size\": -1", "hidden_size is -1"},
        {linear, "\"hidden_size\": 2304", "\"hidden_size\": 4294969600", "hidden_size is 42949"},
        {linear, "\"hidden_size\": 2304", "\"hidden_size\": 1e400", "config.json:"},
        {linear, "\"hidden_size\": 2304", "\"hidden_size\": 99999999999999999999", "config.json:"},
        {linear, "\"hidden_size\": 2304", "\"vocab_size\": 2304", "duplicate"},
        {linear, "\"kimi_linear\"", "\"llama\"", "model_type \"llama\" is not supported"},
        {linear, "\"kimi_linear\"", "\"a\\nb\"", "model_type \"a?b\" is not supported"},
        {linear, "\"kimi_linear\"", "4", "model_type must be a string"},
        {linear, "KimiLinearForCausalLM", "LlamaForCausalLM", "architectures does not list"},
        {linear, "[4, 8, 12", "[8, 12", "layer 4 is neither"},
        {linear, "[4, 8, 12", "[4, 4, 8, 12", "layer 4 is listed twice"},
        {linear, "[4, 8, 12", "[3, 4, 8, 12", "layer 3 is listed twice"},
        {linear, "[4, 8, 12", "[0, 4, 8, 12", "full_attn_layers: entry 0"},
        {linear, "[4, 8, 12", "[28, 4, 8, 12", "full_attn_layers: entry 0"},
        {linear, "[4, 8, 12", "[\"4\", 8, 12", "full_attn_layers: entry 0"},
        {linear, "[4, 8, 12, 16, 20, 24, 27]", "[]", "full_attn_layers must be a list with"},
        {linear, "[4, 8, 12, 16, 20, 24, 27]", "{}", "full_attn_layers must be a list of"},
        {linear, "\"num_hidden_layers\": 27", "\"num_hidden_layers\": 28", "layer 28 is neither"},
        {linear, "\"num_hidden_layers\": 27", "\"num_hidden_layers\": 513", "num_hidden_layers"},
        {linear, "\"linear_attn_config\": {", "\"linear_attn_config\": 7, \"z\": {",
         "linear_attn_config must be an object"},
        {linear, "\"short_conv_kernel_size\": 4", "\"short_conv_kernel_size\": 3",
         "linear_attn_config.short_conv_kernel_size is 3"},
        {linear, "\"num_heads\": 32", "\"num_heads\": 0", "linear_attn_config.num_heads is 0"},
        {linear, "\"mla_use_nope\": true", "\"mla_use_nope\": false", "mla_use_nope must be true"},
        {linear, "\"mla_use_nope\": true", "\"mla_use_nope\": 1", "mla_use_nope must be true or"},
        {linear, "\"num_key_value_heads\": 32", "\"num_key_value_heads\": 8",
         "num_key_value_heads must be equal"},
        {linear, "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "hidden_act \"gelu\""},
        {linear, "\"num_experts_per_token\": 8", "\"num_experts_per_token\": 257",
         "num_experts_per_token is 257"},
        {linear, "\"num_expert_group\": 1", "\"num_expert_group\": 8",
         "num_expert_group must be 1"},
        {linear, "\"topk_group\": 1", "\"topk_group\": 4", "topk_group must be 1"},
        {linear, "\"sigmoid\"", "\"softmax\"", "moe_router_activation_func \"softmax\""},
        {linear, "\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1",
         "num_nextn_predict_layers must be 0"},
        {linear, "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0", "rms_norm_eps is 0"},
        {linear, "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": true", "rms_norm_eps must be a num"},
        {linear, "\"intermediate_size\": 9216,\n", "\n", "intermediate_size is missing"},
        {linear, "\"model_max_length\": 1048576,", "", "max_position_embeddings is missing"},
        {linear, "\"eos_token_id\": 163586", "\"eos_token_id\": 163840", "eos_token_id must be"},
        {linear, "\"bos_token_id\": 163584", "\"bos_token_id\": -1", "bos_token_id is -1"},
        {linear, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0",
         "tie_word_embeddings must be true or false"},
        {k3, "\"text_config\"", "\"text_konfig\"", "text_config is missing"},
        {k3, "\"model_type\": \"kimi_linear\"", "\"model_type\": \"kimi_k3\"",
         "text_config.model_type \"kimi_k3\""},
        {k3, "\"activation_situ_beta\": 4.0,", "", "text_config.activation_situ_beta is missing"},
        {k3, "\"gate_lower_bound\": -5.0", "\"gate_lower_bound\": 5.0",
         "text_config.linear_attn_config.gate_lower_bound is 5"},
        {k3, "mxfp4-pack-quantized", "nvfp4-pack-quantized", "quantization_config.format \"nvfp4"},
        {k3, "compressed-tensors", "gptq", "quantization_config.quant_method \"gptq\""},
        {k3, "\"group_size\": 32", "\"group_size\": 16", "weights.group_size is 16"},
        {k3, "\"num_bits\": 4", "\"num_bits\": 8", "weights.num_bits is 8"},
        {k3, "{\"num_bits\": 4, \"group_size\": 32, \"type\": \"float\"}", "3",
         "config_groups.group_0.weights must be an object"},
    };
    char text[8192];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kg_model_config c;
        struct kg_error err = {0};
        const char *at = strstr(cases[i].base, cases[i].find);
        assert_non_null(at);
        (void)snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - cases[i].base), cases[i].base,
                       cases[i].put, at + strlen(cases[i].find));
        int rc = parse(text, NULL, &c, &err);
        if (rc != KG_EINVAL || strstr(err.text, cases[i].want) == NULL ||
            strstr(err.text, "config.json") == NULL || strchr(err.text, '\n') != NULL) {
            fail_msg("%s -> rc %d, \"%s\", wanted \"%s\"", cases[i].put, rc, err.text,
                     cases[i].want);
        }
    }
}

static void config_no_prefix_of_the_file_is_accepted(void **state)
{
    struct kg_model_config c;

    (void)state;
    for (size_t n = 0; n < sizeof(k3) - 1; n++) {
        struct kg_error err = {0};
        char *copy = malloc(n + 1); /* exact size: a read past the end is seen by ASan */
        memcpy(copy, k3, n);
        assert_int_equal(kg_model_config_parse("config.json", copy, n, NULL, 0, &c, &err),
                         KG_EINVAL);
        assert_int_equal(err.rc, KG_EINVAL);
        free(copy);
    }
}

static void config_missing_folder_is_named(void **state)
{
    struct kg_model_config c;
    struct kg_error err = {0};

    (void)state;
    assert_int_equal(kg_model_config_read("/nonexistent-folder", &c, &err), KG_ENOENT);
    assert_non_null(strstr(err.text, "/nonexistent-folder/config.json"));
}

/* Rows of lm_head are dealt so that every rank has some, or the number of ranks is refused. */
static void config_every_rank_has_a_part_or_the_split_is_refused(void **state)
{
    struct kg_model_config c, local;
    struct kg_error err = {0};
    struct kg_split s;
    uint32_t refused = 0;

    (void)state;
    assert_int_equal(parse(k3, NULL, &c, &err), KG_OK);
    for (c.vocab = 1; c.vocab < 400; c.vocab += 7) {
        for (uint32_t world = 1; world <= 64; world++) {
            uint32_t rows = 0;
            const struct kg_deal last = {world - 1, world, 1, 0};
            if (kg_model_split(&c, &last, &s, &local, &err) != KG_OK) {
                assert_int_equal(err.rc, KG_ECONFIG);
                refused += strstr(err.text, "vocab_size") != NULL;
                continue;
            }
            for (uint32_t r = 0; r < world; r++) {
                const struct kg_deal deal = {r, world, 1, 0};
                assert_int_equal(kg_model_split(&c, &deal, &s, &local, &err), KG_OK);
                assert_int_equal(s.vocab0, rows);
                assert_true(s.vocab0 < c.vocab);
                rows += c.vocab - s.vocab0 < s.vocab ? c.vocab - s.vocab0 : s.vocab;
            }
            assert_int_equal(rows, c.vocab);
        }
    }
    assert_true(refused > 0);
}

/* Rows of expert `id`'s width that a rank holds. */
static uint32_t width_of(const struct kg_split *s, const struct kg_model_config *local,
                         const struct kg_model_config *c, uint32_t id)
{
    if (id < s->expert_id0 || id - s->expert_id0 >= s->experts || s->expert0 >= c->expert_inter)
        return 0;
    return local->expert_inter;
}

static void config_every_row_of_every_expert_is_dealt_once(void **state)
{
    struct kg_model_config c, local;
    struct kg_error err = {0};
    struct kg_split s;

    (void)state;
    assert_int_equal(parse(k3, NULL, &c, &err), KG_OK);
    c.expert_inter = 128;
    for (c.n_experts = 1; c.n_experts < 30; c.n_experts += 4) {
        for (uint32_t world = 1; world <= 12; world++) {
            for (uint32_t ep = 1; ep <= world && ep <= c.n_experts; ep++) {
                uint32_t width[30] = {0};
                for (uint32_t r = 0; world % ep == 0 && r < world; r++) {
                    const struct kg_deal deal = {r, world, ep, 1};
                    assert_int_equal(kg_model_split(&c, &deal, &s, &local, &err), KG_OK);
                    assert_true(s.experts >= 1 && local.expert_inter >= 32);
                    assert_true(s.latent0 + s.latent <= c.latent);
                    for (uint32_t e = 0; e < c.n_experts; e++)
                        width[e] += width_of(&s, &local, &c, e);
                }
                for (uint32_t e = 0; world % ep == 0 && e < c.n_experts; e++)
                    assert_int_equal(width[e], 128);
            }
        }
    }
}

static void config_a_deal_that_cannot_be_is_refused_with_its_numbers(void **state)
{
    static const struct {
        struct kg_deal deal;
        uint32_t experts;
        const char *says;
    } cases[] = {
        {{0, 4, 3, 0}, 8, "[parallel] ep = 3 does not divide tp = 4"},
        {{0, 4, 3, 1}, 8, "[parallel] ep = 3 does not divide tp = 4"},
        {{0, 2, 2, 0}, 0, "[parallel] ep = 2: the model has no experts"},
        {{0, 4, 4, 0}, 3, "[parallel] ep = 4: the model has 3 experts"},
        {{0, 4, 4, 1}, 3, "[parallel] ep = 4: the model has 3 experts"},
        {{7, 8, 8, 1}, 7, "[parallel] ep = 8: the model has 7 experts"},
        {{3, 4, 4, 0}, 6, "tp = 4, ep = 4: experts 6 in blocks of 2 leaves rank 3 without work"},
        {{0, 8, 1, 0}, 8, "allow_idle_rank = yes lets it be"},
    };
    struct kg_model_config c, local;
    struct kg_split s;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kg_error err = {0};
        assert_int_equal(parse(k3, NULL, &c, &err), KG_OK);
        c.kda_heads = c.mla_heads = 4;
        c.n_experts = cases[i].experts;
        assert_int_equal(kg_model_split(&c, &cases[i].deal, &s, &local, &err), KG_ECONFIG);
        if (strstr(err.text, cases[i].says) == NULL)
            fail_msg("%s", err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_kimi_linear_is_read_as_published),
        cmocka_unit_test(config_kimi_k3_is_read_through_its_text_config),
        cmocka_unit_test(config_end_ids_come_from_both_files_without_doubles),
        cmocka_unit_test(config_every_wrong_field_is_refused_by_name),
        cmocka_unit_test(config_no_prefix_of_the_file_is_accepted),
        cmocka_unit_test(config_missing_folder_is_named),
        cmocka_unit_test(config_every_rank_has_a_part_or_the_split_is_refused),
        cmocka_unit_test(config_every_row_of_every_expert_is_dealt_once),
        cmocka_unit_test(config_a_deal_that_cannot_be_is_refused_with_its_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
