/* SPDX-License-Identifier: MIT */
/*
 * Byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909, algorithm 1 applied to new text):
 * merge the neighbours of lowest rank, the leftmost of equals, until no two have a merge. A linked
 * list and a heap make it n log n, so that a megabyte without a border takes no longer per byte
 * than a word. Called by tokenizer.c for every piece; it knows symbols only.
 */
#include "gateway/tokenizer/bpe.h"

#include <assert.h>
#include <errno.h>

/* Children of a node: four 16-byte pairs are a cache line, and the tree is half as deep as a binary
 * one; a megabyte of one character took half the time. */
enum { HEAP_WIDTH = 4 };

void bpe_fini(struct bpe *b)
{
    free(b->parts);
    free(b->pairs);
}

static void heap_push(struct bpe *b, struct bpe_pair pair)
{
    size_t i = b->n_pairs++;
    while (i && pair.key < b->pairs[(i - 1) / HEAP_WIDTH].key) {
        b->pairs[i] = b->pairs[(i - 1) / HEAP_WIDTH];
        i = (i - 1) / HEAP_WIDTH;
    }
    b->pairs[i] = pair;
}

static struct bpe_pair heap_pop(struct bpe *b)
{
    struct bpe_pair top = b->pairs[0], last = b->pairs[--b->n_pairs];
    size_t i = 0;
    for (;;) {
        size_t child = HEAP_WIDTH * i + 1, end = min_u64(child + HEAP_WIDTH, b->n_pairs);
        if (child >= end) break;
        for (size_t k = child + 1; k < end; k++) {
            if (b->pairs[k].key < b->pairs[child].key) child = k;
        }
        if (last.key <= b->pairs[child].key) break;
        b->pairs[i] = b->pairs[child];
        i = child;
    }
    b->pairs[i] = last;
    return top;
}

static int make_room(struct bpe *b, size_t parts)
{
    if (parts <= b->room) return 0;
    size_t room = parts + parts / 2 + 64;
    free(b->parts);
    free(b->pairs);
    b->room = 0;
    b->parts = malloc(room * sizeof(*b->parts));
    /* n - 1 pairs at first, and at most two more for each of at most n - 1 merges. */
    b->pairs = malloc(3 * room * sizeof(*b->pairs));
    if (!b->parts || !b->pairs) return -ENOMEM;
    b->room = room;
    return 0;
}

/* Notes the part at index at and its right neighbour, if they have a merge. */
static void note(struct bpe *b, const struct vocab *v, uint32_t at)
{
    if (at == NO_SYMBOL || b->parts[at].next == NO_SYMBOL) return;
    uint32_t left = b->parts[at].symbol, right = b->parts[b->parts[at].next].symbol;
    const struct vocab_merge *m = vocab_merge(v, left, right);
    if (!m) return;
    heap_push(b, (struct bpe_pair){(uint64_t)m->rank << 32 | at, left, right});
}

/* Whether a noted pair still stands where it stood; a part that was merged away has NO_SYMBOL. */
static bool stands(const struct bpe *b, const struct bpe_pair *pair)
{
    const struct bpe_part *left = &b->parts[(uint32_t)pair->key];
    return left->symbol == pair->left && left->next != NO_SYMBOL &&
           b->parts[left->next].symbol == pair->right;
}

int bpe_merge(struct bpe *b, const struct vocab *v, const uint8_t *text, size_t bytes)
{
    assert(bytes > 0 && bytes <= UINT32_MAX / 4);
    int r = make_room(b, bytes);
    if (r < 0) return r;
    uint32_t n = (uint32_t)bytes;
    for (uint32_t i = 0; i < n; i++) {
        b->parts[i] = (struct bpe_part){v->byte_symbol[text[i]], i ? i - 1 : NO_SYMBOL,
                                        i + 1 < n ? i + 1 : NO_SYMBOL};
    }
    b->n_pairs = 0;
    for (uint32_t i = 0; i + 1 < n; i++)
        note(b, v, i);
    while (b->n_pairs) {
        struct bpe_pair pair = heap_pop(b);
        if (!stands(b, &pair)) continue;
        uint32_t at = (uint32_t)pair.key;
        struct bpe_part *left = &b->parts[at], *right = &b->parts[left->next];
        left->symbol = vocab_merge(v, pair.left, pair.right)->result;
        left->next = right->next;
        right->symbol = NO_SYMBOL;
        if (left->next != NO_SYMBOL) b->parts[left->next].prev = at;
        note(b, v, left->prev);
        note(b, v, at);
    }
    return 0;
}
