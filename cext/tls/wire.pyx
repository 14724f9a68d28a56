# Wire: how a wire with TLS reads and writes: the three functions of tls_t.

cdef enum:
    READ_NS = 300000            # of one read: a peer may send records of one byte
    READS_PER_LOOK = 16         # at the clock


# hot
cdef i64 tls_read(wire_t* w, u8* p, u64 n) noexcept nogil:
    """Fill n bytes at p as far as there is something; see tls_t."""
    cdef session_t* s = <session_t*>w.tls_session
    cdef scratch_t* x = s.scratch
    cdef u64 got = 0
    cdef u32 looks = 0
    cdef i64 until_ns = clock_ns() + READ_NS
    cdef int k
    if s.ssl == NULL or s.has_failed or s.is_over:
        return 0 if s.is_over and not s.has_failed else -EIO
    if n > BLOCK_SIZE:
        n = BLOCK_SIZE              # a turn: the rest of a large message comes in others
    # A record may be on its way, and what is read may end in the middle of another.
    session_begin(s, n - RECORD_ROOM if n > 2 * RECORD_ROOM else RECORD_ROOM)
    while got < n:
        k = SSL_read(s.ssl, p + got, <int>(n - got))
        if k > 0:
            got += <u64>k
            s.n_stray = 0
        elif SSL_get_error(s.ssl, k) == SSL_ERROR_WANT_READ and s.n_stray <= MAX_STRAY:
            # Or it has taken a record that brings no data.
            if x.in_at == x.in_end and s.is_drained:
                break
        else:
            session_note(s, k)
            break
        looks += 1
        if looks % READS_PER_LOOK == 0 and clock_ns() > until_ns:
            break
    session_end(s)
    if got:
        return <i64>got             # and the failure the next time
    if s.has_failed:
        return -EIO
    return 0 if s.is_over else -EAGAIN


cdef void session_count(session_t* s) noexcept nogil:
    """A record was sealed: take another key behind the last one of this."""
    s.n_by_key += 1
    if s.n_by_key == s.per_key:
        s.n_by_key = 0
        # Without memory it stays with this one, and is asked again as many records later.
        if not SSL_key_update(s.ssl, SSL_KEY_UPDATE_NOT_REQUESTED):
            ERR_clear_error()


# hot
cdef i64 tls_write(wire_t* w, const u8* p, u64 n) noexcept nogil:
    """Send up to n bytes at p; see tls_t. What was sealed and not sent is not told of: the next
    write begins with the same bytes."""
    cdef session_t* s = <session_t*>w.tls_session
    cdef scratch_t* x = s.scratch
    cdef u64 got = s.sealed
    cdef int k
    if s.ssl == NULL or s.has_failed or got > n:
        return -EIO
    session_begin(s, 0)
    s.sealed = 0
    if got:
        n = got                     # what follows may be something else by then
    while got < n:
        if x.out_end > OUTPUT_SIZE - RECORD_ROOM and not session_flush(s):
            break
        k = SSL_write(s.ssl, p + got, RECORD if n - got > RECORD else <int>(n - got))
        if k > 0:
            got += <u64>k
            if s.per_key:
                session_count(s)
            continue
        if not (s.is_in_kernel and SSL_get_error(s.ssl, k) == SSL_ERROR_WANT_WRITE):
            session_note(s, k)
        break
    if not session_end(s) and not s.has_failed:
        s.sealed = got
        return -EAGAIN
    if s.has_failed:
        return -EIO
    return <i64>got if got else -EAGAIN


cdef bint tls_pending(const wire_t* w) noexcept nogil:
    """Whether there is input, or an end, that no event of the socket will show."""
    cdef session_t* s = <session_t*>w.tls_session
    return s.ssl != NULL and (
        s.n_held > 0 or s.is_over or s.has_failed or SSL_pending(s.ssl) > 0)
