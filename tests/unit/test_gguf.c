/* SPDX-License-Identifier: MIT */
/*
 * The GGUF reader against files written here byte by byte, from the format's description (ggml's
 * gguf.h): one sound file, its truncation at every byte, and a table of wrong ones with what the
 * refusal must say. SHA-256 against the examples of FIPS 180-2, appendix B.
 */
#include <check.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "common/ggml_type.h"
#include "common/gguf.h"
#include "common/sha256.h"
#include "tests/suite.h"
#include "tests/unit/gguf_write.h"

static const uint64_t vec8[4] = {8, 1, 1, 1};
static const uint64_t mat64x3[4] = {64, 3, 1, 1};

/* Two tensors, every kind of value; the data section holds 0, 1, 2, .. */
static void sound(struct gguf_write *w, uint32_t version)
{
    write_header(w, version, 2, 10);
    write_key_str(w, "general.architecture", "llama");
    write_key_u32(w, "llama.block_count", 3);
    write_key(w, "u64", GGUF_U64), write_u64(w, UINT64_MAX);
    write_key(w, "negative", GGUF_I32), write_u32(w, (uint32_t)-5);
    write_key(w, "i8", GGUF_I8), write_u8(w, 7);
    write_key(w, "f32", GGUF_F32), write_u32(w, 0x3fc00000); /* 1.5 */
    write_key(w, "yes", GGUF_BOOL), write_u8(w, 1);
    write_key_array(w, "strings", GGUF_STRING, 3);
    write_str(w, "a"), write_str(w, ""), write_str(w, "ccc");
    write_key_array(w, "ints", GGUF_I32, 2);
    write_u32(w, 1), write_u32(w, (uint32_t)-2);
    write_key_array(w, "none", GGUF_STRING, 0);
    write_tensor(w, "vec", 1, vec8, GGML_F32, 0);
    write_tensor(w, "mat", 2, mat64x3, GGML_Q4_1, 32);
    write_pad(w, 32);
    for (unsigned i = 0; i < 32 + 6 * 20; i++)
        write_u8(w, (uint8_t)i);
}

static int open_written(const struct gguf_write *w, struct why *why, struct gguf **ret)
{
    CLEANUP(freep) char *path = gguf_write_file(w);
    int r = gguf_open(path, why, ret);
    (void)unlink(path);
    return r;
}

START_TEST(reads_what_was_written)
{
    CLEANUP(gguf_write_fini) struct gguf_write w = {0};
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct why why;
    sound(&w, _i ? 2 : 3);
    ck_assert_int_eq(open_written(&w, &why, &g), 0);

    uint64_t u = 0;
    double f = 0;
    bool b = false;
    struct gguf_str s = {0};
    ck_assert_int_eq(gguf_u64(g, "llama.block_count", &u), 0);
    ck_assert_uint_eq(u, 3);
    ck_assert_int_eq(gguf_u64(g, "u64", &u), 0);
    ck_assert(u == UINT64_MAX);
    ck_assert_int_eq(gguf_u64(g, "i8", &u), 0);
    ck_assert_uint_eq(u, 7);
    ck_assert_int_eq(gguf_u64(g, "negative", &u), -EPROTO);
    ck_assert_int_eq(gguf_u64(g, "f32", &u), -EPROTO);
    ck_assert_int_eq(gguf_u64(g, "nothing", &u), -ENOENT);
    ck_assert_int_eq(gguf_f64(g, "f32", &f), 0);
    ck_assert(f == 1.5);
    ck_assert_int_eq(gguf_f64(g, "negative", &f), 0);
    ck_assert(f == -5);
    ck_assert_int_eq(gguf_f64(g, "yes", &f), -EPROTO);
    ck_assert_int_eq(gguf_bool(g, "yes", &b), 0);
    ck_assert(b);
    ck_assert_int_eq(gguf_bool(g, "i8", &b), -EPROTO);
    ck_assert_int_eq(gguf_str(g, "general.architecture", &s), 0);
    ck_assert_uint_eq(s.bytes, 5);
    ck_assert_mem_eq(s.at, "llama", 5);
    ck_assert_int_eq(gguf_str(g, "strings", &s), -EPROTO);
}
END_TEST

