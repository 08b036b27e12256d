/* SPDX-License-Identifier: MIT */
/*
 * What poolctl doctor finds of GPUs in a machine's files, of machines that are folders here: the
 * nodes and the version's line are as NVIDIA's driver names them (its README, "Installing the
 * kernel module"; libnvidia-container mounts the same ones), the lists of visible cards are those
 * of CUDA's programming guide, "CUDA Environment Variables".
 */
#include <ftw.h>
#include <string.h>
#include <sys/stat.h>

#include "poold/poolctl_gpus.h"
#include "tests/suite.h"

enum { FILES_MAX = 8 };

#define VERSION "/proc/driver/nvidia/version"
#define OLD                                                                                        \
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
#define OPEN                                                                                       \
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (d)\n"

static const struct {
    const char *file[FILES_MAX], *version, *visible;
    uint32_t n_cards;
    const char *driver, *fault; /* fault: its beginning; NULL: none */
} machines[] = {
    {{NULL},                                                                NULL, NULL, 0, "",           "/dev/nvidiactl: No such file"},
    {{"/dev/nvidia0", "/dev/nvidiactl"},                                    OLD,  NULL, 1, "535.129.03", "/dev/nvidia-uvm: No such"    },
    {{"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset",
      "/dev/nvidia-uvm-tools"},
     OLD,                                                                         NULL,
     2,                                                                                    "535.129.03",
     NULL                                                                                                                              },
    {{"/dev/nvidia5", "/dev/nvidiactl", "/dev/nvidia-uvm"},                 NULL, NULL, 1, "",           NULL                          },
    {{"/usr/bin/nvidia-modprobe", "/proc/driver/nvidia/gpus/0000:17:00.0/information",
      "/proc/driver/nvidia/gpus/0000:65:00.0/information"},
     OPEN,                                                                        NULL,
     2,                                                                                    "580.65.06",
     NULL                                                                                                                              },
    {{"/usr/bin/nvidia-modprobe"},                                          NULL, NULL, 0, "",           "/dev/nvidiactl"              },
    {{"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"},
     OPEN,                                                                        "1",
     1,                                                                                    "580.65.06",
     NULL                                                                                                                              },
};

static const struct {
    const char *list;
    uint32_t n_cards; /* of four */
} lists[] = {
    {"0",              1},
    {"3,0",            2},
    {"0,1,2,3",        4},
    {"",               0},
    {"-1",             0},
    {"0,-1,1",         1},
    {"4,0",            0},
    {"0,1,4",          2},
    {"NoDevFiles",     0},
    {"GPU-8932f937,2", 2},
    {"MIG-1b/2",       1},
    {"0,1,2,3,0",      4},
};

static void file_make(const char *root, const char *file, const char *text)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s%s", root, file);
    for (char *at = strchr(path + strlen(root) + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        (void)mkdir(path, 0700);
        *at = '/';
    }
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    (void)fputs(text, f);
    (void)fclose(f);
    ck_assert_int_eq(chmod(path, 0700), 0);
}

static int file_remove(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

START_TEST(a_machine_shows_its_cards)
{
    char root[] = "/tmp/gpus-XXXXXX";
    struct gpus g;
    ck_assert_ptr_nonnull(mkdtemp(root));
    for (int i = 0; i < FILES_MAX && machines[_i].file[i]; i++)
        file_make(root, machines[_i].file[i], "");
    if (machines[_i].version) file_make(root, VERSION, machines[_i].version);
    gpus_find(root, machines[_i].visible, &g);
    ck_assert_int_eq(nftw(root, file_remove, 8, FTW_DEPTH | FTW_PHYS), 0);
    ck_assert_str_eq(g.driver, machines[_i].driver);
    ck_assert_uint_eq(g.n_cards, machines[_i].n_cards);
    const char *fault = machines[_i].fault;
    ck_assert_msg(strncmp(g.fault.text, fault ? fault : "", fault ? strlen(fault) : 1) == 0, "%s",
                  g.fault.text);
}
END_TEST

START_TEST(a_list_hides_cards)
{
    char root[] = "/tmp/gpus-XXXXXX";
    struct gpus g;
    ck_assert_ptr_nonnull(mkdtemp(root));
    for (int i = 0; i < 4; i++) {
        char node[32];
        (void)snprintf(node, sizeof(node), "/dev/nvidia%d", i);
        file_make(root, node, "");
    }
    gpus_find(root, lists[_i].list, &g);
    ck_assert_int_eq(nftw(root, file_remove, 8, FTW_DEPTH | FTW_PHYS), 0);
    ck_assert_uint_eq(g.n_cards, lists[_i].n_cards);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("gpus");
    tcase_add_loop_test(tc, a_machine_shows_its_cards, 0, ARRAY_LEN(machines));
    tcase_add_loop_test(tc, a_list_hides_cards, 0, ARRAY_LEN(lists));
    return suite_run("gpus", tc);
}
