/* SPDX-License-Identifier: MIT */
#ifndef TESTS_UNIT_CPU_VARIANTS_H
#define TESTS_UNIT_CPU_VARIANTS_H
/* The kernels of the CPU backend that this program was built with. */
#include "workerd/cpu/cpu.h"

static const struct cpu_kernels *const variants[] = {
#if defined(__x86_64__)
    &cpu_kernels_avx512,
    &cpu_kernels_avx2,
#endif
    &cpu_kernels_plain,
};

#endif