START_TEST(reads_arrays)
{
    CLEANUP(gguf_write_fini) struct gguf_write w = {0};
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    sound(&w, 3);
    ck_assert_int_eq(open_written(&w, NULL, &g), 0);
    struct gguf_array a = {0};
    ck_assert_int_eq(gguf_array(g, "ints", GGUF_STRING, &a), -EPROTO);
    ck_assert_int_eq(gguf_array(g, "f32", GGUF_F32, &a), -EPROTO);
    ck_assert_int_eq(gguf_array(g, "ints", GGUF_I32, &a), 0);
    ck_assert_uint_eq(a.n, 2);
    ck_assert_int_eq(gguf_array_i32(&a, 1), -2);
    ck_assert_int_eq(gguf_array(g, "none", GGUF_STRING, &a), 0);
    ck_assert_uint_eq(a.n, 0);
    ck_assert_int_eq(gguf_array(g, "strings", GGUF_STRING, &a), 0);
    ck_assert_uint_eq(a.n, 3);
    ck_assert_uint_eq(gguf_array_str(&a, 1).bytes, 0);
    struct gguf_str s = gguf_array_str(&a, 2);
    ck_assert_uint_eq(s.bytes, 3);
    ck_assert_mem_eq(s.at, "ccc", 3);
}
END_TEST

START_TEST(maps_a_tensor)
{
    CLEANUP(gguf_write_fini) struct gguf_write w = {0};
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    sound(&w, 3);
    ck_assert_int_eq(open_written(&w, NULL, &g), 0);
    ck_assert_uint_eq(gguf_n_tensors(g), 2);
    ck_assert_str_eq(gguf_tensor_at(g, 0)->name, "vec");
    ck_assert_ptr_null(gguf_tensor(g, "ma"));
    const struct gguf_tensor *t = gguf_tensor(g, "mat");
    ck_assert_ptr_nonnull(t);
    ck_assert_uint_eq(t->type, GGML_Q4_1);
    ck_assert_uint_eq(t->n_dims, 2);
    ck_assert_uint_eq(t->ne[0], 64);
    ck_assert_uint_eq(t->ne[1], 3);
    ck_assert_uint_eq(t->ne[3], 1);
    ck_assert_uint_eq(t->bytes, 6 * 20);
    struct gguf_view v = {0};
    ck_assert_int_eq(gguf_map(g, t, &v), 0);
    ck_assert_uint_eq(v.bytes, 6 * 20);
    for (unsigned i = 0; i < 6 * 20; i++)
        ck_assert_uint_eq(((const uint8_t *)v.at)[i], 32 + i);
    gguf_unmap(&v);
    ck_assert_ptr_null(v.at);
}
END_TEST

/* mincore answers ENOMEM for an address that isn't mapped. */
static bool is_mapped(const void *at)
{
    unsigned char in_core;
    uintptr_t page = (uintptr_t)at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    return mincore((void *)page, 1, &in_core) == 0;
}

START_TEST(only_metadata_stays_mapped)
{
    CLEANUP(gguf_write_fini) struct gguf_write w = {0};
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    static const uint64_t big[1] = {1 << 20};
    write_header(&w, 3, 1, 1);
    write_key_str(&w, "key", "value");
    write_tensor(&w, "t", 1, big, GGML_F32, 0);
    write_pad(&w, 32);
    size_t data_off = w.bytes;
    uint8_t *zeroes = calloc(4, big[0]);
    write_bytes(&w, zeroes, 4 * big[0]);
    free(zeroes);
    ck_assert_int_eq(open_written(&w, NULL, &g), 0);
    struct gguf_str s = {0};
    ck_assert_int_eq(gguf_str(g, "key", &s), 0);
    ck_assert(is_mapped(s.at));
    const char *base = (const char *)((uintptr_t)s.at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1));
    ck_assert(!is_mapped(base + data_off + 2 * big[0]));
}
END_TEST

