/* A Kimi-Linear vocabulary for tests: the demo's ranks with the other family's control names. */
#ifndef KEDGE_TESTS_UNIT_TEXT_TEXT_LINEAR_H
#define KEDGE_TESTS_UNIT_TEXT_TEXT_LINEAR_H

#include "text_test.h"

#include <unistd.h>

static inline struct kg_tok *open_linear(void)
{
    static const char config[] =
        "{\"added_tokens_decoder\":{"
        "\"3840\":{\"content\":\"[BOS]\"},\"3841\":{\"content\":\"[EOS]\"},"
        "\"3842\":{\"content\":\"<|im_end|>\"},\"3843\":{\"content\":\"<|im_user|>\"},"
        "\"3844\":{\"content\":\"<|im_assistant|>\"},\"3850\":{\"content\":\"<|im_system|>\"},"
        "\"3851\":{\"content\":\"<|tool_calls_section_begin|>\"},"
        "\"3852\":{\"content\":\"<|tool_calls_section_end|>\"},"
        "\"3853\":{\"content\":\"<|tool_call_begin|>\"},"
        "\"3854\":{\"content\":\"<|tool_call_argument_begin|>\"},"
        "\"3855\":{\"content\":\"<|tool_call_end|>\"},\"3857\":{\"content\":\"<|im_middle|>\"}}}";
    char dir[] = "/tmp/kedge-lin-XXXXXX", model[4096], from[4096], to[128];
    struct kg_error err = {0};
    struct kg_tok *tok = NULL;
    if (mkdtemp(dir) == NULL ||
        realpath(root_path(model, sizeof(model), "tests/models/k3-tiny/tiktoken.model"), from) ==
            NULL) {
        return NULL;
    }
    (void)snprintf(to, sizeof(to), "%s/tiktoken.model", dir);
    int bad = symlink(from, to);
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/tokenizer_config.json", dir);
    FILE *f = fopen(path, "w");
    if (bad == 0 && f != NULL && fputs(config, f) >= 0 && fclose(f) == 0 &&
        kg_tok_open(dir, &tok, &err) != KG_OK) {
        print_error("%s\n", err.text);
    }
    (void)unlink(path);
    (void)unlink(to);
    (void)rmdir(dir);
    return tok;
}

#endif
