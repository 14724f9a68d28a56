# Rest: output of a link that ends in the body of a large message, which is still where it was.
#
# Reading 128 MiB and copying it to the output would hold up everybody else, and keep that much in
# memory for as long as its client takes to read it. So the output that comes before the body, and
# its header, become a rest: they are sent, and then the body's frames follow from the file, a block
# at a time, in steps of a job (portion.pyx) as long as the kernel takes them. What the link is
# given meanwhile goes to its output block and is sent behind that. A link with a rest counts as
# blocked: its consumers wait. The file is open, so that it may be unlinked, and its segment is
# pinned: compaction makes no holes in it (decision 0047). What is returned to its publisher is sent
# in the same way from the memory in which it came.
# Called by who writes contents, and by wire.pyx.


# ---- making --------------------------------------------------------------------------------------

cdef rest_t* rest_new(link_t* l, queue_t* q, const rec_t* rec) noexcept nogil:
    """What is needed to send the body of a record that is in its file; NULL with errno."""
    cdef store_t* st = queue_level(q, rec.level)
    cdef rest_t* rest = <rest_t*>calloc(1, sizeof(rest_t))
    if rest == NULL:
        return NULL
    rest.fd = store_open_body(st, rec.seg)
    if rest.fd < 0:
        free(rest)
        return NULL
    rest.job.step = rest_step
    rest.link = l
    rest.queue = q
    q.refs += 1
    rest.breaks = q.n_breaks
    rest.level = rec.level
    rest.seg = rec.seg
    rest.at = record_body_at(rec)
    rest.left = rec.body_len
    rest.proof = proof_new(st, rec.seg, <u64>rest.at, rest.left)
    rest.chunk = l.frame_max - l.protocol.piece_head - l.protocol.piece_tail
    store_segment(st, rec.seg).n_pins += 1
    return rest


cdef rest_t* rest_of_content(chan_t* c) noexcept nogil:
    """The same for the body of the content that c has assembled, and that is c's no more; NULL out
    of memory."""
    cdef rest_t* rest = <rest_t*>calloc(1, sizeof(rest_t))
    if rest == NULL:
        return NULL
    rest.job.step = rest_step
    rest.link = c.link
    rest.channel = c.id
    rest.fd = -1
    rest.body = c.body
    rest.body_cap = c.body_cap
    rest.left = c.body_len
    rest.chunk = (c.link.frame_max - c.link.protocol.piece_head - c.link.protocol.piece_tail)
    c.body = NULL
    c.body_cap = 0
    return rest


cdef void rest_let_go(rest_t* rest) noexcept nogil:
    """Nobody reads from the file any more."""
    cdef queue_t* q = rest.queue
    cdef store_t* st = NULL
    cdef seg_t* seg = NULL
    if not q.is_deleted and q.n_breaks == rest.breaks:
        st = queue_level(q, rest.level)
    if st != NULL:
        seg = store_segment(st, rest.seg)
    if seg != NULL and seg.n_pins:
        seg.n_pins -= 1
    close_behind(rest.fd)       # it may be the last one of a file that was removed
    queue_unref(q)


cdef void rest_free(rest_t* rest) noexcept nogil:
    """It is sent, or nobody is there to take it."""
    cdef link_t* l = rest.link
    if rest.queue != NULL:
        rest_let_go(rest)
    else:
        link_free(l, rest.body, rest.body_cap)
    if rest.cap > BLOCK_SIZE:
        link_free(l, rest.buf, rest.cap)
    else:
        buffer_give(&l.loop.pool, rest.buf, rest.cap)
    free(rest.proof)
    free(rest)


cdef void link_add_rest(link_t* l, rest_t* rest) noexcept nogil:
    """What is in the output now is sent, and then the body."""
    rest.cap = link_give_output(l, &rest.buf, &rest.buf_at, &rest.buf_end)
    l.rest_bytes += rest.buf_end - rest.buf_at + rest.left
    l.wire.is_blocked = True
    if l.rests == NULL:
        l.rests = rest
        if not l.wire.has_writer:            # else its turn comes when there is room in the socket
            loop_add_job(l.loop, &rest.job)
    else:
        l.last_rest.next = rest
    l.last_rest = rest


cdef void link_pop_rest(link_t* l) noexcept nogil:
    """The first rest is over."""
    cdef rest_t* rest = l.rests
    l.rests = rest.next
    l.rest_bytes -= rest.buf_end - rest.buf_at + rest.left
    rest_free(rest)


cdef void link_drop_rests(link_t* l) noexcept nogil:
    """Nothing is sent any more."""
    if l.rests != NULL:
        loop_drop_job(l.loop, &l.rests.job)
    while l.rests != NULL:
        link_pop_rest(l)


