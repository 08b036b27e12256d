/* SPDX-License-Identifier: MIT */
#ifndef TESTS_UNIT_GGUF_WRITE_H
#define TESTS_UNIT_GGUF_WRITE_H
/*
 * Writes GGUF files for tests, byte by byte, so that they can also be wrong in every way: the
 * caller states each count and type itself. Aborts on failure, as a test may.
 */
#include <stddef.h>
#include <stdint.h>

struct gguf_write {
    uint8_t *at;
    size_t bytes;
};

void gguf_write_fini(struct gguf_write *w);
void write_bytes(struct gguf_write *w, const void *at, size_t bytes);
void write_u8(struct gguf_write *w, uint8_t v);
void write_u32(struct gguf_write *w, uint32_t v);
void write_u64(struct gguf_write *w, uint64_t v);
void write_str(struct gguf_write *w, const char *s);
/* A byte as GPT-2's vocabularies write it: its printable character, as a string. */
void write_byte_token(struct gguf_write *w, unsigned byte);
/* Magic, version and the two counts. */
void write_header(struct gguf_write *w, uint32_t version, uint64_t n_tensors, uint64_t n_keys);
void write_key(struct gguf_write *w, const char *key, uint32_t type);
void write_key_u32(struct gguf_write *w, const char *key, uint32_t v);
void write_key_str(struct gguf_write *w, const char *key, const char *v);
/* The beginning of an array; its n elements follow. */
void write_key_array(struct gguf_write *w, const char *key, uint32_t type, uint64_t n);
void write_tensor(struct gguf_write *w, const char *name, uint32_t n_dims, const uint64_t *ne,
                  uint32_t type, uint64_t off);
/* Zeroes up to a multiple of align. */
void write_pad(struct gguf_write *w, size_t align);
/* Into a new file under the temporary directory; the caller unlinks and frees the path. */
char *gguf_write_file(const struct gguf_write *w);

#endif
