/* SPDX-License-Identifier: MIT */
/*
 * The table of tensor formats. Numbers, block sizes and names are those of ggml (ggml.h,
 * ggml-common.h); a number missing here was never given or has been withdrawn, and gguf.c refuses
 * it, because the size of its tensors is unknown. Supporting a format: its row, enum ggml_type, and
 * each backend.
 */
#include "common/ggml_type.h"

#include <stddef.h>

#include "common/gguf.h"

static const struct ggml_format formats[] = {
    [GGML_F32] = {"F32",     1,   4,   true },
      [GGML_F16] = {"F16",     1,   2,   true },
    [GGML_Q4_0] = {"Q4_0",    32,  18,  true },
      [GGML_Q4_1] = {"Q4_1",    32,  20,  true },
    [6] = {"Q5_0",    32,  22,  false},
      [7] = {"Q5_1",    32,  24,  false},
    [GGML_Q8_0] = {"Q8_0",    32,  34,  true },
      [9] = {"Q8_1",    32,  36,  false},
    [10] = {"Q2_K",    256, 84,  false},
      [11] = {"Q3_K",    256, 110, false},
    [12] = {"Q4_K",    256, 144, false},
      [13] = {"Q5_K",    256, 176, false},
    [14] = {"Q6_K",    256, 210, false},
      [15] = {"Q8_K",    256, 292, false},
    [16] = {"IQ2_XXS", 256, 66,  false},
      [17] = {"IQ2_XS",  256, 74,  false},
    [18] = {"IQ3_XXS", 256, 98,  false},
      [19] = {"IQ1_S",   256, 50,  false},
    [20] = {"IQ4_NL",  32,  18,  false},
      [21] = {"IQ3_S",   256, 110, false},
    [22] = {"IQ2_S",   256, 82,  false},
      [23] = {"IQ4_XS",  256, 136, false},
    [24] = {"I8",      1,   1,   false},
      [25] = {"I16",     1,   2,   false},
    [26] = {"I32",     1,   4,   false},
      [27] = {"I64",     1,   8,   false},
    [28] = {"F64",     1,   8,   false},
      [29] = {"IQ1_M",   256, 56,  false},
    [30] = {"BF16",    1,   2,   false},
      [34] = {"TQ1_0",   256, 54,  false},
    [35] = {"TQ2_0",   256, 66,  false},
      [39] = {"MXFP4",   32,  17,  false},
    [40] = {"NVFP4",   64,  36,  false},
      [41] = {"Q1_0",    128, 18,  false},
    [42] = {"Q2_0",    64,  18,  false},
};

const struct ggml_format *ggml_format(uint32_t type)
{
    return type < ARRAY_LEN(formats) && formats[type].name ? &formats[type] : NULL;
}

uint32_t ggml_block_values(uint32_t type)
{
    const struct ggml_format *f = ggml_format(type);
    return f && f->supported ? f->block_values : 0;
}

uint32_t ggml_block_bytes(uint32_t type)
{
    const struct ggml_format *f = ggml_format(type);
    return f && f->supported ? f->block_bytes : 0;
}

const char *ggml_type_name(uint32_t type)
{
    const struct ggml_format *f = ggml_format(type);
    return f ? f->name : "unknown";
}
