"""The message path of lavinmqperf: publish and consume over one socket, without Python objects.

`lavinmq.cli.perf` opens a connection in Python, builds a `Publisher` or a `Consumer`, and lends it
the socket with `run`. Each client has a thread of its own and runs here without the GIL until its
work is done, the run is stopped, or the peer closes. One `Run` is shared by all clients: the stop
flag, the message budgets and the latency samples. Nothing here connects, declares or reconnects.

Memory per client: one receive buffer (IN_BYTES) and, for a publisher, one block of encoded
messages (BLOCK_BYTES, or one message when that is larger). Times are nanoseconds of
CLOCK_MONOTONIC. Layout of frames: type u8, channel u16, size u32, payload, end byte 0xCE.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memmove, memset

import os

cdef extern from * nogil:
    """
    #include <poll.h>
    #include <sys/socket.h>
    #include <sys/uio.h>
    #include <time.h>

    #define perf_load(p) __atomic_load_n((p), __ATOMIC_RELAXED)
    #define perf_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
    #define perf_add(p, v) __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)
    #define perf_swap(p, old, v) \\
        __atomic_compare_exchange_n((p), (old), (v), 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)

    static int64_t perf_now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
    }
    /* Wait until the socket can be read (and written); 1 when it is ready, 0 after wait_ns. */
    static int perf_poll(int fd, short events, int64_t wait_ns) {
        struct timespec t = {wait_ns / 1000000000, wait_ns % 1000000000};
        struct pollfd p = {fd, events, 0};
        return ppoll(&p, 1, &t, NULL) > 0 ? p.revents : 0;
    }
    /* Send two buffers, the first may be empty, with one system call. */
    static ssize_t perf_send(int fd, const uint8_t *a, size_t an, const uint8_t *b, size_t bn) {
        struct iovec iov[2] = {{(void *)a, an}, {(void *)b, bn}};
        struct msghdr m = {0};
        m.msg_iov = iov;
        m.msg_iovlen = 2;
        return sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    static ssize_t perf_recv(int fd, void *buf, size_t n) {
        return recv(fd, buf, n, MSG_DONTWAIT);
    }
    """
    int64_t perf_load(int64_t *p)
    void perf_store(int64_t *p, int64_t v)
    int64_t perf_add(int64_t *p, int64_t v)
    bint perf_swap(int64_t *p, int64_t *old, int64_t v)
    int64_t perf_now()
    short perf_poll(int fd, short events, int64_t wait_ns)
    ssize_t perf_send(int fd, const uint8_t *a, size_t an, const uint8_t *b, size_t bn)
    ssize_t perf_recv(int fd, void *buf, size_t n)
    short POLLIN, POLLOUT

cdef enum:
    IN_BYTES = 163840           # one frame of the largest size we agree to, and room
    OUT_BYTES = 65536           # acks, commits and gets waiting to be sent
    OUT_ROOM = 512              # more than any burst of such frames adds at once
    BLOCK_BYTES = 131072
    TICK_NS = 50000000          # the longest wait before the stop flag is looked at
    QUANTUM_NS = 500000         # the shortest wait of a paced client: caps its wake-ups at 2k/s
    DEBT_NS = 100000000         # a paced client that fell behind catches up no more than this
    LINGER_NS = 2000000000      # after the end: how long to go on sending what was begun
    EMPTY_GET_NS = 1000000      # pause after basic.get found nothing
    SAMPLES = 131072
    INTERVAL_SAMPLES = 16384
    PATTERN = 27                # a body is byte i = (i mod 27) + 64

# How `run` ended. The second value it returns is, in this order: unread bytes, the reason's text,
# the payload of the peer's close method, the reason's text.
cdef enum:
    END_DONE = 0
    END_LOST = 1
    END_CLOSED = 2
    END_VIOLATION = 3

DONE, LOST, CLOSED, VIOLATION = END_DONE, END_LOST, END_CLOSED, END_VIOLATION

# class id << 16 | method id
cdef enum:
    CONNECTION_CLOSE = 0x000A0032
    CHANNEL_CLOSE = 0x00140028
    BASIC_CANCEL = 0x003C001E
    BASIC_DELIVER = 0x003C003C
    BASIC_GET_OK = 0x003C0047
    BASIC_GET_EMPTY = 0x003C0048
    BASIC_ACK = 0x003C0050
    BASIC_NACK = 0x003C0078
    TX_COMMIT_OK = 0x005A0015


cdef inline uint32_t be32(const uint8_t *p) noexcept nogil:
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]


cdef inline uint64_t be64(const uint8_t *p) noexcept nogil:
    return <uint64_t>be32(p) << 32 | be32(p + 4)


cdef inline uint64_t next_random(uint64_t *state) noexcept nogil:
    state[0] ^= state[0] << 13
    state[0] ^= state[0] >> 7
    state[0] ^= state[0] << 17
    return state[0]


# ---- samples: a uniform reservoir of latencies, filled by all consumers at once

cdef struct samples_t:
    int64_t seen
    int64_t min
    int64_t cap
    int64_t *values


cdef void samples_add(samples_t *s, int64_t value, uint64_t *rng) noexcept nogil:
    cdef int64_t at = perf_add(&s.seen, 1), low = perf_load(&s.min)
    while value < low and not perf_swap(&s.min, &low, value):
        pass
    if at >= s.cap:
        at = <int64_t>(next_random(rng) % <uint64_t>(at + 1))
        if at >= s.cap:
            return
    perf_store(s.values + at, value)


cdef void samples_clear(samples_t *s) noexcept nogil:
    perf_store(&s.seen, 0)
    perf_store(&s.min, INT64_MAX)


# ---- pacer: how many messages a client of a given rate may handle by now

cdef struct pacer_t:
    double rate                 # messages per second, 0 = no limit
    int64_t base_ns
    int64_t done                # since base_ns


cdef int64_t pacer_allow(pacer_t *p, int64_t now) noexcept nogil:
    """Return how many messages are due; time further back than DEBT_NS is forgiven, not made up."""
    if p.rate <= 0:
        return INT64_MAX
    cdef double due = (now - p.base_ns) * p.rate / 1e9 + 1
    cdef double debt = due - p.done
    cdef double most = p.rate * DEBT_NS / 1e9 + 1
    if debt > most:
        p.base_ns += <int64_t>((debt - most) / p.rate * 1e9)
        debt = most
    return <int64_t>debt if debt > 0 else 0


cdef int64_t pacer_wait(pacer_t *p, int64_t now) noexcept nogil:
    """Return the time until the next message is due, within QUANTUM_NS and TICK_NS."""
    cdef double wait = p.base_ns + p.done / p.rate * 1e9 - now
    if wait > TICK_NS:
        return TICK_NS
    return <int64_t>wait if wait > QUANTUM_NS else QUANTUM_NS


# ---- conn: one non-blocking socket; bytes in, and two things to send: a borrowed block, then `out`

cdef struct conn_t:
    int fd
    int error                   # errno when lost; 0 = end of file
    uint8_t *in_
    size_t in_at
    size_t in_n
    uint8_t *out
    size_t out_at
    size_t out_n
    const uint8_t *block
    size_t block_n
    const uint8_t *close        # payload of the peer's close, inside in_
    size_t close_n

cdef struct frame_t:
    int kind
    uint32_t size
    const uint8_t *payload


cdef bint conn_pending(conn_t *c) noexcept nogil:
    return c.block_n > 0 or c.out_n > c.out_at


cdef int conn_flush(conn_t *c) noexcept nogil:
    """Send what is pending. 0 = all sent, 1 = the peer does not take more now, -1 = lost."""
    cdef ssize_t n
    cdef size_t of_block
    while conn_pending(c):
        n = perf_send(c.fd, c.block, c.block_n, c.out + c.out_at, c.out_n - c.out_at)
        if n < 0:
            if errno == EINTR:
                continue
            c.error = errno
            return 1 if errno == EAGAIN else -1
        of_block = min(<size_t>n, c.block_n)
        c.block += of_block
        c.block_n -= of_block
        c.out_at += <size_t>n - of_block
    c.out_at = c.out_n = 0
    return 0


cdef int conn_recv(conn_t *c) noexcept nogil:
    """Read once. 1 = the buffer was filled, so there may be more; 0 = drained; -1 = lost."""
    cdef ssize_t n
    cdef size_t room
    if c.in_at:
        memmove(c.in_, c.in_ + c.in_at, c.in_n - c.in_at)
        c.in_n -= c.in_at
        c.in_at = 0
    room = IN_BYTES - c.in_n
    n = perf_recv(c.fd, c.in_ + c.in_n, room)
    if n <= 0:
        if n < 0 and (errno == EAGAIN or errno == EINTR):
            return 0
        c.error = errno if n < 0 else 0
        return -1
    c.in_n += <size_t>n
    return 1 if <size_t>n == room else 0


# hot
cdef inline int conn_frame(conn_t *c, frame_t *f) noexcept nogil:
    """Cut the next frame off the buffer. 1 = done, 0 = more bytes are needed, -1 = violation."""
    cdef size_t have = c.in_n - c.in_at
    cdef const uint8_t *p = c.in_ + c.in_at
    if have < 8:
        return 0
    f.size = be32(p + 3)
    if f.size > IN_BYTES - 8:
        return -1
    if have < f.size + 8:
        return 0
    if p[f.size + 7] != 0xCE:
        return -1
    f.kind = p[0]
    f.payload = p + 7
    c.in_at += f.size + 8
    return 1


cdef int conn_method(conn_t *c, frame_t *f, uint32_t *method) noexcept nogil:
    """Read the id of a method frame; a close or a cancel by the peer ends the run."""
    if f.size < 4:
        return END_VIOLATION
    method[0] = be32(f.payload)
    if method[0] in (CONNECTION_CLOSE, CHANNEL_CLOSE, BASIC_CANCEL):
        c.close = f.payload
        c.close_n = f.size
        return END_CLOSED
    return END_DONE


cdef void conn_put_method(conn_t *c, const uint8_t *payload, uint16_t size) noexcept nogil:
    """Queue a method frame on channel 1; the caller keeps OUT_ROOM free."""
    cdef uint8_t *p = c.out + c.out_n
    memcpy(p, b"\x01\x00\x01\x00\x00", 5)
    p[5] = <uint8_t>(size >> 8)
    p[6] = <uint8_t>size
    memcpy(p + 7, payload, size)
    p[7 + size] = 0xCE
    c.out_n += size + 8


cdef void conn_put_ack(conn_t *c, uint64_t tag, bint multiple) noexcept nogil:
    cdef uint8_t ack[13]
    cdef int i
    memcpy(ack, b"\x00\x3c\x00\x50", 4)
    for i in range(8):
        ack[4 + i] = <uint8_t>(tag >> (56 - 8 * i))
    ack[12] = multiple
    conn_put_method(c, ack, 13)


cdef void conn_put_commit(conn_t *c) noexcept nogil:
    conn_put_method(c, b"\x00\x5a\x00\x14", 4)


cdef struct run_t:
    int64_t stopped
    int64_t publish_left        # INT64_MAX = no limit
    int64_t consume_left
    samples_t total
    samples_t interval


include "perf/publish.pyx"
include "perf/publish_amqp.pyx"
include "perf/consume.pyx"
include "perf/mqtt.pyx"


cdef class Run:
    """What the clients of one run share.

    Args: publish_limit, consume_limit: messages in total over all clients, 0 = no limit.
    """

    cdef run_t run

    def __cinit__(self, *, int64_t publish_limit=0, int64_t consume_limit=0):
        self.run.publish_left = publish_limit or INT64_MAX
        self.run.consume_left = consume_limit or INT64_MAX
        self.run.total.cap = SAMPLES
        self.run.interval.cap = INTERVAL_SAMPLES
        for s in range(2):
            samples_clear(&self.run.interval if s else &self.run.total)
        self.run.total.values = <int64_t *>calloc(SAMPLES, sizeof(int64_t))
        self.run.interval.values = <int64_t *>calloc(INTERVAL_SAMPLES, sizeof(int64_t))
        if not self.run.total.values or not self.run.interval.values:
            raise MemoryError

    def __dealloc__(self):
        free(self.run.total.values)
        free(self.run.interval.values)

    def stop(self):
        """Make every client end; each notices within 50 ms."""
        perf_store(&self.run.stopped, 1)

    @property
    def stopped(self):
        return perf_load(&self.run.stopped) != 0

    def latencies(self):
        """Return (count, minimum, sorted sample), in ns, of the whole run."""
        return samples_read(&self.run.total)

    def interval_latencies(self):
        """Return (count, minimum, sorted sample), in ns, since the last call."""
        result = samples_read(&self.run.interval)
        samples_clear(&self.run.interval)
        return result


cdef object samples_read(samples_t *s):
    cdef int64_t seen = perf_load(&s.seen), i
    values = sorted([perf_load(s.values + i) for i in range(min(seen, s.cap))])
    return seen, perf_load(&s.min) if seen else 0, values


cdef object conn_adopt(conn_t *c, int fd, bytes unread):
    """Start on a socket with the bytes already read from it; earlier state is forgotten."""
    if <size_t>len(unread) > IN_BYTES:
        raise ValueError("more unread bytes than the buffer holds")
    c.fd = fd
    c.in_at = c.out_at = c.out_n = c.block_n = 0
    c.in_n = len(unread)
    memcpy(c.in_, <const uint8_t *>unread, c.in_n)


cdef object conn_result(conn_t *c, int end):
    if end == END_DONE:
        return end, (<char *>c.in_)[c.in_at:c.in_n]
    if end == END_CLOSED:
        return end, (<const char *>c.close)[:c.close_n]
    if end == END_LOST:
        reason = os.strerror(c.error) if c.error else "connection closed by the server"
        return end, reason.encode()
    return end, b"the server sent what the protocol does not allow here"


cdef void conn_alloc(conn_t *c) except *:
    c.in_ = <uint8_t *>calloc(1, IN_BYTES)
    c.out = <uint8_t *>calloc(1, OUT_BYTES)
    if not c.in_ or not c.out:
        raise MemoryError


cdef void conn_free(conn_t *c) noexcept:
    free(c.in_)
    free(c.out)
