/* SPDX-License-Identifier: MIT */
/*
 * The input is a GGUF file. If it opens, everything that the reader promises of it is used: every
 * array's every string, every tensor's first and last byte, the fingerprint.
 */
#include <assert.h>
#include <string.h>
#include <sys/mman.h>

#include "common/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static volatile uint8_t sink; /* reads must not be optimised away */

static void touch(const void *at, size_t bytes)
{
    if (bytes == 0) return;
    sink = ((const uint8_t *)at)[0];
    sink = ((const uint8_t *)at)[bytes - 1];
}

static void use_keys(const struct gguf *g)
{
    static const char *const keys[] = {"general.architecture", "tokenizer.ggml.tokens", "k", "key"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        struct gguf_array a;
        struct gguf_str s;
        uint64_t u;
        double f;
        bool b;
        (void)gguf_u64(g, keys[i], &u);
        (void)gguf_f64(g, keys[i], &f);
        (void)gguf_bool(g, keys[i], &b);
        if (gguf_str(g, keys[i], &s) == 0) touch(s.at, s.bytes);
        if (gguf_array(g, keys[i], GGUF_STRING, &a) < 0) continue;
        for (uint64_t k = 0; k < a.n; k++) {
            s = gguf_array_str(&a, k);
            touch(s.at, s.bytes);
        }
    }
}

static void use_tensors(const struct gguf *g)
{
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        assert(gguf_tensor(g, t->name) == t);
        assert(strcmp(ggml_type_name(t->type), "unknown") != 0);
        struct gguf_view v = {0};
        if (gguf_map(g, t, &v) < 0) continue; /* no room in the address space */
        touch(v.at, v.bytes);
        gguf_unmap(&v);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    CLEANUP(closep) int fd = memfd_create("fuzz", MFD_CLOEXEC);
    assert(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    char path[64], hash[65];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct why why = {0};
    if (gguf_open(path, &why, &g) < 0) {
        assert(!g && strncmp(why.text, path, strlen(path)) == 0);
        return 0;
    }
    use_keys(g);
    use_tensors(g);
    int r = gguf_fingerprint(g, hash);
    assert(r == 0 && strlen(hash) == 64);
    return 0;
}