# ---- sending -------------------------------------------------------------------------------------

cdef bint rest_step(loop_t* loop, job_t* job) noexcept nogil:
    """Send some. False when all is sent, or the kernel takes no more, or nothing can be read: the
    link is told in the next tick."""
    cdef rest_t* rest = <rest_t*>job
    cdef link_t* l = rest.link
    cdef u32 before
    cdef int rc
    while True:
        before = rest.buf_end - rest.buf_at
        rc = link_send_from(l, rest.buf, &rest.buf_at, &rest.buf_end)
        l.rest_bytes -= before - (rest.buf_end - rest.buf_at)
        if rc == SEND_HELD:
            return False
        if rc <= 0:
            link_await_room(l, rc < 0)
            return False
        if rest.left == 0:
            break
        if rest_fill(rest):
            rest_failed(rest)
            link_await_room(l, rest.frame_left != 0)    # in a frame nothing else can be said
            return False
        if loop_look(loop):
            return True
    link_pop_rest(l)
    if l.rests != NULL:
        loop_add_job(loop, &l.rests.job)
    else:
        link_await_room(l, False)       # to send what came behind, and wake the consumers
    return False


cdef int rest_fill(rest_t* rest) noexcept nogil:
    """Fill the empty block with frames of the body. 0, or -1 with errno: what is in the block can
    be sent all the same.

    Cost: 0.3 ns per byte."""
    cdef link_t* l = rest.link
    cdef const protocol_t* protocol = l.protocol
    cdef u32 around = protocol.piece_head + protocol.piece_tail
    cdef u32 room, n, head
    cdef i64 got
    cdef u8* p
    if rest.cap != BLOCK_SIZE:
        if rest.cap > BLOCK_SIZE:
            link_free(l, rest.buf, rest.cap)
        else:
            free(rest.buf)
        rest.cap = 0
        rest.buf = block_take(&l.loop.pool)
        if rest.buf == NULL:
            return -1
        rest.cap = BLOCK_SIZE
    while rest.left and rest.buf_end + around < rest.cap:
        p = rest.buf + rest.buf_end
        room = rest.cap - rest.buf_end - around
        n = rest.frame_left
        head = 0                        # it is sent
        if n == 0:
            n = rest.chunk if rest.left > rest.chunk else <u32>rest.left
            if n > room and rest.buf_end:
                break                   # a whole one fits into the next block
            rest.frame_size = n
            head = protocol.piece_head
        n = room if n > room else n
        got = n
        if rest.queue == NULL:
            memcpy(p + head, rest.body + rest.at, n)
        else:
            got = -1
            if proof_holds(rest.proof, rest.fd, <u64>rest.at, n) == 0:
                got = read_at(rest.fd, p + head, n, rest.at)
        if got < n:
            if got >= 0:
                set_errno(EIO)
            return -1
        if rest.frame_left == 0:
            protocol.piece_begin(p, rest.channel, rest.frame_size)
            rest.frame_left = rest.frame_size
            rest.buf_end += head
            l.rest_bytes += head
        rest.buf_end += n
        rest.at += n
        rest.left -= n
        rest.frame_left -= n
        if rest.frame_left == 0:
            protocol.piece_end(rest.buf + rest.buf_end)
            rest.buf_end += protocol.piece_tail
            l.rest_bytes += protocol.piece_tail
    return 0


cdef void rest_failed(rest_t* rest) noexcept nogil:
    """The body cannot be read, errno says why: have that told as of any other read."""
    cdef queue_t* q = rest.queue
    rest.link.is_unreadable = True
    if q == NULL or q.is_deleted or q.is_closed:
        return
    q.store.error = errno if errno else EIO
    q.loop.is_news = True
    if q.stream != NULL and not can_wait_to_read(q.store.error):
        queue_break(q)


cdef void link_give_up_rests(link_t* l) noexcept nogil:
    """The body of the first rest cannot be read: whole frames of it are sent, and nothing that was
    to follow."""
    cdef rest_t* rest = l.rests
    link_drop_output(l)
    if rest.cap <= BLOCK_SIZE:
        link_take_output(l, rest.buf, rest.buf_at, rest.buf_end, rest.cap)
        l.rest_bytes -= rest.buf_end - rest.buf_at
        rest.buf = NULL
        rest.cap = rest.buf_at = rest.buf_end = 0
    link_drop_rests(l)


cdef void link_await_room(link_t* l, bint is_lost) noexcept nogil:
    """Have the link told, after the next tick, when there is room in its socket, or that it is
    lost."""
    if l.wire.has_writer or l.wire.is_lost:
        return
    l.wire.is_lost = is_lost
    l.wire.has_writer = True
    l.blocked_next = l.loop.blocked_links
    l.loop.blocked_links = l