START_TEST(every_truncation_is_refused)
{
    CLEANUP(gguf_write_fini) struct gguf_write w = {0};
    sound(&w, 3);
    size_t bytes = w.bytes;
    for (w.bytes = 0; w.bytes < bytes; w.bytes++) {
        struct gguf *g = NULL;
        struct why why = {0};
        int r = open_written(&w, &why, &g);
        ck_assert_msg(r == -EPROTO, "cut to %zu bytes: %d", w.bytes, r);
        ck_assert_ptr_null(g);
        ck_assert_ptr_nonnull(strstr(why.text, "cistern-test-"));
    }
}
END_TEST

/* Any single byte changed: refused or read, never a fault (the sanitizers watch), and what is read
 * can be mapped and hashed. */
START_TEST(every_changed_byte_survives)
{
    CLEANUP(gguf_write_fini) struct gguf_write w = {0};
    sound(&w, 3);
    static const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};
    for (size_t i = 0; i < w.bytes; i++) {
        uint8_t was = w.at[i];
        w.at[i] = values[(i + (size_t)_i) % ARRAY_LEN(values)];
        CLEANUP(gguf_freep) struct gguf *g = NULL;
        char hash[65];
        if (open_written(&w, NULL, &g) == 0) ck_assert_int_eq(gguf_fingerprint(g, hash), 0);
        w.at[i] = was;
    }
}
END_TEST

