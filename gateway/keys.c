/* SPDX-License-Identifier: MIT */
/*
 * See keys.h. Keys come from gateway.keys and gateway.keys_file, one a line; a client shows one as
 * "Authorization: Bearer KEY" or "x-api-key: KEY". Hashes are compared in whole, and with every
 * key, so that the time it takes tells nothing.
 */
#include "gateway/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "common/sha256.h"

enum {
    KEYS_MAX = 4096,
    KEY_BYTES_MAX = 512,
    FILE_BYTES_MAX = 1 << 20,
};

struct keys {
    struct key *key;
    size_t n;
    uint32_t limit; /* generations of a key at a time; 0: any */
    uint32_t queue; /* of these, those that wait for a lane; 0: any */
    bool salted;
};

static void hash_of(const char *text, size_t n, uint8_t ret[32])
{
    struct sha256 s;
    sha256_init(&s);
    sha256_add(&s, text, n);
    sha256_end(&s, ret);
}

static uint64_t salt_of(const struct keys *k, const uint8_t hash[32])
{
    struct sha256 s;
    uint8_t sum[32];
    uint64_t salt;
    sha256_init(&s);
    sha256_add(&s, "cistern salt", 12);
    sha256_add(&s, hash, 32);
    sha256_end(&s, sum);
    memcpy(&salt, sum, sizeof(salt));
    return k->salted ? salt | 1 : 0; /* 0 would mean none */
}

static int add_key(struct keys *k, const char *text, size_t n, const char *where, struct why *why)
{
    if (n > KEY_BYTES_MAX)
        return why_set(why, -EINVAL, "%s: a key has more than %d bytes", where, KEY_BYTES_MAX);
    if (k->n == KEYS_MAX) return why_set(why, -E2BIG, "%s: more than %d keys", where, KEYS_MAX);
    k->key = reallocarray(k->key, k->n + 1, sizeof(*k->key));
    if (!k->key) abort();
    struct key *key = &k->key[k->n++];
    *key = (struct key){0};
    hash_of(text, n, key->hash);
    key->salt = salt_of(k, key->hash);
    return 0;
}

/* Words between any of the separators; a # begins a comment to the end of its line. */
static int add_keys(struct keys *k, const char *text, const char *separators, const char *where,
                    struct why *why)
{
    for (const char *at = text; *at;) {
        at += strspn(at, separators);
        size_t n = *at == '#' ? 0 : strcspn(at, separators);
        if (*at == '#') at += strcspn(at, "\n");
        int r = n ? add_key(k, at, n, where, why) : 0;
        if (r < 0) return r;
        at += n;
    }
    return 0;
}

static int read_file(struct keys *k, const char *path, struct why *why)
{
    CLEANUP(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return why_set(why, -errno, "gateway.keys_file = %s: cannot be read: %m", path);
    if (!S_ISREG(st.st_mode) || (st.st_mode & 077))
        return why_set(why, -EACCES,
                       "gateway.keys_file = %s must be a file for its owner alone: chmod 600",
                       path);
    if (st.st_size > FILE_BYTES_MAX)
        return why_set(why, -E2BIG, "gateway.keys_file = %s has more than %d bytes", path,
                       FILE_BYTES_MAX);
    CLEANUP(freep) char *text = xcalloc((size_t)st.st_size + 1, 1);
    ssize_t n = read(fd, text, (size_t)st.st_size);
    if (n != st.st_size) return why_set(why, -EIO, "gateway.keys_file = %s: cannot be read", path);
    size_t before = k->n;
    int r = add_keys(k, text, " \t\r\n", path, why);
    if (r == 0 && k->n == before)
        r = why_set(why, -EINVAL, "gateway.keys_file = %s has no key", path);
    explicit_bzero(text, (size_t)n);
    return r;
}

int keys_new(const struct config *c, struct why *why, struct keys **ret)
{
    CLEANUP(keys_freep) struct keys *k = xnew(struct keys);
    k->limit = c->gateway.key_requests;
    k->queue = c->gateway.key_queue;
    k->salted = c->gateway.share_prefixes == GATEWAY_SHARE_KEY;
    int r = add_keys(k, c->gateway.keys, ", ", "gateway.keys", why);
    if (r == 0 && c->gateway.keys_file[0]) r = read_file(k, c->gateway.keys_file, why);
    if (r < 0) return r;
    *ret = TAKE(k);
    return 0;
}

void keys_free(struct keys *k)
{
    if (!k) return;
    free(k->key);
    free(k);
}

/* NULL: none was shown. */
static const char *shown(const struct exchange *x)
{
    static const char bearer[] = "Bearer ";
    const char *header = exchange_header(x, "Authorization");
    if (header && strncasecmp(header, bearer, sizeof(bearer) - 1) == 0) {
        header += sizeof(bearer) - 1;
        return header + strspn(header, " ");
    }
    return exchange_header(x, "x-api-key");
}

static bool same(const uint8_t *a, const uint8_t *b, size_t n)
{
    volatile uint8_t differ = 0;
    for (size_t i = 0; i < n; i++)
        differ |= a[i] ^ b[i];
    return differ == 0;
}

static struct key *find(const struct keys *k, const char *text)
{
    uint8_t hash[32];
    struct key *found = NULL;
    hash_of(text, strlen(text), hash);
    for (size_t i = 0; i < k->n; i++)
        if (same(hash, k->key[i].hash, sizeof(hash))) found = &k->key[i];
    return found;
}

struct key *keys_of(struct keys *k, const struct exchange *x)
{
    const char *text = shown(x);
    return k->n > 0 && text ? find(k, text) : NULL;
}

int keys_check(const struct keys *k, const struct exchange *x, struct fault *fault)
{
    const char *text = shown(x);
    if (k->n == 0) return 0;
    if (!text)
        return fault_set(fault, FAULT_KEY, NULL,
                         "This server wants a key: Authorization: Bearer KEY, or x-api-key: KEY.");
    if (!find(k, text)) return fault_set(fault, FAULT_KEY, NULL, "The key is not known here.");
    return 0;
}

int keys_admit(const struct keys *k, const struct exchange *x, bool queues, struct fault *fault)
{
    const struct key *key = keys_of((struct keys *)(uintptr_t)k, x);
    if (!key) return 0;
    if (k->limit > 0 && key->n_running >= k->limit)
        return fault_set(fault, FAULT_KEY_BUSY, NULL,
                         "This key has %u requests under way, which is its limit; try again soon.",
                         key->n_running);
    if (queues && k->queue > 0 && key->n_waiting >= k->queue)
        return fault_set(fault, FAULT_KEY_BUSY, NULL,
                         "This key has %u requests that wait, which is its share of the queue; try "
                         "again soon.",
                         key->n_waiting);
    return 0;
}
