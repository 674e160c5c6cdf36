/* Loaded into the program `rdma`: its netlink sockets are connections to $RDMA_SIDE, one message at a time. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/netlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define MOST 1024

static char ours[MOST];

static int is_ours(int fd) { return fd >= 0 && fd < MOST && ours[fd]; }

static void *next_of(const char *name) { return dlsym(RTLD_NEXT, name); }

int socket(int domain, int type, int protocol)
{
    int (*real)(int, int, int) = next_of("socket");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd;

    if (domain != AF_NETLINK || protocol != NETLINK_RDMA)
        return real(domain, type, protocol);
    strncpy(address.sun_path, getenv("RDMA_SIDE"), sizeof(address.sun_path) - 1);
    fd = real(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || fd >= MOST || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return -1;
    ours[fd] = 1;
    return fd;
}

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
    int (*real)(int, const struct sockaddr *, socklen_t) = next_of("bind");
    return is_ours(fd) ? 0 : real(fd, address, length);
}

int getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
    int (*real)(int, struct sockaddr *, socklen_t *) = next_of("getsockname");
    return is_ours(fd) ? 0 : real(fd, address, length);
}

int setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
    int (*real)(int, int, int, const void *, socklen_t) = next_of("setsockopt");
    return is_ours(fd) ? 0 : real(fd, level, option, value, length);
}

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t length)
{
    ssize_t (*real)(int, const void *, size_t, int, const struct sockaddr *, socklen_t) = next_of("sendto");
    return is_ours(fd) ? send(fd, data, size, flags) : real(fd, data, size, flags, to, length);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t (*real)(int, struct msghdr *, int) = next_of("recvmsg");
    void *name = message->msg_name;
    socklen_t length = message->msg_namelen;
    ssize_t size;

    if (!is_ours(fd))
        return real(fd, message, flags);
    message->msg_name = NULL;
    message->msg_namelen = 0;
    size = real(fd, message, flags);
    message->msg_name = name;
    message->msg_namelen = length;
    if (name) {
        memset(name, 0, length);
        ((struct sockaddr_nl *)name)->nl_family = AF_NETLINK;
    }
    return size;
}
