# Watch: which sockets the kernel looks at for a loop's wires, and telling what it has found.
#
# The event loop above watches one descriptor for all of them: a handle for each would take 700
# bytes and 6 microseconds of every connection (decision 0106). Events are of the level: what is not
# read now is found again.

cdef extern from "<sys/epoll.h>" nogil:
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)
    int epoll_wait(int epfd, epoll_event* events, int maxevents, int timeout)
    int EPOLL_CLOEXEC
    int EPOLL_CTL_ADD
    int EPOLL_CTL_MOD
    int EPOLL_CTL_DEL
    u32 EPOLLIN
    u32 EPOLLOUT
    u32 EPOLLRDHUP

cdef enum:
    ENDS = 0x2018               # RDHUP, HUP, ERR: the peer sends no more


cdef int watch_open(watch_t* watch) noexcept nogil:
    """Begin. Returns: 0 or an errno."""
    watch.n = watch.at = 0
    watch.fd = epoll_create1(EPOLL_CLOEXEC)
    return errno if watch.fd < 0 else 0


cdef int watch_set(watch_t* watch, wire_t* w, void* owner, u32 wanted) noexcept nogil:
    """Look for `wanted` from now on, 0: for nothing. An end and an error are found with whatever
    else. Returns: 0, or an errno: nothing is looked for then."""
    cdef epoll_event event
    cdef int op = EPOLL_CTL_MOD
    if wanted == w.watched or watch.fd < 0:
        return 0
    if w.watched == 0:
        op = EPOLL_CTL_ADD
    elif wanted == 0:
        op = EPOLL_CTL_DEL
        watch_forget(watch, owner)
    memset(&event, 0, sizeof(event))
    event.events = wanted
    event.data.ptr = owner
    w.watched = <u32>wanted
    watch.n_changes += 1
    if epoll_ctl(watch.fd, op, w.fd, &event) == 0:
        return 0
    w.watched = 0
    return errno


cdef void watch_forget(watch_t* watch, void* owner) noexcept nogil:
    """What was found of that one is not told any more: it may not be there by then."""
    cdef int i
    for i in range(watch.at, watch.n):
        if watch.found[i].data.ptr == owner:
            watch.found[i].data.ptr = NULL


cdef bint watch_ask(watch_t* watch) noexcept nogil:
    """Ask the kernel what it has found. Whether there may be more than was asked for."""
    watch.at = 0
    watch.n = 0 if watch.fd < 0 else epoll_wait(watch.fd, watch.found, FOUND_EVENTS, 0)
    return watch.n == FOUND_EVENTS


cdef epoll_event* watch_next(watch_t* watch) noexcept nogil:
    """The next event that it has told of; NULL: all are through."""
    cdef epoll_event* event
    while watch.at < watch.n:
        event = &watch.found[watch.at]
        watch.at += 1
        if event.data.ptr != NULL:
            return event
    return NULL
