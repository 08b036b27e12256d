/* SPDX-License-Identifier: MIT */
/*
 * A variant's table of kernels; cpu.c chooses one when the backend is opened.
 */
#include "workerd/cpu/variant.h"

#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)

const struct cpu_kernels KERNEL(cpu_kernels) = {
    .name = TEXT(CPU_VARIANT),
    .norm = KERNEL(norm),
    .quantise = KERNEL(quantise),
    .product = KERNEL(product),
    .keep = KERNEL(keep),
    .attend = KERNEL(attend),
};
