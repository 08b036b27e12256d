/* SPDX-License-Identifier: MIT */
/*
 * See poolctl_gpus.h. Called by poolctl_doctor.c.
 */
#include "poold/poolctl_gpus.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun ...": the first word that is a
 * number. */
static void driver_version(const char *root, char *ret, size_t room)
{
    char path[4096], line[256] = "", *save = NULL;
    (void)snprintf(path, sizeof(path), "%s/proc/driver/nvidia/version", root);
    CLEANUP(fclosep) FILE *f = fopen(path, "re");
    *ret = 0;
    if (!f || !fgets(line, sizeof(line), f)) return;
    char *word = strtok_r(line, " \t\n", &save);
    while (word && !(isdigit((unsigned char)*word) && strchr(word, '.')))
        word = strtok_r(NULL, " \t\n", &save);
    if (word) (void)snprintf(ret, room, "%s", word);
}

static bool is_card(const char *name)
{
    return strncmp(name, "nvidia", 6) == 0 && name[6] &&
           strspn(name + 6, "0123456789") == strlen(name + 6);
}

/* Nodes of cards; or, with nodes to be made yet, the cards that the driver lists. */
static uint32_t cards_in(const char *root, const char *dir, bool nodes)
{
    char path[4096];
    uint32_t n = 0;
    (void)snprintf(path, sizeof(path), "%s%s", root, dir);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        n += nodes ? is_card(e->d_name) : e->d_name[0] != '.';
    if (d) (void)closedir(d);
    return n;
}

/* As the driver reads it: indexes and names of cards, up to the first that is none. */
static uint32_t cards_visible(const char *list, uint32_t n)
{
    uint32_t visible = 0;
    for (const char *at = list; at && visible < n; visible++) {
        char *end;
        unsigned long v = strtoul(at, &end, 10);
        bool number = isdigit((unsigned char)*at) && (*end == ',' || *end == 0);
        bool name = strncmp(at, "GPU-", 4) == 0 || strncmp(at, "MIG-", 4) == 0;
        if (!name && (!number || v >= n)) break;
        at = strchr(at, ',');
        if (at) at++;
        if (!at) return visible + 1;
    }
    return visible;
}

/* What CUDA opens before it looks for cards. */
static void nodes_check(const char *root, struct why *fault)
{
    static const char *const nodes[] = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
    for (size_t i = 0; i < ARRAY_LEN(nodes) && !fault->text[0]; i++) {
        char path[4096];
        (void)snprintf(path, sizeof(path), "%s%s", root, nodes[i]);
        CLEANUP(closep) int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd >= 0) continue;
        (void)why_set(fault, 0, "%s: %s%s", nodes[i], strerror(errno),
                      errno == ENOENT ? "; in a container: was it given GPUs (--gpus all)?"
                      : errno == EPERM
                          ? "; a container that has lost its GPUs is to be started anew"
                          : "");
    }
}

void gpus_find(const char *root, const char *visible, struct gpus *ret)
{
    char path[4096];
    *ret = (struct gpus){0};
    driver_version(root, ret->driver, sizeof(ret->driver));
    /* It makes nodes that are missing, for whoever asks for a card. */
    (void)snprintf(path, sizeof(path), "%s/usr/bin/nvidia-modprobe", root);
    bool makes = ret->driver[0] && access(path, X_OK) == 0;
    ret->n_cards = cards_in(root, "/dev", true);
    if (ret->n_cards == 0 && makes)
        ret->n_cards = cards_in(root, "/proc/driver/nvidia/gpus", false);
    if (!makes) nodes_check(root, &ret->fault);
    if (visible) ret->n_cards = cards_visible(visible, ret->n_cards);
}
