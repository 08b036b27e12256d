/* SPDX-License-Identifier: MIT */
/*
 * See field_table.h. A new field is a row here, a member of struct ask and its consumer. Of two
 * rows that go to the same place the later one wins.
 *
 * Names and ranges are those of OpenAI's and Anthropic's references; top_k, min_p, n_predict,
 * n_probs, repeat_penalty and repeat_last_n (-1: all tokens) those of llama.cpp's server;
 * repetition_penalty, min_tokens and ignore_eos vLLM's. Fields that are in no row are ignored.
 */
#include "gateway/api/field_table.h"

#include "gateway/api/fields.h"

enum {
    OPENAI = API_CHAT | API_COMPLETIONS,
    CHATS = API_CHAT | API_RESPONSES | API_MESSAGES,
    PROMPTS = API_COMPLETIONS | API_COMPLETION,
    MESSAGES = API_MESSAGES | API_COUNT_TOKENS,
    LISTS = API_CHAT | API_APPLY_TEMPLATE | MESSAGES, /* those with messages */
    ALL = CHATS | PROMPTS,                            /* those that generate */
    COMPLETIONS_TOKENS = 16,                          /* OpenAI's preset */
    TOP_LOGPROBS_MAX = 20,                            /* OpenAI's limits */
    COMPLETIONS_LOGPROBS_MAX = 5,
    REPEAT_LAST_N = 64, /* llama.cpp's preset */
    REPEAT_MAX = 10,    /* far past sense, far from overflow */
};

#define REPEAT_MIN 0.1 /* likewise */

#define AT(member) offsetof(struct ask, member)

