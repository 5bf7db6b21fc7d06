/* What a layout over ranks and machines costs without saying so. */
#include "base/num.h"
#include "check.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Ranks that share heads: of the engine, or of what exec-sim stands for. */
static uint32_t tensor_ranks(const struct kg_check *k)
{
    const char *exec = kg_config_choice(k->config, KG_KIND_EXEC)->ref.plugin->name;
    const char *source;
    uint64_t tp = k->stack->conf->tp;

    if (strcmp(exec, "sim") == 0) {
        const char *text = kg_config_value(k->config, "exec-sim", "tp", &source);
        if (text == NULL || kg_num_u64(text, &tp) != KG_OK)
            tp = 1;
    }
    return (uint32_t)tp;
}

/* Heads of the vision encoder: of the model folder's config.json, else of the K3 that exec-sim
 * stands for; 0: there is none. */
static uint32_t vision_heads(const struct kg_check *k)
{
    static const char *const keys[] = {"num_attention_heads", "vt_num_attention_heads",
                                       "num_heads"};
    const char *source;
    char path[4096];
    json_int_t n = 0;

    if (k->stack->conf->model_path[0] != '\0') {
        (void)snprintf(path, sizeof(path), "%s/config.json", k->stack->conf->model_path);
        json_t *o = json_load_file(path, 0, NULL);
        const json_t *vision = json_object_get(o, "vision_config");
        for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && n == 0; i++)
            n = json_integer_value(json_object_get(vision, keys[i]));
        json_decref(o);
    } else if (strcmp(kg_config_choice(k->config, KG_KIND_EXEC)->ref.plugin->name, "sim") == 0) {
        const char *tables = kg_config_value(k->config, "exec-sim", "tables", &source);
        const char *model = kg_config_value(k->config, "exec-sim", "model", &source);
        if (tables != NULL && tables[0] != '\0' && model != NULL && strcmp(model, "kimi_k3") == 0)
            n = 12;
    }
    return n > 0 && n < 65536 ? (uint32_t)n : 0;
}

static void warn_vision(struct kg_check *k)
{
    uint32_t heads = vision_heads(k), tp = tensor_ranks(k);

    if (heads == 0 || heads % tp == 0)
        return;
    (void)kg_buf_printf(&k->warnings,
                        "the vision encoder's %u heads do not divide by tp = %u: engines fall back "
                        "to data parallel, each rank holds the encoder whole and takes whole "
                        "images. kedge itself serves text only\n",
                        heads, tp);
}

/* Assumed of TCP between two machines of one hall, both ways at once. */
#define SLOW_EXCHANGE_US 50

static void warn_machines(struct kg_check *k)
{
    const struct kg_conf *c = k->stack->conf;
    const struct kg_exec_desc *d = &k->stack->desc;
    uint32_t layers = d->n_mla_layers + d->n_state_parts;

    if (c->nodes == 1 || !kg_conf_slow_fabric(c))
        return;
    (void)kg_buf_printf(
        &k->warnings,
        "[cluster] nodes = %u without RDMA or NVLink: %u layers exchange rows twice "
        "a step, at %u us each (assumed) %.1f ms on every step, the bytes of "
        "prompts not counted; exec-sim's times do not have it in them\n",
        c->nodes, layers, SLOW_EXCHANGE_US, 2e-3 * layers * SLOW_EXCHANGE_US);
}

void kg_check_parallel_warn(struct kg_check *check)
{
    warn_vision(check);
    warn_machines(check);
}
