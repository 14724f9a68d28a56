# Output: the block that a link sends from, and the memory that it may hold beside it.
#
# A link has one output block. Deliveries go into it only while the kernel takes everything ("not
# blocked"), so a slow consumer holds one block and its messages stay in the segment. Replies from
# Python are appended to the same block, which keeps them in order with deliveries.
# Source: architecture section 7.

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_send "send"(int fd, const void* buf, size_t n, int flags)
    ssize_t c_recv "recv"(int fd, void* buf, size_t n, int flags)
    enum:
        MSG_NOSIGNAL
        MSG_DONTWAIT


# ---- memory of a link ----------------------------------------------------------------------------

cdef inline bint link_may_take(const link_t* l, u64 n) noexcept nogil:
    """Whether the link may hold n more bytes for a large message: all links share one bound, and
    each has a little of its own, so that those who take much cannot stop those who take little."""
    return l.loop.large_bytes + n <= l.loop.max_large or l.large_bytes + n <= LARGE_SHARE


cdef inline bint link_owes_much(const link_t* l) noexcept nogil:
    """Whether so much output waits for the peer to read that it should not ask for more."""
    cdef u32 n = l.out_end - l.out_at
    return n + l.rest_bytes > MAX_OUTPUT or (n > BLOCK_SIZE and not link_may_take(l, 0))


cdef inline void link_take(link_t* l, u64 n) noexcept nogil:
    l.large_bytes += n
    l.loop.large_bytes += n
    if l.loop.large_bytes > l.loop.large_peak:
        l.loop.large_peak = l.loop.large_bytes


cdef inline void link_give(link_t* l, u64 n) noexcept nogil:
    lmq_assert(l.large_bytes >= n and l.loop.large_bytes >= n)
    l.large_bytes -= n
    l.loop.large_bytes -= n


cdef void link_free(link_t* l, u8* p, u64 n) noexcept nogil:
    """Free memory that the link has taken. It counts for the loop until it is free."""
    l.large_bytes -= n
    loop_free(l.loop, p, n, n)


cdef void link_drop_output(link_t* l) noexcept nogil:
    """Let go of the output buffer and what is in it."""
    if l.out_cap > BLOCK_SIZE:
        link_free(l, l.out, l.out_cap)
    else:
        buffer_give(&l.loop.pool, l.out, l.out_cap)
    l.out = NULL
    l.out_at = l.out_end = l.out_cap = 0


# ---- output of a link ----------------------------------------------------------------------------

cdef inline int link_send(link_t* l) noexcept nogil:
    """Hand the output to the kernel. 1 all taken, 0 kernel full (sets is_blocked) or something else
    comes first, -1 lost."""
    if l.rests != NULL:
        return 0
    return link_send_from(l, l.out, &l.out_at, &l.out_end)


cdef int link_send_from(link_t* l, u8* p, u32* at, u32* end) noexcept nogil:
    """link_send for a block, of which the bytes from `at` to `end` are left."""
    cdef ssize_t k
    while at[0] < end[0]:
        if l.has_tls:
            k = link_send_tls(l, p + at[0], end[0] - at[0])
            if k < 0:
                set_errno(<int>-k)      # not in there: handing on the GIL may change it
        else:
            k = c_send(l.fd, p + at[0], end[0] - at[0], MSG_NOSIGNAL | MSG_DONTWAIT)
        if k < 0:
            if errno == EINTR:
                continue
            if errno == EAGAIN:
                l.is_blocked = True
                return 0
            at[0] = end[0] = 0          # the reader learns of the loss
            return -1
        at[0] += <u32>k
        l.n_sent_bytes += <u64>k
        l.last_sent_ns = l.loop.now_ns
    at[0] = end[0] = 0
    return 1


cdef void link_release_output(link_t* l) noexcept nogil:
    """Give an empty output block back."""
    if l.out != NULL and l.out_at == l.out_end:
        link_drop_output(l)


cdef u8* link_room_slow(link_t* l, u64 need) noexcept nogil:
    cdef u64 used = l.out_end - l.out_at, cap
    cdef u8* grown
    if l.out != NULL and used and not l.is_blocked:
        link_send(l)
        used = l.out_end - l.out_at
    if l.out != NULL and used == 0 and need <= l.out_cap:
        l.out_at = l.out_end = 0
        return l.out
    if l.out == NULL and need <= BLOCK_SIZE:
        l.out = block_take(&l.loop.pool)
        if l.out == NULL:
            return NULL
        l.out_cap = BLOCK_SIZE
        l.out_at = l.out_end = 0
        return l.out
    cap = used + need
    cap = (cap + (cap >> 1) + 65536) if used else cap + 1
    if cap == BLOCK_SIZE:
        cap += 1
    if cap >> 32:
        return NULL
    grown = <u8*>malloc(cap)
    if grown == NULL:
        return NULL
    if used:
        memcpy(grown, l.out + l.out_at, used)
    link_drop_output(l)
    l.out = grown
    l.out_cap = <u32>cap
    if cap > BLOCK_SIZE:
        link_take(l, cap)
    l.out_at = 0
    l.out_end = <u32>used
    return l.out + l.out_end


# hot
cdef inline u8* link_room(link_t* l, u64 need) noexcept nogil:
    """Where the next `need` bytes of output go; the caller advances out_end. NULL when out of
    memory or the link is gone. Makes room by sending first, so it may set is_blocked."""
    if l.fd < 0:
        return NULL
    if not l.is_in_flush:
        l.is_in_flush = True
        l.flush_next = l.loop.flush_links
        l.loop.flush_links = l
    if l.out != NULL and l.out_end + need <= l.out_cap:
        return l.out + l.out_end
    return link_room_slow(l, need)
