# Output: the block that a link sends from, and the memory that it may hold beside it.
#
# A link has one output block. Deliveries go into it only while the kernel takes everything ("not
# blocked"), so a slow consumer holds one block and its messages stay in the segment. Replies from
# Python are appended to the same block, which keeps them in order with deliveries.
# Source: docs/architecture.md, life of a delivered message.

# ---- memory of a link ----------------------------------------------------------------------------

cdef inline bint link_may_take(const link_t* l, u64 n) noexcept nogil:
    """Whether the link may hold n more bytes for a large message: all links share one bound, and
    each has a little of its own, so that those who take much cannot stop those who take little."""
    return l.loop.large_bytes + n <= l.loop.max_large or l.large_bytes + n <= LARGE_SHARE


cdef inline bint link_owes_much(const link_t* l) noexcept nogil:
    """Whether so much output waits for the peer to read that it should not ask for more."""
    cdef u32 n = l.wire.out_end - l.wire.out_at
    return n + l.rest_bytes > MAX_OUTPUT or (n > BLOCK_SIZE and not link_may_take(l, 0))


cdef inline u64 link_unsent(const link_t* l) noexcept nogil:
    """Bytes of output that the wire has not taken."""
    return l.wire.out_end - l.wire.out_at + l.rest_bytes


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
    if l.wire.out_cap > BLOCK_SIZE:
        link_free(l, l.wire.out, l.wire.out_cap)
    else:
        buffer_give(&l.loop.pool, l.wire.out, l.wire.out_cap)
    l.wire.out = NULL
    l.wire.out_at = l.wire.out_end = l.wire.out_cap = 0


# ---- output of a link ----------------------------------------------------------------------------

cdef enum:
    SEND_HELD = 2               # what is left waits for the disk: who lets it go has it sent


cdef inline int link_send(link_t* l) noexcept nogil:
    """Hand the output to the kernel. 1 all taken, 0 kernel full (sets is_blocked) or something else
    comes first, -1 lost, SEND_HELD."""
    if l.rests != NULL:
        return 0
    return link_send_from(l, l.wire.out, &l.wire.out_at, &l.wire.out_end)


cdef inline u64 link_output_end(const link_t* l) noexcept nogil:
    """Where its output ends, counted from the first byte that it sent."""
    return l.wire.n_sent_bytes + link_unsent(l)


cdef u64 link_not_held(const link_t* l, u64 n) noexcept nogil:
    """How many of the next n bytes may be sent."""
    cdef u64 free_bytes = l.held_at - l.wire.n_sent_bytes
    return n if n < free_bytes else free_bytes


cdef int link_send_from(link_t* l, u8* p, u32* at, u32* end) noexcept nogil:
    """link_send for a block, of which the bytes from `at` to `end` are left."""
    cdef i64 k
    cdef u64 n
    while at[0] < end[0]:
        n = end[0] - at[0]
        if l.is_held:
            n = link_not_held(l, n)
            if n == 0:
                return SEND_HELD
        k = wire_send(&l.wire, p + at[0], n)
        if k == -EAGAIN:
            return 0
        if k < 0:
            at[0] = end[0] = 0          # the reader learns of the loss
            return -1
        at[0] += <u32>k
        l.wire.last_sent_ns = l.loop.now_ns
    at[0] = end[0] = 0
    return 1


cdef u32 link_give_output(link_t* l, u8** block, u32* at, u32* end) noexcept nogil:
    """Hand the output block over with what is in it, from `at` to `end`; returns its size, 0 when
    there is none. The next output gets another one."""
    cdef u32 cap = l.wire.out_cap
    block[0] = l.wire.out
    at[0] = l.wire.out_at
    end[0] = l.wire.out_end
    l.wire.out = NULL
    l.wire.out_at = l.wire.out_end = l.wire.out_cap = 0
    return cap


cdef void link_take_output(link_t* l, u8* block, u32 at, u32 end, u32 cap) noexcept nogil:
    """Have a block as the output block, with what is in it; the link has none."""
    lmq_assert(l.wire.out == NULL)
    l.wire.out = block
    l.wire.out_at = at
    l.wire.out_end = end
    l.wire.out_cap = cap


cdef bint link_take_back(link_t* l, u64 n) noexcept nogil:
    """Have the last n bytes of output not be sent. False when they are not all in the block."""
    if n > l.wire.out_end - l.wire.out_at:
        return False
    l.wire.out_end -= <u32>n
    return True


