/* SPDX-License-Identifier: MIT */
/*
 * What tells two models apart: a hash over what the K/V of a token depends on. Called once at start
 * by every process that opens the model. It reads samples of the tensors by pread, so a stage's
 * mapped memory stays that of its own layers.
 */
#include <errno.h>
#include <string.h>

#include "common/gguf_parse.h"
#include "common/sha256.h"

enum {
    /* Bytes of one sample and samples of a tensor (first, middle, last). Another training run
     * changes nearly every weight of nearly every tensor, so a few bytes of each are plenty; three
     * reads a tensor keep the start of a large cold file short. */
    SAMPLE_BYTES = 256,
    SAMPLES = 3,
};

/* Raised when what is hashed changes: fingerprints of different programs must not seem equal. */
static const char scheme[] = "cistern fingerprint 1";

static void add_u64(struct sha256 *s, uint64_t v) { sha256_add(s, &v, sizeof(v)); }

/* Length first, so that two neighbouring fields cannot be read another way. */
static void add_str(struct sha256 *s, struct gguf_str str)
{
    add_u64(s, str.bytes);
    sha256_add(s, str.at, str.bytes);
}

static bool starts_with(struct gguf_str s, struct gguf_str prefix)
{
    return s.bytes >= prefix.bytes && memcmp(s.at, prefix.at, prefix.bytes) == 0;
}

/* The architecture, its keys (rope among them) and the tokeniser; not the chat templates, which
 * change the text that a client's messages become and leave what the model makes of it alone, and
 * not names, authors and licences. */
static bool counts(struct gguf_str key, struct gguf_str arch)
{
    static const char tokenizer[] = "tokenizer.", chat[] = "tokenizer.chat_template",
                      architecture[] = "general.architecture";
    if (starts_with(key, (struct gguf_str){chat, sizeof(chat) - 1})) return false;
    if (starts_with(key, (struct gguf_str){tokenizer, sizeof(tokenizer) - 1})) return true;
    if (gguf_key_order(key, (struct gguf_str){architecture, sizeof(architecture) - 1}) == 0)
        return true;
    return arch.bytes && starts_with(key, arch) && key.bytes > arch.bytes &&
           key.at[arch.bytes] == '.';
}

static int add_samples(struct sha256 *s, const struct gguf *g, const struct gguf_tensor *t)
{
    uint64_t bytes = min_u64(t->bytes, SAMPLE_BYTES);
    for (unsigned i = 0; i < SAMPLES; i++) {
        char sample[SAMPLE_BYTES];
        uint64_t off = t->off + (t->bytes - bytes) / (SAMPLES - 1) * i;
        ssize_t r;
        do {
            r = pread(g->fd, sample, bytes, (off_t)off);
        } while (r < 0 && errno == EINTR);
        if (r < 0) return -errno;
        if ((uint64_t)r != bytes) return -EIO; /* the file was cut after gguf_open */
        sha256_add(s, sample, bytes);
    }
    return 0;
}

static int add_tensor(struct sha256 *s, const struct gguf *g, const struct gguf_tensor *t)
{
    add_str(s, (struct gguf_str){t->name, strlen(t->name)});
    add_u64(s, t->type);
    for (unsigned i = 0; i < ARRAY_LEN(t->ne); i++)
        add_u64(s, t->ne[i]);
    return add_samples(s, g, t);
}

int gguf_fingerprint(const struct gguf *g, char ret[65])
{
    struct sha256 s;
    sha256_init(&s);
    sha256_add(&s, scheme, sizeof(scheme));
    struct gguf_str arch = {0};
    (void)gguf_str(g, "general.architecture", &arch); /* absent: no keys of its own */
    for (size_t i = 0; i < g->n_pairs; i++) {
        const struct gguf_pair *p = &g->pairs[i];
        if (!counts(p->key, arch)) continue;
        add_str(&s, p->key);
        add_u64(&s, p->type);
        add_str(&s, (struct gguf_str){(const char *)p->at, p->bytes});
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        int r = add_tensor(&s, g, &g->tensors[i]);
        if (r < 0) return r;
    }
    sha256_end_hex(&s, ret);
    return 0;
}
