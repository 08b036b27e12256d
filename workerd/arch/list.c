/* SPDX-License-Identifier: MIT */
/*
 * The known families, and what they share in reading a file's metadata.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "workerd/arch/arch.h"

static const struct arch *const families[] = {
    &arch_llama,
};

enum { KEY_BYTES = 160, NAMES_BYTES = 128 };

int arch_find(const struct gguf *g, struct why *why, const struct arch **ret)
{
    struct gguf_str name;
    if (gguf_str(g, "general.architecture", &name) < 0)
        return why_set(why, -EPROTO, "%s: no general.architecture", gguf_path(g));
    char known[NAMES_BYTES] = "";
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        const char *n = families[i]->name;
        if (strlen(n) == name.bytes && memcmp(n, name.at, name.bytes) == 0) {
            *ret = families[i];
            return 0;
        }
        size_t used = strlen(known);
        (void)snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "", n);
    }
    return why_set(why, -ENOTSUP, "%s: architecture '%.*s' isn't supported; supported: %s",
                   gguf_path(g), (int)min_u64(name.bytes, 64), name.at, known);
}

static const char *full_key(const struct arch *a, const char *key, char text[KEY_BYTES])
{
    (void)snprintf(text, KEY_BYTES, "%s.%s", a->name, key);
    return text;
}

int arch_u32(const struct gguf *g, const struct arch *a, const char *key, uint32_t max,
             struct why *why, uint32_t *ret)
{
    char text[KEY_BYTES];
    uint64_t v;
    int r = gguf_u64(g, full_key(a, key, text), &v);
    if (r < 0)
        return why_set(why, r, "%s: %s is %s", gguf_path(g), text,
                       r == -ENOENT ? "missing" : "not a number");
    if (v == 0 || v > max)
        return why_set(why, -EPROTO, "%s: %s is %llu, expected 1 to %u", gguf_path(g), text,
                       (unsigned long long)v, max);
    *ret = (uint32_t)v;
    return 0;
}

int arch_u32_or(const struct gguf *g, const struct arch *a, const char *key, uint32_t max,
                uint32_t fallback, struct why *why, uint32_t *ret)
{
    char text[KEY_BYTES];
    uint64_t v;
    if (gguf_u64(g, full_key(a, key, text), &v) == -ENOENT) {
        *ret = fallback;
        return 0;
    }
    return arch_u32(g, a, key, max, why, ret);
}

int arch_f64_or(const struct gguf *g, const struct arch *a, const char *key, double fallback,
                struct why *why, double *ret)
{
    char text[KEY_BYTES];
    double v = fallback;
    int r = gguf_f64(g, full_key(a, key, text), &v);
    if (r < 0 && r != -ENOENT) return why_set(why, r, "%s: %s is not a number", gguf_path(g), text);
    if (!isfinite(v) || v < 0) return why_set(why, -EPROTO, "%s: %s is %g", gguf_path(g), text, v);
    *ret = v;
    return 0;
}

static int refuse_scaling(const struct gguf *g, const struct arch *a, struct why *why,
                          double *ret_factor)
{
    char text[KEY_BYTES];
    struct gguf_str kind = {"none", 4};
    double factor;
    if (gguf_str(g, full_key(a, "rope.scaling.type", text), &kind) == -EPROTO)
        return why_set(why, -EPROTO, "%s: %s is not a string", gguf_path(g), text);
    bool linear = kind.bytes == 6 && memcmp(kind.at, "linear", 6) == 0;
    bool none = kind.bytes == 4 && memcmp(kind.at, "none", 4) == 0;
    if (!linear && !none)
        return why_set(why, -ENOTSUP, "%s: %s '%.*s' isn't supported; supported: none, linear",
                       gguf_path(g), text, (int)min_u64(kind.bytes, 64), kind.at);
    int r = arch_f64_or(g, a, "rope.scaling.factor", 1, why, &factor);
    if (r < 0) return r;
    *ret_factor = linear && factor > 0 ? factor : 1;
    return 0;
}

/* Llama 3's files carry a divisor for each pair. */
static int divide_by_tensor(const struct gguf *g, struct why *why, struct arch_params *p)
{
    const struct gguf_tensor *t = gguf_tensor(g, "rope_freqs.weight");
    struct gguf_view v;
    if (!t) return 0;
    if (t->type != GGML_F32 || t->n_dims != 1 || t->ne[0] != p->rope_dims / 2)
        return why_set(why, -EPROTO, "%s: rope_freqs.weight must be F32 [%u]", gguf_path(g),
                       p->rope_dims / 2);
    int r = gguf_map(g, t, &v);
    if (r < 0) return why_set(why, r, "%s: rope_freqs.weight: can't map it", gguf_path(g));
    for (uint32_t i = 0; i < p->rope_dims / 2; i++) {
        float divisor;
        memcpy(&divisor, (const char *)v.at + i * sizeof(float), sizeof(float));
        p->rope_freq[i] /= divisor;
        if (!isfinite(p->rope_freq[i]))
            r = why_set(why, -EPROTO, "%s: rope_freqs.weight holds %g", gguf_path(g), divisor);
    }
    gguf_unmap(&v);
    return r;
}

int arch_rope(const struct gguf *g, const struct arch *a, struct why *why, struct arch_params *ret)
{
    double base = 0, factor = 1;
    int r = arch_f64_or(g, a, "rope.freq_base", 10000, why, &base);
    if (r == 0) r = refuse_scaling(g, a, why, &factor);
    if (r < 0) return r;
    if (base <= 0) return why_set(why, -EPROTO, "%s: rope.freq_base is 0", gguf_path(g));
    for (uint32_t i = 0; i < ret->rope_dims / 2; i++)
        ret->rope_freq[i] = pow(base, -2.0 * i / ret->rope_dims) / factor;
    return divide_by_tensor(g, why, ret);
}
