/* SPDX-License-Identifier: MIT */
/*
 * See chat_probe.h. A probe is a chat with a word in it that no template has of its own: it was
 * understood when the word comes out.
 */
#include "gateway/chat_probe.h"

#include <string.h>
#include <time.h>

#define WORD "cistern_probe"

static json_t *parsed(const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    if (!v) abort(); /* ours */
    return v;
}

static bool comes_out(const struct chat_template *t, const json_t *trusted, const char *values)
{
    struct rendered text;
    CLEANUP(json_decrefp) json_t *v = parsed(values);
    (void)json_object_set_new(v, "add_generation_prompt", json_true());
    struct template_input in = {.values = v, .trusted = trusted, .now_s = time(NULL)};
    if (chat_template_render(t, &in, NULL, &text) < 0) return false;
    bool out = strstr(text.text, WORD);
    rendered_fini(&text);
    return out;
}

static const char with_tools[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [{\"type\": "
    "\"function\", \"function\": {\"name\": \"" WORD "\", \"description\": \"b\", \"parameters\": "
    "{\"type\": \"object\", \"properties\": {}}}}]}";

static const char with_system[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"" WORD "\"}, {\"role\": \"user\", "
    "\"content\": \"a\"}]}";

/* A turn with a call, whose arguments are VALUE. */
#define WITH_CALL(VALUE)                                                                           \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "         \
    "\"content\": \"\", \"tool_calls\": [{\"id\": \"call00000\", \"type\": \"function\", "         \
    "\"function\": {\"name\": \"b\", \"arguments\": " VALUE "}}]}, {\"role\": \"tool\", "          \
    "\"name\": \"b\", \"tool_call_id\": \"call00000\", \"content\": \"c\"}]}"

struct chat_abilities chat_probe(const struct chat_template *t, const json_t *trusted)
{
    static const char object[] = WITH_CALL("{\"d\": \"" WORD "\"}");
    static const char text[] = WITH_CALL("\"{\\\"d\\\": \\\"" WORD "\\\"}\"");
    return (struct chat_abilities){
        .tools = comes_out(t, trusted, with_tools),
        .system = comes_out(t, trusted, with_system),
        .object_arguments = comes_out(t, trusted, object) || !comes_out(t, trusted, text),
    };
}