/* clang-format off */
const struct field field_table[] = {
    {"model",                        ALL | API_COUNT_TOKENS, FIELD_STRING, AT(model)},
    {"messages",                     LISTS,              FIELD_LIST,   AT(messages), .required = true},
    {"system",                       MESSAGES,           FIELD_ANY,    AT(system)},
    {"prompt",                       PROMPTS,            FIELD_ANY,    AT(prompt), .required = true},
    {"input",                        API_RESPONSES,      FIELD_ANY,    AT(prompt), .required = true},
    {"instructions",                 API_RESPONSES,      FIELD_STRING, AT(system)},
    {"previous_response_id",         API_RESPONSES,      FIELD_ABSENT, 0},
    {"conversation",                 API_RESPONSES,      FIELD_ABSENT, 0},
    {"background",                   API_RESPONSES,      FIELD_BOOL,   AT(unserved), 0, 0, 0},
    {"stream",                       ALL,                FIELD_BOOL,   AT(stream), 0, 1, 0},
    {"stream_options.include_usage", OPENAI,             FIELD_BOOL,   AT(include_usage), 0, 1, 0},
    {"max_tokens",                   API_CHAT | API_MESSAGES, FIELD_U32, AT(max_tokens), 1, FIELD_TOKENS_MAX, 0},
    {"max_tokens",                   API_COMPLETIONS,    FIELD_ZERO,   AT(no_answer)},
    {"max_tokens",                   API_COMPLETIONS,    FIELD_U32,    AT(max_tokens), 0, FIELD_TOKENS_MAX, COMPLETIONS_TOKENS},
    {"max_completion_tokens",        API_CHAT,           FIELD_U32,    AT(max_tokens), 1, FIELD_TOKENS_MAX, 0},
    {"max_output_tokens",            API_RESPONSES,      FIELD_U32,    AT(max_tokens), 1, FIELD_TOKENS_MAX, 0},
    {"n_predict",                    API_COMPLETION,     FIELD_ZERO,   AT(no_answer)},
    {"n_predict",                    API_COMPLETION,     FIELD_U32,    AT(max_tokens), -1, FIELD_TOKENS_MAX, 0},
    {"temperature",                  ALL,                FIELD_FLOAT,  AT(temperature), 0, 2, 1},
    {"top_p",                        ALL,                FIELD_FLOAT,  AT(top_p), 0, 1, 1},
    {"min_p",                        ALL,                FIELD_FLOAT,  AT(min_p), 0, 1, 0},
    {"top_k",                        ALL,                FIELD_U32,    AT(top_k), 0, 1 << 20, 0},
    {"seed",                         ALL,                FIELD_SEED,   0},
    {"stop",                         OPENAI | API_COMPLETION, FIELD_STOPS, AT(stop)},
    {"stop_sequences",               API_MESSAGES,       FIELD_STOPS,  AT(stop)},
    {"n",                            OPENAI,             FIELD_U32,    AT(n), 1, GENERATION_CHOICES_MAX, 1},
    {"best_of",                      API_COMPLETIONS,    FIELD_U32,    AT(best_of), 1, 1, 1},
    {"logprobs",                     API_CHAT,           FIELD_BOOL,   AT(logprobs), 0, 1, 0},
    {"top_logprobs",                 API_CHAT | API_RESPONSES, FIELD_U32, AT(top_logprobs), 0, TOP_LOGPROBS_MAX, 0},
    {"logprobs",                     API_COMPLETIONS,    FIELD_U32,    AT(n_logprobs), 0, COMPLETIONS_LOGPROBS_MAX, FIELD_NO_LOGPROBS},
    {"n_probs",                      API_COMPLETION,     FIELD_U32,    AT(top_logprobs), 0, TOP_LOGPROBS_MAX, 0},
    {"post_sampling_probs",          API_COMPLETION,     FIELD_BOOL,   AT(unserved), 0, 0, 0},
    {"include",                      API_RESPONSES,      FIELD_ARRAY,  AT(include)},
    {"presence_penalty",             OPENAI | API_COMPLETION, FIELD_FLOAT, AT(presence_penalty), -2, 2, 0},
    {"frequency_penalty",            OPENAI | API_COMPLETION, FIELD_FLOAT, AT(frequency_penalty), -2, 2, 0},
    {"repeat_penalty",               API_CHAT | PROMPTS, FIELD_FLOAT,  AT(repeat_penalty), REPEAT_MIN, REPEAT_MAX, 1},
    {"repetition_penalty",           API_CHAT | PROMPTS, FIELD_FLOAT,  AT(repetition_penalty), REPEAT_MIN, REPEAT_MAX, 1},
    {"repeat_last_n",                API_CHAT | PROMPTS, FIELD_U32,    AT(repeat_last_n), -1, FIELD_TOKENS_MAX, REPEAT_LAST_N},
    {"logit_bias",                   OPENAI | API_COMPLETION, FIELD_BIASES, AT(logit_bias)},
    {"min_tokens",                   OPENAI | API_COMPLETION, FIELD_U32, AT(min_tokens), 0, FIELD_TOKENS_MAX, 0},
    {"ignore_eos",                   ALL,                FIELD_BOOL, AT(ignore_eos), 0, 1, 0},
    {"return_progress",              API_CHAT | API_COMPLETION, FIELD_BOOL, AT(return_progress), 0, 1, 0},
    {"echo",                         API_COMPLETIONS,    FIELD_BOOL,   AT(echo), 0, 1, 0},
    {"suffix",                       API_COMPLETIONS,    FIELD_NONE,   0},
    {"grammar",                      API_CHAT | API_COMPLETION, FIELD_NONE, 0},
    {"json_schema",                  API_CHAT | API_COMPLETION, FIELD_NONE, 0},
    {"tools",                        API_CHAT | API_RESPONSES | API_APPLY_TEMPLATE | MESSAGES, FIELD_ARRAY, AT(tools)},
    {"tool_choice",                  API_CHAT | API_RESPONSES | API_APPLY_TEMPLATE | MESSAGES, FIELD_CHOICE, AT(no_tools)},
    {"functions",                    API_CHAT,           FIELD_NONE,   0},
    {"response_format.type",         API_CHAT,           FIELD_TEXT,   0},
    {"text.format.type",             API_RESPONSES,      FIELD_TEXT,   0},
    {"chat_template_kwargs",         API_CHAT | API_APPLY_TEMPLATE, FIELD_OBJECT, AT(kwargs)},
    {"thinking",                     MESSAGES,           FIELD_OBJECT, AT(thinking)},
    {"metadata",                     API_MESSAGES | API_RESPONSES,       FIELD_OBJECT, AT(metadata)},
    {"content",                      API_TOKENIZE,       FIELD_STRING, AT(content), .required = true},
    {"add_special",                  API_TOKENIZE,       FIELD_BOOL,   AT(add_special), 0, 1, 0},
    {"parse_special",                API_TOKENIZE,       FIELD_BOOL,   AT(parse_special), 0, 1, 1},
    {"with_pieces",                  API_TOKENIZE,       FIELD_BOOL,   AT(with_pieces), 0, 1, 0},
    {"tokens",                       API_DETOKENIZE,     FIELD_ARRAY,  AT(tokens), .required = true},
    {"filename",                     API_SLOT,           FIELD_STRING, AT(filename), .required = true},
};
/* clang-format on */
const size_t field_table_n = ARRAY_LEN(field_table);