static void one_key(struct gguf_write *w) { write_header(w, 3, 0, 1); }
static void one_tensor(struct gguf_write *w) { write_header(w, 3, 1, 0); }
static void bad_magic(struct gguf_write *w) { write_bytes(w, "GGML\3\0\0\0", 8); }
static void version_1(struct gguf_write *w) { write_header(w, 1, 0, 0); }
static void version_4(struct gguf_write *w) { write_header(w, 4, 0, 0); }
static void big_endian(struct gguf_write *w) { write_header(w, 3u << 24, 0, 0); }
static void keys_beyond_file(struct gguf_write *w)
{
    write_header(w, 3, 0, UINT64_MAX);
    write_key_u32(w, "k", 1);
}
static void tensors_beyond_file(struct gguf_write *w)
{
    write_header(w, 3, UINT64_MAX / 2, 1);
    write_key_u32(w, "k", 1);
}
static void key_twice(struct gguf_write *w)
{
    write_header(w, 3, 0, 3);
    write_key_u32(w, "twice", 1);
    write_key_u32(w, "other", 1);
    write_key_u32(w, "twice", 2);
}
static void key_empty(struct gguf_write *w)
{
    one_key(w);
    write_key_u32(w, "", 1);
}
static void key_endless(struct gguf_write *w)
{
    one_key(w);
    write_u64(w, UINT64_MAX - 7);
    write_pad(w, 64);
}
static void key_with_nul(struct gguf_write *w)
{
    one_key(w);
    write_u64(w, 3);
    write_bytes(w, "a\0b", 3);
    write_u32(w, GGUF_U32);
    write_u32(w, 1);
}
static void key_with_newline(struct gguf_write *w)
{
    one_key(w);
    write_key(w, "a\nb\x1b[31m", 13);
    write_u32(w, 1);
}
static void type_unknown(struct gguf_write *w)
{
    one_key(w);
    write_key(w, "odd", 13);
    write_u64(w, 0);
}
static void value_endless(struct gguf_write *w)
{
    one_key(w);
    write_key(w, "text", GGUF_STRING);
    write_u64(w, 1ull << 40);
    write_pad(w, 64);
}
static void array_endless(struct gguf_write *w)
{
    one_key(w);
    write_key_array(w, "many", GGUF_U64, 1ull << 61);
    write_pad(w, 64);
}
static void array_of_arrays(struct gguf_write *w)
{
    one_key(w);
    write_key_array(w, "nested", GGUF_ARRAY, 1);
    write_pad(w, 64);
}
static void array_unknown(struct gguf_write *w)
{
    one_key(w);
    write_key_array(w, "odd", 77, 1);
    write_pad(w, 64);
}
static void strings_endless(struct gguf_write *w)
{
    one_key(w);
    write_key_array(w, "texts", GGUF_STRING, UINT64_MAX);
    write_pad(w, 64);
}
static void string_beyond(struct gguf_write *w)
{
    one_key(w);
    write_key_array(w, "texts", GGUF_STRING, 2);
    write_str(w, "one");
    write_u64(w, 100);
    write_pad(w, 64);
}
static void tensor_twice(struct gguf_write *w)
{
    write_header(w, 3, 2, 0);
    write_tensor(w, "same", 1, vec8, GGML_F32, 0);
    write_tensor(w, "same", 1, vec8, GGML_F32, 0);
    write_pad(w, 32);
    write_pad(w, 64);
}
static void tensor_long_name(struct gguf_write *w)
{
    one_tensor(w);
    write_tensor(w, "0123456789012345678901234567890123456789012345678901234567890123", 1, vec8,
                 GGML_F32, 0);
}
static void tensor_of(struct gguf_write *w, uint32_t n_dims, const uint64_t *ne, uint32_t type,
                      uint64_t off)
{
    one_tensor(w);
    write_tensor(w, "t", n_dims, ne, type, off);
    write_pad(w, 32);
    write_bytes(w, (uint8_t[64]){0}, 64);
}
static void no_dims(struct gguf_write *w) { tensor_of(w, 0, vec8, GGML_F32, 0); }
static void five_dims(struct gguf_write *w)
{
    tensor_of(w, 5, (uint64_t[]){1, 1, 1, 1, 1}, GGML_F32, 0);
}
static void dim_zero(struct gguf_write *w) { tensor_of(w, 2, (uint64_t[]){4, 0}, GGML_F32, 0); }
static void dims_overflow(struct gguf_write *w)
{
    tensor_of(w, 3, (uint64_t[]){1ull << 32, 1ull << 32, 2}, GGML_F32, 0);
}
static void dims_over_int64(struct gguf_write *w)
{
    tensor_of(w, 2, (uint64_t[]){1ull << 32, 1ull << 31}, GGML_F32, 0);
}
static void bytes_overflow(struct gguf_write *w)
{
    tensor_of(w, 2, (uint64_t[]){1ull << 31, 1ull << 31}, GGML_F32, 0);
}
static void ragged_block(struct gguf_write *w) { tensor_of(w, 1, (uint64_t[]){33}, GGML_Q8_0, 0); }
static void tensor_unknown_type(struct gguf_write *w) { tensor_of(w, 1, vec8, 4, 0); }
static void tensor_type_huge(struct gguf_write *w) { tensor_of(w, 1, vec8, UINT32_MAX, 0); }
static void misaligned(struct gguf_write *w) { tensor_of(w, 1, vec8, GGML_F32, 16); }
static void beyond_data(struct gguf_write *w) { tensor_of(w, 1, vec8, GGML_F32, 64); }
static void beyond_64_bits(struct gguf_write *w)
{
    tensor_of(w, 1, vec8, GGML_F32, UINT64_MAX - 31);
}
static void alignment_of(struct gguf_write *w, uint32_t align)
{
    one_key(w);
    write_key_u32(w, "general.alignment", align);
}
static void alignment_0(struct gguf_write *w) { alignment_of(w, 0); }
static void alignment_48(struct gguf_write *w) { alignment_of(w, 48); }
static void alignment_huge(struct gguf_write *w) { alignment_of(w, 1u << 31); }
static void alignment_text(struct gguf_write *w)
{
    one_key(w);
    write_key_str(w, "general.alignment", "32");
}

