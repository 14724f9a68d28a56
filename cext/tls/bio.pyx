# Bio: where OpenSSL gets bytes from and puts bytes to: two buffers that all wires of a loop share.
#
# A read of the socket brings many records, and many records go to it at once: OpenSSL by itself
# makes two system calls for each one that comes and another for each one that goes. What is not
# taken by the end of a call is kept by the session (session_end), so an idle wire owns no buffer.

cdef enum:
    RECORD = 16384              # plain bytes of a full record
    RECORD_ROOM = 17408         # and what it may take when it is sealed
    INPUT_SIZE = 131072
    OUTPUT_SIZE = 131072 + RECORD_ROOM
    MAX_STRAY = 32              # records in a row without data: they cost us and serve nobody

cdef struct scratch_t:
    u8* input                   # from the socket, not taken by OpenSSL between in_at and in_end
    u32 in_at
    u32 in_end
    u8* output                  # by OpenSSL, not sent up to out_end
    u32 out_end

cdef struct session_t:
    SSL* ssl
    int fd
    scratch_t* scratch
    u8* held                    # input that no call has taken
    u32 n_held
    u8* unsent                  # output that the kernel has not taken
    u32 n_unsent
    u64 sealed                  # plain bytes in it which the last write has not told of
    u64 budget                  # bytes that this call may still read from the socket
    u32 per_key                 # records that are sent with one key, 0 = any number
    u32 n_by_key                # that were, with this one
    u32 n_stray                 # records without data since the last one that had some
    int os_error                # of the socket, 0 = none
    unsigned long code          # OpenSSL's
    flag_t is_drained           # the socket has nothing more, as far as this call is concerned
    flag_t is_at_end            # it will never have
    flag_t is_ready             # the handshake is over
    flag_t is_over              # the peer has said goodbye
    flag_t has_failed
    flag_t is_in_kernel         # which encrypts what is sent


# hot
cdef i64 session_fill(session_t* s) noexcept nogil:
    """Read the socket into the empty buffer. How many bytes, 0 at the end, or a negative errno."""
    cdef scratch_t* x = s.scratch
    cdef u64 cap = INPUT_SIZE if s.budget > INPUT_SIZE else s.budget
    cdef i64 k
    if s.is_at_end:
        return 0
    if s.is_drained or cap == 0:
        s.is_drained = True
        return -EAGAIN
    k = c_recv(s.fd, x.input, cap, MSG_DONTWAIT)
    if k < 0:
        s.is_drained = True
        if errno == EAGAIN or errno == EINTR:
            return -EAGAIN
        s.os_error = errno
        return -errno
    x.in_at = 0
    x.in_end = <u32>k
    s.budget -= <u64>k
    s.is_at_end = k == 0
    # What comes meanwhile is shown by an event.
    s.is_drained = <u64>k < cap
    return k


# hot
cdef int bio_read(BIO* bio, char* p, int n) noexcept nogil:
    cdef session_t* s = <session_t*>BIO_get_data(bio)
    cdef scratch_t* x = s.scratch
    cdef i64 k
    BIO_clear_retry_flags(bio)
    if n <= 0 or s.n_stray > MAX_STRAY:
        return -1
    if x.in_at == x.in_end:
        k = session_fill(s)
        if k == -EAGAIN:
            BIO_set_retry_read(bio)
        if k <= 0:
            return 0 if k == 0 else -1
    k = x.in_end - x.in_at
    if k > n:
        k = n
    memcpy(p, x.input + x.in_at, <size_t>k)
    x.in_at += <u32>k
    return <int>k


# hot
cdef int bio_write(BIO* bio, const char* p, int n) noexcept nogil:
    cdef session_t* s = <session_t*>BIO_get_data(bio)
    cdef scratch_t* x = s.scratch
    BIO_clear_retry_flags(bio)
    # Only a peer that makes us answer and never reads gets there: a write looks for room first.
    if n < 0 or <u32>n > OUTPUT_SIZE - x.out_end:
        return -1
    memcpy(x.output + x.out_end, p, <size_t>n)
    x.out_end += <u32>n
    return n


cdef long bio_control(BIO* bio, int command, long number, void* pointer) noexcept nogil:
    if command == BIO_CTRL_FLUSH:
        return 1                # that is session_end's
    if command == BIO_CTRL_EOF:
        return (<session_t*>BIO_get_data(bio)).is_at_end
    return 0


