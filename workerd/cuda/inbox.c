/* SPDX-License-Identifier: MIT */
/*
 * Activations from card to card: this card's inbox, which the stage before writes into by a copy on
 * its own stream, and the next card's inbox, opened by its CUDA IPC handle. Of windows that are
 * graphs the copies are nodes, kernels that read the slot's address from a fixed place; larger ones
 * have copies beside their lists.
 *
 * The inbox stays as long as the process: freed while another process has it open, what happens is
 * undefined. Lives may share it, since each has one writer: the stage before, whose copies of an
 * older life are complete before it takes up the next one, or that is confirmed dead.
 */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "workerd/cuda/cuda.h"

enum {
    KEY_OFF = 0,
    SLOTS_OFF = 256, /* the copies begin on a line of their own */
    /* Below it cudaMalloc puts several allocations into one piece of memory, and the handle is the
     * piece's. */
    OWN_BYTES = 2 << 20,
};

static const char *device_name(const struct backend *b, char ret[16])
{
    (void)snprintf(ret, 16, "cuda:%d", b->device);
    return ret;
}

/* ---- ours ---- */

static cudaError_t inbox_new(struct backend *b, uint32_t n_slots)
{
    if (b->inbox) return cudaSuccess;
    uint64_t row = (uint64_t)b->want.n_embd * sizeof(float);
    b->inbox_slot_bytes = round_up_u64(b->want.max_rows * row, SLOTS_OFF);
    uint64_t bytes = round_up_u64(SLOTS_OFF + n_slots * b->inbox_slot_bytes, OWN_BYTES);
    if (getrandom(&b->inbox_key, sizeof(b->inbox_key), 0) != sizeof(b->inbox_key))
        return cudaErrorUnknown;
    void *at = NULL;
    cudaError_t e = cudaMalloc(&at, bytes);
    if (e != cudaSuccess) return e;
    b->inbox = at;
    b->budget.buffers += bytes;
    e = cudaMemcpyAsync(b->inbox + KEY_OFF, &b->inbox_key, sizeof(b->inbox_key),
                        cudaMemcpyHostToDevice, b->stream);
    return e == cudaSuccess ? cudaStreamSynchronize(b->stream) : e;
}

void cuda_inbox(struct backend *b, uint32_t n_slots, struct link_inbox *ret)
{
    char name[16];
    struct cudaDeviceProp p;
    *ret = (struct link_inbox){.state = LINK_INBOX_NONE};
    cudaError_t e = inbox_new(b, n_slots);
    static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(ret->handle), "the handle as it is");
    if (e == cudaSuccess) e = cudaIpcGetMemHandle((cudaIpcMemHandle_t *)ret->handle, b->inbox);
    if (e == cudaSuccess) e = cudaGetDeviceProperties(&p, b->device);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        (void)snprintf(ret->text, sizeof(ret->text), "%s can't share memory: %s",
                       device_name(b, name), cudaGetErrorString(e));
        return;
    }
    ret->state = LINK_INBOX_MEMORY;
    ret->off = SLOTS_OFF;
    ret->slot_bytes = b->inbox_slot_bytes;
    ret->key_off = KEY_OFF;
    ret->key = b->inbox_key;
    memcpy(ret->card, &p.uuid, sizeof(ret->card));
    (void)snprintf(ret->text, sizeof(ret->text), "%s", device_name(b, name));
}

void cuda_take(struct backend *b, struct backend_buffer *x, uint32_t slot)
{
    if (!b->inbox) cuda_refuse(b, -EINVAL);
    if (b->now->refused) return;
    uint8_t *at = b->inbox + SLOTS_OFF + slot * b->inbox_slot_bytes;
    cuda_turn_add(b);
    if (b->shape.n_rows <= CUDA_ROWS_GRAPH) {
        b->now->ways->in = (const float *)at;
        cuda_carry_add(b, &x->rows, false);
    } else {
        b->take_late = (struct cuda_copy){
            x->rows.f, at, (uint64_t)b->shape.n_rows * x->rows.width * sizeof(float)};
    }
    cuda_written(x, b->shape.n_rows, b->shape.n_plain);
}

/* ---- the next stage's ---- */

/* Which of the cards that this process sees the other one's memory is on: -1 none. */
static int card_find(const struct link_inbox *peer)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) return -1;
    for (int i = 0; i < n; i++) {
        struct cudaDeviceProp p;
        if (cudaGetDeviceProperties(&p, i) == cudaSuccess &&
            memcmp(&p.uuid, peer->card, sizeof(peer->card)) == 0)
            return i;
    }
    return -1;
}

static int card_reach(const struct backend *b, const struct link_inbox *peer, struct why *why)
{
    char name[16];
    int card = card_find(peer), can = 0;
    if (card < 0)
        return why_set(why, -ENOTSUP, "the other stage's card (%.24s there) is not visible here",
                       peer->text);
    if (card == b->device) return 0;
    if (cudaDeviceCanAccessPeer(&can, b->device, card) == cudaSuccess && can) return 0;
    return why_set(why, -ENOTSUP, "%s has no peer access to %.24s", device_name(b, name),
                   peer->text);
}

/* A handle that is stale, or an offset that is wrong, would let the copies go anywhere: the key is
 * where it should be, or it isn't the inbox. */
static int key_check(struct backend *b, const struct link_inbox *peer, struct why *why)
{
    uint64_t key = 0;
    cudaError_t e = cudaMemcpyAsync(&key, b->peer + peer->key_off, sizeof(key),
                                    cudaMemcpyDeviceToHost, b->stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(b->stream);
    if (e != cudaSuccess)
        return why_set(why, -ENOTSUP, "%.24s can't be read: %s", peer->text, cudaGetErrorString(e));
    return key == peer->key
               ? 0
               : why_set(why, -ENOTSUP, "the memory of %.24s is not its inbox", peer->text);
}

int cuda_peer_open(struct backend *b, const struct link_inbox *peer, struct why *why)
{
    int r = card_reach(b, peer, why);
    if (r < 0) return r;
    cudaIpcMemHandle_t handle;
    memcpy(&handle, peer->handle, sizeof(handle));
    void *at = NULL;
    cudaError_t e = cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return why_set(why, -ENOTSUP, "the memory of %.24s can't be opened: %s", peer->text,
                       cudaGetErrorString(e));
    }
    b->peer = at;
    b->peer_off = peer->off;
    b->peer_slot_bytes = peer->slot_bytes;
    r = key_check(b, peer, why);
    if (r < 0) cuda_peer_close(b);
    return r;
}

void cuda_peer_close(struct backend *b)
{
    if (b->peer) (void)cudaIpcCloseMemHandle(b->peer);
    b->peer = NULL;
}

void cuda_give(struct backend *b, uint32_t slot, const struct backend_buffer *x)
{
    if (!b->peer) cuda_refuse(b, -EINVAL);
    if (b->now->refused) return;
    uint8_t *at = b->peer + b->peer_off + slot * b->peer_slot_bytes;
    if (b->shape.n_rows <= CUDA_ROWS_GRAPH) {
        b->now->ways->out = (float *)at;
        cuda_carry_add(b, &x->rows, true);
    } else {
        b->give_late =
            (struct cuda_copy){at, x->rows.f, (uint64_t)x->n_rows * x->rows.width * sizeof(float)};
    }
}

void cuda_copy_launch(struct backend *b, struct cuda_copy *c)
{
    void *to = c->to;
    c->to = NULL;
    if (!to || !cuda_is_well(b)) return;
    (void)cuda_ok(b, cudaMemcpyAsync(to, c->from, c->bytes, cudaMemcpyDeviceToDevice, b->stream));
}
