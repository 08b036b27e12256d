/* SPDX-License-Identifier: MIT */
/*
 * Walks the family's table of weights. See weights.h.
 */
#include "workerd/weights.h"

#include <errno.h>
#include <string.h>

enum { NAME_BYTES = 128, TYPES_BYTES = 128 };

static const char *tensor_name(const struct arch_weight *row, uint32_t layer, char name[NAME_BYTES])
{
    if (row->where == OF_LAYER)
        (void)snprintf(name, NAME_BYTES, "blk.%u.%s", layer, row->name);
    else
        (void)snprintf(name, NAME_BYTES, "%s", row->name);
    return name;
}

static int refuse_type(const struct weights_want *w, const struct gguf_tensor *t, struct why *why)
{
    static const uint32_t types[] = {GGML_F32, GGML_F16, GGML_Q4_0, GGML_Q4_1, GGML_Q8_0};
    char known[TYPES_BYTES] = "";
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (!w->ops->multiplies(types[i])) continue;
        size_t used = strlen(known);
        (void)snprintf(known + used, sizeof(known) - used, "%s%s", used ? ", " : "",
                       ggml_type_name(types[i]));
    }
    return why_set(why, -ENOTSUP, "%s: %s is %s, which this build doesn't multiply; supported: %s",
                   gguf_path(w->gguf), t->name, ggml_type_name(t->type), known);
}

static int check_tensor(const struct weights_want *w, const struct arch_weight *row,
                        const struct gguf_tensor *t, struct why *why)
{
    uint32_t out = w->params->dim[row->out], in = w->params->dim[row->in];
    if (t->n_dims > 2 || t->ne[0] != in || t->ne[1] != out)
        return why_set(why, -EPROTO, "%s: %s has %llu x %llu values, expected %u x %u",
                       gguf_path(w->gguf), t->name, (unsigned long long)t->ne[1],
                       (unsigned long long)t->ne[0], out, in);
    if (!w->ops->multiplies(t->type)) return refuse_type(w, t, why);
    return 0;
}

static const struct gguf_tensor *find_tensor(const struct weights_want *w,
                                             const struct arch_weight *row, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor(w->gguf, name);
    return t || !row->other ? t : gguf_tensor(w->gguf, row->other);
}

static int load_one(const struct weights_want *w, const struct arch_weight *row, uint32_t layer,
                    struct why *why, struct weights *ret)
{
    char name[NAME_BYTES];
    const struct gguf_tensor *t = find_tensor(w, row, tensor_name(row, layer, name));
    if (!t) return why_set(why, -ENOENT, "%s: no tensor %s", gguf_path(w->gguf), name);
    int r = check_tensor(w, row, t, why);
    if (r < 0) return r;
    struct gguf_view view;
    r = gguf_map(w->gguf, t, &view);
    if (r < 0)
        return why_set(why, r, "%s: %s: can't map it: %s", gguf_path(w->gguf), t->name,
                       strerror(-r));
    struct backend_tensor from = {.name = t->name,
                                  .type = t->type,
                                  .n_out = w->params->dim[row->out],
                                  .n_in = w->params->dim[row->in],
                                  .data = view.at,
                                  .fd = gguf_fd(w->gguf),
                                  .off = t->off};
    enum weight_use use = row->where == OF_FIRST ? WEIGHT_LOOKUP
                          : row->out == DIM_ONE  ? WEIGHT_VECTOR
                                                 : WEIGHT_MATRIX;
    uint8_t *base = row->where == OF_LAYER
                        ? ret->layers + (size_t)(layer - w->first_layer) * w->arch->layer_bytes
                        : ret->head;
    r = w->ops->weight(w->backend, use, &from, why, (struct backend_weight **)(base + row->at));
    if (r == 0 && use == WEIGHT_LOOKUP)
        ret->lookup = view;
    else
        gguf_unmap(&view);
    return r;
}

/* Whether the family's table has this tensor of one of the stage's layers. */
static bool known(const struct weights_want *w, const char *rest)
{
    for (size_t i = 0; i < w->arch->n_weights; i++)
        if (w->arch->weights[i].where == OF_LAYER && strcmp(w->arch->weights[i].name, rest) == 0)
            return true;
    return false;
}

static int refuse_unknown(const struct weights_want *w, struct why *why)
{
    for (size_t i = 0; i < gguf_n_tensors(w->gguf); i++) {
        const char *name = gguf_tensor_at(w->gguf, i)->name;
        char *rest;
        if (strncmp(name, "blk.", 4) != 0) continue;
        unsigned long layer = strtoul(name + 4, &rest, 10);
        if (layer < w->first_layer || layer >= w->first_layer + w->n_layers) continue;
        if (*rest != '.' || !known(w, rest + 1))
            return why_set(why, -ENOTSUP, "%s: %s: this build's %s has no such weight",
                           gguf_path(w->gguf), name, w->arch->name);
    }
    return 0;
}

static int load_where(const struct weights_want *w, enum arch_where where, uint32_t layer,
                      struct why *why, struct weights *ret)
{
    for (size_t i = 0; i < w->arch->n_weights; i++) {
        if (w->arch->weights[i].where != where) continue;
        int r = load_one(w, &w->arch->weights[i], layer, why, ret);
        if (r < 0) return r;
    }
    return 0;
}

int weights_load(const struct weights_want *w, struct why *why, struct weights *ret)
{
    CLEANUP(weights_fini)
    struct weights made = {
        .layers = xcalloc(w->n_layers, w->arch->layer_bytes),
        .head = xcalloc(1, w->arch->head_bytes),
    };
    int r = refuse_unknown(w, why);
    if (r == 0 && w->first_layer == 0) r = load_where(w, OF_FIRST, 0, why, &made);
    for (uint32_t i = 0; i < w->n_layers && r == 0; i++) {
        r = load_where(w, OF_LAYER, w->first_layer + i, why, &made);
        if (w->progress) w->progress(w->progress_arg, (int)(100 * (i + 1) / (w->n_layers + 1)));
    }
    if (r == 0 && w->first_layer + w->n_layers == w->params->n_layers)
        r = load_where(w, OF_LAST, 0, why, &made);
    if (r < 0) return r;
    if (w->progress) w->progress(w->progress_arg, 100);
    *ret = made;
    made = (struct weights){0};
    return 0;
}

void weights_fini(struct weights *w)
{
    free(w->layers);
    free(w->head);
    if (w->lookup.at) gguf_unmap(&w->lookup);
}