static const struct {
    void (*make)(struct gguf_write *w);
    int r;
    const char *says[2];
} hostile[] = {
    {bad_magic,           -EPROTO,  {"header", "not a GGUF file"}                            },
    {version_1,           -ENOTSUP, {"version 1", "2 and 3"}                                 },
    {version_4,           -ENOTSUP, {"version 4", "2 and 3"}                                 },
    {big_endian,          -ENOTSUP, {"big-endian", "header"}                                 },
    {keys_beyond_file,    -EPROTO,  {"18446744073709551615 keys", "header"}                  },
    {tensors_beyond_file, -EPROTO,  {"9223372036854775807 tensors", "header"}                },
    {key_twice,           -EPROTO,  {"key 'twice'", "there twice"}                           },
    {key_empty,           -EPROTO,  {"key 1 of 1", "0 bytes"}                                },
    {key_endless,         -EPROTO,  {"key 1 of 1", "18446744073709551608 bytes"}             },
    {key_with_nul,        -EPROTO,  {"key 'a?b'", "NUL"}                                     },
    {key_with_newline,    -EPROTO,  {"key 'a?b?[31m'", "unknown type 13"}                    },
    {type_unknown,        -EPROTO,  {"key 'odd'", "unknown type 13"}                         },
    {value_endless,       -EPROTO,  {"key 'text'", "1099511627776 bytes"}                    },
    {array_endless,       -EPROTO,  {"key 'many'", "2305843009213693952 elements of 8 bytes"}},
    {array_of_arrays,     -ENOTSUP, {"key 'nested'", "array of arrays"}                      },
    {array_unknown,       -EPROTO,  {"key 'odd'", "unknown type 77"}                         },
    {strings_endless,     -EPROTO,  {"key 'texts'", "18446744073709551615 strings"}          },
    {string_beyond,       -EPROTO,  {"key 'texts'", "a string of 100 bytes"}                 },
    {tensor_twice,        -EPROTO,  {"tensor 'same'", "there twice"}                         },
    {tensor_long_name,    -EPROTO,  {"tensor '0123456789", "64 bytes"}                       },
    {no_dims,             -EPROTO,  {"tensor 't'", "0 dimensions"}                           },
    {five_dims,           -EPROTO,  {"tensor 't'", "5 dimensions"}                           },
    {dim_zero,            -EPROTO,  {"tensor 't'", "dimension 1 is 0"}                       },
    {dims_overflow,       -EPROTO,  {"tensor 't'", "beyond 2^63"}                            },
    {dims_over_int64,     -EPROTO,  {"tensor 't'", "beyond 2^63"}                            },
    {bytes_overflow,      -EPROTO,  {"tensor 't'", "overflow 64 bits"}                       },
    {ragged_block,        -EPROTO,  {"tensor 't'", "Q8_0 has blocks of 32"}                  },
    {tensor_unknown_type, -ENOTSUP, {"tensor 't'", "unknown type 4"}                         },
    {tensor_type_huge,    -ENOTSUP, {"tensor 't'", "unknown type 4294967295"}                },
    {misaligned,          -EPROTO,  {"tensor 't'", "not a multiple of 32"}                   },
    {beyond_data,         -EPROTO,  {"tensor 't'", "32 bytes at 64"}                         },
    {beyond_64_bits,      -EPROTO,  {"tensor 't'", "at 18446744073709551584"}                },
    {alignment_0,         -EPROTO,  {"key 'general.alignment'", "0 is not a power of two"}   },
    {alignment_48,        -EPROTO,  {"key 'general.alignment'", "48 is not a power of two"}  },
    {alignment_huge,      -EPROTO,  {"key 'general.alignment'", "2147483648 is not a power"} },
    {alignment_text,      -EPROTO,  {"key 'general.alignment'", "not a non-negative integer"}},
};

START_TEST(hostile_files_are_refused_by_name)
{
    CLEANUP(gguf_write_fini) struct gguf_write w = {0};
    hostile[_i].make(&w);
    struct gguf *g = NULL;
    struct why why = {0};
    ck_assert_int_eq(open_written(&w, &why, &g), hostile[_i].r);
    ck_assert_ptr_null(g);
    ck_assert_msg(strstr(why.text, "cistern-test-") != NULL, "%s", why.text);
    for (unsigned i = 0; i < 2; i++)
        ck_assert_msg(strstr(why.text, hostile[_i].says[i]) != NULL, "%s", why.text);
}
END_TEST

START_TEST(wrong_paths_are_refused)
{
    struct gguf *g = NULL;
    struct why why = {0};
    ck_assert_int_eq(gguf_open("/nonexistent/x.gguf", &why, &g), -ENOENT);
    ck_assert_ptr_nonnull(strstr(why.text, "/nonexistent/x.gguf: No such file"));
    ck_assert_int_eq(gguf_open("/tmp", &why, &g), -EINVAL);
    ck_assert_ptr_nonnull(strstr(why.text, "not a regular file"));
    ck_assert_int_eq(gguf_open("/dev/zero", &why, &g), -EINVAL);
}
END_TEST