cdef void link_release_output(link_t* l) noexcept nogil:
    """Give an empty output block back."""
    if l.wire.out != NULL and l.wire.out_at == l.wire.out_end:
        link_drop_output(l)


cdef u8* link_room_slow(link_t* l, u64 need) noexcept nogil:
    cdef u64 used = l.wire.out_end - l.wire.out_at, cap
    cdef u8* grown
    if (l.wire.out_cap == SMALL_OUTPUT and (used or need > SMALL_OUTPUT)
            and used + need <= BLOCK_SIZE):
        grown = block_take(&l.loop.pool)        # it has more than a little to say
        if grown == NULL:
            return NULL
        memcpy(grown, l.wire.out + l.wire.out_at, used)
        link_drop_output(l)
        link_take_output(l, grown, 0, <u32>used, BLOCK_SIZE)
        return grown + used
    if l.wire.out != NULL and used and not l.wire.is_blocked:
        link_send(l)
        used = l.wire.out_end - l.wire.out_at
    if l.wire.out != NULL and used == 0 and need <= l.wire.out_cap:
        l.wire.out_at = l.wire.out_end = 0
        return l.wire.out
    if l.wire.out == NULL and need <= SMALL_OUTPUT and l.loop.pool.n_used >= POOL_KEEP:
        # Very many links have a little to say: blocks beyond those that are kept are mapped anew.
        l.wire.out = <u8*>malloc(SMALL_OUTPUT)
        if l.wire.out == NULL:
            return NULL
        l.wire.out_cap = SMALL_OUTPUT
        l.wire.out_at = l.wire.out_end = 0
        return l.wire.out
    if l.wire.out == NULL and need <= BLOCK_SIZE:
        l.wire.out = block_take(&l.loop.pool)
        if l.wire.out == NULL:
            return NULL
        l.wire.out_cap = BLOCK_SIZE
        l.wire.out_at = l.wire.out_end = 0
        return l.wire.out
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
        memcpy(grown, l.wire.out + l.wire.out_at, used)
    link_drop_output(l)
    l.wire.out = grown
    l.wire.out_cap = <u32>cap
    if cap > BLOCK_SIZE:
        link_take(l, cap)
    l.wire.out_at = 0
    l.wire.out_end = <u32>used
    return l.wire.out + l.wire.out_end


# hot
cdef inline u8* link_room(link_t* l, u64 need) noexcept nogil:
    """Where the next `need` bytes of output go; the caller says up to where it has filled
    them (link_wrote). NULL when out of memory or the link is gone. Makes room by sending first, so
    it may set is_blocked."""
    if l.wire.fd < 0:
        return NULL
    if not l.is_in_flush:
        l.is_in_flush = True
        l.flush_next = l.loop.flush_links
        l.loop.flush_links = l
    if l.wire.out != NULL and l.wire.out_end + need <= l.wire.out_cap:
        return l.wire.out + l.wire.out_end
    return link_room_slow(l, need)


# hot
cdef inline u8* link_room_at_hand(const link_t* l, u64 need) noexcept nogil:
    """What link_room would return if that has nothing to do for it, else NULL. Cost: 1 ns."""
    if l.is_in_flush and l.wire.out_end + need <= l.wire.out_cap:
        return l.wire.out + l.wire.out_end
    return NULL


# hot
cdef inline bint link_is_clear_for(link_t* l, u64 need) noexcept nogil:
    """Whether `need` more bytes do not stand behind others that are not taken yet: what does not
    fit beside them is sent first, which may block the link."""
    return (l.wire.out_at == l.wire.out_end or l.wire.out_end + need <= l.wire.out_cap
            or link_send(l) == 1)


cdef inline bint link_holds_little(const link_t* l, u64 need) noexcept nogil:
    """Whether `need` more bytes fit into a usual block of output beside what is held, which is
    still in a small one."""
    return (l.is_held and l.rests == NULL and l.wire.out_cap == SMALL_OUTPUT
            and link_unsent(l) + need <= BLOCK_SIZE)


cdef inline bint link_may_hold(const link_t* l, u64 need) noexcept nogil:
    """Whether the link may have memory for `need` bytes of output."""
    return need <= BLOCK_SIZE or need <= l.wire.out_cap or link_may_take(l, need)


# hot
cdef inline void link_wrote(link_t* l, const u8* end) noexcept nogil:
    """The room that was given is filled up to there."""
    l.wire.out_end = <u32>(end - l.wire.out)
    lmq_assert(l.wire.out_end <= l.wire.out_cap)
