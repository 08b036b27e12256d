/* SPDX-License-Identifier: MIT */
/* The configuration: what is accepted, and what a wrong line is told. Expected texts are the
 * promises of config.h: file, key, and what would be right. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "common/config.h"
#include "tests/suite.h"

static int load(const char *text, const char *set, struct why *why, struct config **ret)
{
    char path[] = "/tmp/test_config_XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
    char *sets[1] = {(char *)set};
    int r = config_load(path, sets, set ? 1 : 0, why, ret);
    (void)unlink(path);
    return r;
}

static const struct {
    const char *text, *set, *says;
} wrong[] = {
    {"[pool]\ncels = 3\n",           NULL,              "did you mean pool.cells"},
    {"[pol]\ncells = 3\n",           NULL,              "did you mean pool.cells"},
    {"[pool]\ncells = many\n",       NULL,              "a whole number from 0"  },
    {"[pool]\ncells = -5\n",         NULL,              "a whole number"         },
    {"[pool]\ncells = 5x\n",         NULL,              "a whole number"         },
    {"[gateway]\nport = 70000\n",    NULL,              "from 0 to 65535"        },
    {"[pool]\nlock = perhaps\n",     NULL,              "one of auto|yes|no"     },
    {"[pool]\nchunk = 100\n",        NULL,              "a power of two"         },
    {"[worker]\ndevice = cpu,cpu\n", NULL,              "worker.stages = 1"      },
    {"[worker]\ndevice = a,b,c\n",   "worker.stages=2", "worker.stages = 2"      },
    {"[worker]\ntrace_all = 7\n",    NULL,              "yes or no"              },
    {"[pool\ncells = 3\n",           NULL,              "stands in no [section]" },
    {"",                             "pool.cells",      "section.key=value"      },
    {"",                             "cells=4",         "section.key=value"      },
    {"",                             "pool.cell=4",     "did you mean pool.cells"},
    {"[pool]\ncells = 99999999G\n",  NULL,              "a whole number"         },
    {"[pool]\nkv = int3\n",          NULL,              "one of f32|f16"         },
};

START_TEST(a_wrong_line_is_told_what_would_be_right)
{
    struct why why = {0};
    struct config *c = NULL;
    ck_assert_int_lt(load(wrong[_i].text, wrong[_i].set, &why, &c), 0);
    ck_assert_ptr_null(c);
    ck_assert_msg(strstr(why.text, wrong[_i].says) != NULL, "%s", why.text);
}
END_TEST

START_TEST(a_missing_file_is_named)
{
    struct why why = {0};
    struct config *c = NULL;
    ck_assert_int_lt(config_load("/nowhere/cistern.conf", NULL, 0, &why, &c), 0);
    ck_assert_ptr_nonnull(strstr(why.text, "/nowhere/cistern.conf"));
}
END_TEST

START_TEST(later_wins_and_units_count)
{
    struct why why = {0};
    CLEANUP(config_freep) struct config *c = NULL;
    ck_assert_int_eq(load("[pool]\ncells = 64k ; a comment\nlock = yes\n[model]\nname = a b\n",
                          "pool.lock=no", &why, &c),
                     0);
    ck_assert_uint_eq(c->pool.cells, 65536);
    ck_assert_uint_eq(c->pool.lock, POOL_LOCK_NO);
    ck_assert_str_eq(c->model.name, "a b");
    ck_assert_uint_eq(c->gateway.port, 8080); /* untouched keys have their presets */
}
END_TEST

START_TEST(every_preset_is_a_value_that_the_table_takes)
{
    struct why why = {0};
    CLEANUP(config_freep) struct config *c = NULL;
    ck_assert_int_eq(config_load(NULL, NULL, 0, &why, &c), 0);
    for (size_t i = 0; i < config_n_keys; i++)
        ck_assert_uint_gt(strlen(config_keys[i].help), 0);
}
END_TEST

static const struct {
    uint32_t stages, layers;
    const char *split;
    uint32_t stage, first, n;
    const char *says; /* NULL: it is right */
} splits[] = {
    {2, 30, "auto",      0, 0,  15, NULL           },
    {2, 30, "auto",      1, 15, 15, NULL           },
    {4, 30, "auto",      0, 0,  7,  NULL           },
    {4, 30, "auto",      3, 22, 8,  NULL           },
    {2, 30, "0-9,10-29", 1, 10, 20, NULL           },
    {2, 30, "0-9,11-29", 1, 0,  0,  "follow"       },
    {2, 30, "0-9,10-28", 0, 0,  0,  "follow"       },
    {2, 30, "0-9,10-30", 0, 0,  0,  "follow"       },
    {2, 30, "0-29",      0, 0,  0,  "follow"       },
    {1, 30, "0-9,10-29", 0, 0,  0,  "follow"       },
    {2, 30, "9-0,10-29", 0, 0,  0,  "follow"       },
    {2, 30, "auto",      2, 0,  0,  "no such stage"},
    {4, 3,  "auto",      0, 0,  0,  "no such stage"},
};

START_TEST(layers_are_split)
{
    struct why why = {0};
    CLEANUP(config_freep) struct config *c = NULL;
    ck_assert_int_eq(config_load(NULL, NULL, 0, &why, &c), 0);
    c->worker.stages = splits[_i].stages;
    free(c->worker.layers);
    c->worker.layers = strdup(splits[_i].split);
    uint32_t first = 0, n = 0;
    int r = config_layers(c, splits[_i].stage, splits[_i].layers, &why, &first, &n);
    if (splits[_i].says) {
        ck_assert_int_lt(r, 0);
        ck_assert_msg(strstr(why.text, splits[_i].says) != NULL, "%s", why.text);
        return;
    }
    ck_assert_int_eq(r, 0);
    ck_assert_uint_eq(first, splits[_i].first);
    ck_assert_uint_eq(n, splits[_i].n);
}
END_TEST

START_TEST(devices_of_a_list)
{
    char device[8];
    ck_assert_int_eq(config_device("cpu", 3, device, sizeof(device)), 0);
    ck_assert_str_eq(device, "cpu");
    ck_assert_int_eq(config_device("cuda:0,cuda:12", 1, device, sizeof(device)), 0);
    ck_assert_str_eq(device, "cuda:12");
    ck_assert_int_eq(config_device("cuda:0,cuda:1", 2, device, sizeof(device)), -EINVAL);
    ck_assert_int_eq(config_device("cuda:0,", 1, device, sizeof(device)), -EINVAL);
    ck_assert_int_eq(config_device("cuda:1234", 0, device, sizeof(device)), -EINVAL);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("config");
    tcase_add_loop_test(t, a_wrong_line_is_told_what_would_be_right, 0, ARRAY_LEN(wrong));
    tcase_add_test(t, a_missing_file_is_named);
    tcase_add_test(t, later_wins_and_units_count);
    tcase_add_test(t, every_preset_is_a_value_that_the_table_takes);
    tcase_add_loop_test(t, layers_are_split, 0, ARRAY_LEN(splits));
    tcase_add_test(t, devices_of_a_list);
    return suite_run("config", t);
}
