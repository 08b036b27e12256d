/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TOKENIZER_UTF8_H
#define GATEWAY_TOKENIZER_UTF8_H
/*
 * Makes any bytes UTF-8 before they are split, in the way of llama.cpp (unicode_cpts_from_utf8), so
 * that ids are the same: a byte that begins no sequence, or whose sequence is broken, becomes
 * U+FFFD and reading goes on at the next byte; an overlong sequence becomes its character; a
 * surrogate stays. Unlike there, a sequence above U+10FFFF counts as broken.
 */
#include <stddef.h>
#include <stdint.h>

/* The bytes at the head of text that utf8_repair would leave alone. */
size_t utf8_sound(const uint8_t *text, size_t bytes);
/* Writes at most 3 bytes for each of text's and returns how many. */
size_t utf8_repair(const uint8_t *text, size_t bytes, uint8_t *ret);

#endif
