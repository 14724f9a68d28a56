# Accept: takes a connection from a listening socket, with the addresses of its two ends.
#
# Python's own takes a system call more, and looks the kind of the socket up in two enumerations for
# each. Called by lavinmq/listeners/listener.py; nothing is kept here.
import os

cdef extern from "<sys/socket.h>" nogil:
    ctypedef u32 socklen_t
    struct sockaddr:
        pass
    struct sockaddr_storage:
        u16 ss_family
    int accept4(int fd, sockaddr* address, socklen_t* size, int flags)
    int getsockname(int fd, sockaddr* address, socklen_t* size)
    enum:
        AF_INET
        AF_INET6
        SOCK_CLOEXEC
        SOCK_NONBLOCK

cdef extern from "<netinet/in.h>" nogil:
    struct sockaddr_in:
        u16 sin_port
        u32 sin_addr
    struct sockaddr_in6:
        u16 sin6_port
        u8[16] sin6_addr
    enum:
        INET6_ADDRSTRLEN

cdef extern from "<arpa/inet.h>" nogil:
    const char* inet_ntop(int family, const void* address, char* text, socklen_t size)


cdef tuple place_of(const sockaddr_storage* address):
    """Host and port of an address, as Python writes them; ("", 0) of a unix socket."""
    cdef char[INET6_ADDRSTRLEN] text
    cdef const void* host
    cdef u16 port
    if address.ss_family == AF_INET:
        host = &(<const sockaddr_in*>address).sin_addr
        port = (<const sockaddr_in*>address).sin_port
    elif address.ss_family == AF_INET6:
        host = &(<const sockaddr_in6*>address).sin6_addr
        port = (<const sockaddr_in6*>address).sin6_port
    else:
        return "", 0
    inet_ntop(address.ss_family, host, text, INET6_ADDRSTRLEN)
    return (<bytes>text).decode(), be16(<const u8*>&port)


def accept(int fd) -> tuple:
    """The next connection: its descriptor, which does not block, and host and port of the peer and
    of our own end; ("", 0) for each of a unix socket. None: there is none now, or it is gone
    already. Raises OSError."""
    cdef sockaddr_storage peer, own
    cdef socklen_t peer_size = sizeof(peer), own_size = sizeof(own)
    cdef int accepted = accept4(fd, <sockaddr*>&peer, &peer_size, SOCK_NONBLOCK | SOCK_CLOEXEC)
    if accepted < 0:
        if errno == EAGAIN or errno == EINTR or errno == ECONNABORTED:
            return None
        raise OSError(errno, os.strerror(errno))
    if getsockname(accepted, <sockaddr*>&own, &own_size) < 0:
        c_close(accepted)
        return None
    return accepted, place_of(&peer), place_of(&own)
