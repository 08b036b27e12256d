/* SPDX-License-Identifier: MIT */
/*
 * Packets with descriptors over AF_UNIX. Used by poold and by pool_client.c, nobody else.
 */
#include "common/lifeline.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

union control {
    char room[CMSG_SPACE(sizeof(int) * LIFELINE_FDS_MAX)];
    struct cmsghdr align;
};

int lifeline_send(int sock, const void *packet, size_t bytes, const int *fds, uint32_t n_fds)
{
    assert(n_fds <= LIFELINE_FDS_MAX);
    union control control = {0};
    struct iovec iov = {.iov_base = (void *)packet, .iov_len = bytes};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds) {
        m.msg_control = control.room;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    ssize_t n = sendmsg(sock, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return -errno;
    return (size_t)n == bytes ? 0 : -EPROTO;
}

int lifeline_receive(int sock, void *packet, size_t bytes, int *fds, uint32_t *ret_n_fds)
{
    union control control = {0};
    struct iovec iov = {.iov_base = packet, .iov_len = bytes};
    struct msghdr m = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.room,
        .msg_controllen = sizeof(control.room),
    };
    ssize_t n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0) return -errno;
    uint32_t n_fds = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        uint32_t here = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (uint32_t i = 0; i < here; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (n_fds < LIFELINE_FDS_MAX)
                fds[n_fds++] = fd;
            else
                (void)close(fd);
        }
    }
    if ((size_t)n == bytes && !(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
        *ret_n_fds = n_fds;
        return 0;
    }
    for (uint32_t i = 0; i < n_fds; i++)
        (void)close(fds[i]);
    return n == 0 ? -ECONNRESET : -EPROTO;
}
