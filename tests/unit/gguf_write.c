/* SPDX-License-Identifier: MIT */
/* Writes GGUF files for the tests of what reads them; see gguf_write.h. */
#include "tests/unit/gguf_write.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base.h"
#include "common/gguf.h"

void gguf_write_fini(struct gguf_write *w) { free(w->at); }

void write_bytes(struct gguf_write *w, const void *at, size_t bytes)
{
    if (!bytes) return;
    w->at = realloc(w->at, w->bytes + bytes);
    assert(w->at);
    memcpy(w->at + w->bytes, at, bytes);
    w->bytes += bytes;
}

void write_u8(struct gguf_write *w, uint8_t v) { write_bytes(w, &v, sizeof(v)); }
void write_u32(struct gguf_write *w, uint32_t v) { write_bytes(w, &v, sizeof(v)); }
void write_u64(struct gguf_write *w, uint64_t v) { write_bytes(w, &v, sizeof(v)); }

void write_str(struct gguf_write *w, const char *s)
{
    write_u64(w, strlen(s));
    write_bytes(w, s, strlen(s));
}

/* From GPT-2's published bytes_to_unicode(): printable bytes are themselves, the others in their
 * order U+0100 and up. */
void write_byte_token(struct gguf_write *w, unsigned byte)
{
    unsigned c = 0x100;
    for (unsigned b = 0; b < byte; b++)
        c += b < 33 || (b > 126 && b < 161) || b == 173;
    if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173)) c = byte;
    char text[3] = {(char)c, 0, 0};
    if (c >= 0x80) {
        text[0] = (char)(0xc0 | c >> 6);
        text[1] = (char)(0x80 | (c & 0x3f));
    }
    write_str(w, text);
}

void write_header(struct gguf_write *w, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    write_bytes(w, "GGUF", 4);
    write_u32(w, version);
    write_u64(w, n_tensors);
    write_u64(w, n_keys);
}

void write_key(struct gguf_write *w, const char *key, uint32_t type)
{
    write_str(w, key);
    write_u32(w, type);
}

void write_key_u32(struct gguf_write *w, const char *key, uint32_t v)
{
    write_key(w, key, GGUF_U32);
    write_u32(w, v);
}

void write_key_str(struct gguf_write *w, const char *key, const char *v)
{
    write_key(w, key, GGUF_STRING);
    write_str(w, v);
}

void write_key_array(struct gguf_write *w, const char *key, uint32_t type, uint64_t n)
{
    write_key(w, key, GGUF_ARRAY);
    write_u32(w, type);
    write_u64(w, n);
}

void write_tensor(struct gguf_write *w, const char *name, uint32_t n_dims, const uint64_t *ne,
                  uint32_t type, uint64_t off)
{
    write_str(w, name);
    write_u32(w, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        write_u64(w, ne[i]);
    write_u32(w, type);
    write_u64(w, off);
}

void write_pad(struct gguf_write *w, size_t align)
{
    while (w->bytes % align)
        write_u8(w, 0);
}

char *gguf_write_file(const struct gguf_write *w)
{
    const char *tmp = getenv("TMPDIR");
    char *path = NULL;
    int r = asprintf(&path, "%s/cistern-test-XXXXXX", tmp ? tmp : "/tmp");
    assert(r > 0);
    int fd = mkstemp(path);
    assert(fd >= 0);
    ssize_t n = write(fd, w->at, w->bytes);
    assert(n == (ssize_t)w->bytes);
    (void)close(fd);
    return path;
}