cdef const BIO_METHOD* WIRE_METHOD = lmq_bio_method(bio_read, bio_write, bio_control)


cdef BIO* bio_for(session_t* s) noexcept nogil:
    """A BIO of this session, or NULL."""
    cdef BIO* bio = BIO_new(WIRE_METHOD)
    if bio != NULL:
        BIO_set_data(bio, s)
        BIO_set_init(bio, 1)
    return bio


# ---- around each call of OpenSSL -----------------------------------------------------------------

cdef void session_begin(session_t* s, u64 budget) noexcept nogil:
    """Put what was kept into the buffers. Args: budget: bytes to be read from the socket."""
    cdef scratch_t* x = s.scratch
    ERR_clear_error()
    s.budget = budget
    s.is_drained = False
    x.in_at = 0
    x.in_end = s.n_held
    x.out_end = s.n_unsent
    if s.n_held:
        memcpy(x.input, s.held, s.n_held)
        free(s.held)
        s.held = NULL
        s.n_held = 0
    if s.n_unsent:
        memcpy(x.output, s.unsent, s.n_unsent)
        free(s.unsent)
        s.unsent = NULL
        s.n_unsent = 0


cdef bint session_flush(session_t* s) noexcept nogil:
    """Send what is in the buffer. Whether the kernel has taken it all."""
    cdef scratch_t* x = s.scratch
    cdef u32 at = 0
    cdef i64 k
    while at < x.out_end:
        k = c_send(s.fd, x.output + at, x.out_end - at, MSG_NOSIGNAL | MSG_DONTWAIT)
        if k < 0:
            if errno == EINTR:
                continue
            if errno != EAGAIN:
                if not s.has_failed:
                    s.has_failed = True
                    s.os_error = errno
                at = x.out_end
            break
        at += <u32>k
    if at:
        x.out_end -= at
        if x.out_end:
            memmove(x.output, x.output + at, x.out_end)
    return x.out_end == 0


cdef bint session_end(session_t* s) noexcept nogil:
    """Send what is to be sent, and keep what is left in the buffers. Whether all is sent."""
    cdef scratch_t* x = s.scratch
    cdef bint is_sent = x.out_end == 0 or session_flush(s)
    if x.out_end:
        s.unsent = kept(x.output, x.out_end)
        s.n_unsent = x.out_end
    if x.in_at < x.in_end:
        s.n_held = x.in_end - x.in_at
        s.held = kept(x.input + x.in_at, s.n_held)
    if (s.n_unsent and s.unsent == NULL) or (s.n_held and s.held == NULL):
        s.n_unsent = s.n_held = 0
        s.has_failed = True
        s.os_error = ENOMEM
    return is_sent


cdef u8* kept(const u8* p, u32 n) noexcept nogil:
    """A copy, or NULL when there is no memory."""
    cdef u8* copy = <u8*>malloc(n)
    if copy != NULL:
        memcpy(copy, p, n)
    return copy


cdef void session_note(session_t* s, int rc) noexcept nogil:
    """Note why a call of OpenSSL has ended, other than that it waits."""
    cdef int why = SSL_get_error(s.ssl, rc)
    if why == SSL_ERROR_ZERO_RETURN:
        s.is_over = True
        return
    s.has_failed = True
    if s.n_stray <= MAX_STRAY and not s.os_error:
        s.code = ERR_peek_last_error()
    ERR_clear_error()


cdef void note_record(int is_ours, int version, int kind, const void* p, size_t n, SSL* ssl,
                      void* session) noexcept nogil:
    """OpenSSL has taken, or made, a record: a peer's that brings no data is counted."""
    if is_ours or n == 0 or not (kind == SSL3_RT_HEADER or kind == SSL3_RT_INNER_CONTENT_TYPE):
        return
    if (<const u8*>p)[0] != SSL3_RT_APPLICATION_DATA:
        (<session_t*>session).n_stray += 1


cdef class Scratch:
    """The buffers that sessions share; one of them is at work at any time."""
    cdef scratch_t t

    def __cinit__(self):
        memset(&self.t, 0, sizeof(scratch_t))
        self.t.input = <u8*>malloc(INPUT_SIZE)
        self.t.output = <u8*>malloc(OUTPUT_SIZE)
        if self.t.input == NULL or self.t.output == NULL or WIRE_METHOD == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.t.input)
        free(self.t.output)
