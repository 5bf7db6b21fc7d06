/*
 * Chat requests to token ids: the K3 format (nested elements from <|open|>, <|close|>, <|sep|>)
 * and the Kimi-Linear format (turns from <|im_user|> and friends). Which one a checkpoint speaks is
 * read off its control tokens. Everything that came from outside is encoded in plain mode, piece by
 * piece, so no text can forge a control token.
 */
#ifndef KEDGE_TEXT_CHAT_H
#define KEDGE_TEXT_CHAT_H

#include "text/tokenizer.h"
#include <jansson.h>

struct kg_chat;

enum kg_chat_format {
    KG_CHAT_K3,
    KG_CHAT_LINEAR,
};

/*
 * Looks up the control ids. The tokenizer is borrowed and must outlive the chat. Immutable, shared
 * by threads. KG_ECONFIG when the control tokens belong to neither format; KG_ENOMEM.
 */
int KG_CHECKED kg_chat_open(const struct kg_tok *tok, struct kg_chat **out, struct kg_error *err);
void kg_chat_close(struct kg_chat *chat); /* NULL is allowed */

/* The id that ends an assistant turn: <|end_of_msg|> or <|im_end|>. */
uint32_t kg_chat_stop_id(const struct kg_chat *chat);
/*
 * All ids a server should stop on: the above and [EOS] if the vocabulary has it. Returns how many
 * (<= 2) it wrote to ids[2].
 */
size_t kg_chat_stop_ids(const struct kg_chat *chat, uint32_t ids[2]);

/* Where the model's answer begins, for the output parser. */
enum kg_chat_start {
    KG_START_MESSAGE,  /* no generation prompt: at message level */
    KG_START_THINK,    /* inside the think element */
    KG_START_RESPONSE, /* inside the response element (Kimi-Linear: always) */
};

struct kg_chat_prompt {
    struct kg_ids ids;        /* the whole prompt */
    struct kg_ids boundaries; /* rising token positions right behind each message's end marker */
    struct kg_ids marks;      /* those of them whose message asks for a checkpoint */
    enum kg_chat_start start;
};

void kg_chat_prompt_free(struct kg_chat_prompt *prompt);

/*
 * Renders a chat request. `request` is the parsed JSON object, borrowed, and read for: messages,
 * tools, tool_choice ("auto" | "none" | "required"), response_format (type text | json_object |
 * json_schema), reasoning_effort (low | medium | high | max; absent means max, null leaves the
 * message out), add_generation_prompt (default true), chat_template_kwargs.thinking (default true);
 * other members are not looked at. Messages may have role system, developer (read as system), user,
 * assistant, tool; content a string, null, or a list of {"type": "text", "text": ...}; name;
 * reasoning_content (or reasoning); tool_calls; tool_call_id; a system message may have tools.
 * checkpoint (true) or cache_control ({"type": "ephemeral"}, also on a content part) on a message
 * marks its end.
 *
 * `raw` is the text `request` was parsed from (p NULL if unknown): with it numbers in tool
 * definitions, schemas and tool arguments keep their spelling; without it integers and shortest
 * reals are written.
 *
 * *out must be {0} or a former result (its arrays are reused). KG_EINVAL: err names the field, as
 * in messages[2].content[0].type; KG_ENOMEM. On failure *out holds nothing useful but can be freed.
 */
int KG_CHECKED kg_chat_render(const struct kg_chat *chat, struct kg_tok_scratch *scratch,
                              const json_t *request, struct kg_span raw, struct kg_chat_prompt *out,
                              struct kg_error *err);

#endif