/* A tensor of a format that no backend has is read, with its size, so that whoever loads it can
 * refuse it by name. */
START_TEST(unsupported_formats_are_read)
{
    CLEANUP(gguf_write_fini) struct gguf_write w = {0};
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    tensor_of(&w, 1, (uint64_t[]){64}, 6, 0);
    ck_assert_int_eq(open_written(&w, NULL, &g), 0);
    const struct gguf_tensor *t = gguf_tensor(g, "t");
    ck_assert_uint_eq(t->bytes, 44);
    ck_assert_str_eq(ggml_type_name(t->type), "Q5_0");
    ck_assert_uint_eq(ggml_block_values(t->type), 0);
    ck_assert_uint_eq(ggml_block_bytes(t->type), 0);
    ck_assert_uint_eq(ggml_block_values(GGML_Q4_1), 32);
    ck_assert_uint_eq(ggml_block_bytes(GGML_Q4_1), 20);
    ck_assert_str_eq(ggml_type_name(4), "unknown");
    ck_assert_str_eq(ggml_type_name(UINT32_MAX), "unknown");
}
END_TEST

static void fingerprint_of(const struct gguf_write *w, char ret[65])
{
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    ck_assert_int_eq(open_written(w, NULL, &g), 0);
    ck_assert_int_eq(gguf_fingerprint(g, ret), 0);
    ck_assert_uint_eq(strlen(ret), 64);
}

/* The first occurrence of text in the file. */
static uint8_t *find(struct gguf_write *w, const char *text)
{
    uint8_t *at = memmem(w->at, w->bytes, text, strlen(text));
    ck_assert_ptr_nonnull(at);
    return at;
}

START_TEST(fingerprint_tells_models_apart)
{
    CLEANUP(gguf_write_fini) struct gguf_write w = {0};
    char first[65], again[65], changed[65];
    sound(&w, 3);
    fingerprint_of(&w, first);
    fingerprint_of(&w, again);
    ck_assert_str_eq(first, again);

    find(&w, "yes")[0] = 'Y'; /* a key that the K/V does not depend on */
    fingerprint_of(&w, again);
    ck_assert_str_eq(first, again);

    uint8_t *where[] = {
        find(&w, "llama.block_count") + strlen("llama.block_count") + 4, /* its value */
        find(&w, "mat"),                                                 /* a name */
        w.at + w.bytes - 1,                                              /* a weight */
    };
    for (size_t i = 0; i < ARRAY_LEN(where); i++) {
        *where[i] ^= 1;
        fingerprint_of(&w, changed);
        ck_assert_str_ne(first, changed);
        *where[i] ^= 1;
    }
}
END_TEST

static const struct {
    const char *text;
    unsigned repeat;
    const char *hex;
} sums[] = {
    {"abc",                                                      1,       "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"                                                                     },
    {"a",                                                        1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
};

START_TEST(sha256_as_published)
{
    struct sha256 s;
    char hex[65];
    sha256_init(&s);
    for (unsigned i = 0; i < sums[_i].repeat; i++)
        sha256_add(&s, sums[_i].text, strlen(sums[_i].text));
    sha256_end_hex(&s, hex);
    ck_assert_str_eq(hex, sums[_i].hex);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("gguf");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, reads_what_was_written, 0, 2);
    tcase_add_test(tc, reads_arrays);
    tcase_add_test(tc, maps_a_tensor);
    tcase_add_test(tc, only_metadata_stays_mapped);
    tcase_add_test(tc, every_truncation_is_refused);
    tcase_add_loop_test(tc, every_changed_byte_survives, 0, 5);
    tcase_add_loop_test(tc, hostile_files_are_refused_by_name, 0, ARRAY_LEN(hostile));
    tcase_add_test(tc, wrong_paths_are_refused);
    tcase_add_test(tc, unsupported_formats_are_read);
    tcase_add_test(tc, fingerprint_tells_models_apart);
    tcase_add_loop_test(tc, sha256_as_published, 0, ARRAY_LEN(sums));
    return suite_run("gguf", tc);
}
