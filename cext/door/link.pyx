# Link: one client connection: reads the socket, walks the frames, hands events to its session.
#
# The session is any object with on_header, on_method, on_route_miss, on_held, on_released,
# on_error, on_illegal_frame, on_lost, on_timeout, on_consumer_timeout and on_unreadable; see
# lavinmq/amqp/connection.py. Input is read into the loop's one shared buffer; what is left of a
# frame is kept by the link until its next read, so an idle link owns no buffer. A link with TLS
# does the same by way of an ssl.SSLSocket, with the GIL (decision 0016). Longer than 500 lines:
# one class is one file.
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory

cdef enum:
    TLS_RECORD = 16384          # plain bytes of a full record; more are likely to follow one

# ssl.SSLWantReadError and ssl.SSLWantWriteError, once a link has TLS: a broker without does not
# pay for that module.
cdef object _WantRead = None
cdef object _WantWrite = None


# Freeing one needs its Loop: the garbage collector must not take that away first.
@cython.no_gc_clear
cdef class Link:
    """The message path's side of one connection.

    Args: `loop`, its Loop; `fd`, a connected non-blocking socket, which stays the caller's to close
    after `close()`. Set `session` before `start()`.
    """
    cdef link_t t
    cdef Loop loop
    cdef Vhost vhost
    cdef bytes user
    cdef public object session
    cdef bint is_reading
    cdef object tls             # an SSLSocket after its handshake, or None
    cdef object tls_failure     # why it has failed, empty for its orderly end, None while it lives
    cdef bint is_read_on_due    # a read is scheduled that no event of the socket would bring
    cdef bint is_in_turns       # of the loop

    def __cinit__(self, Loop loop, int fd):
        memset(&self.t, 0, sizeof(link_t))
        self.loop = loop
        self.t.fd = fd
        self.t.loop = &loop.t
        self.t.frame_max = HANDSHAKE_FRAME_MAX
        self.t.owner = <void*>self
        self.t.last_read_ns = self.t.last_sent_ns = clock_ns()

    def __dealloc__(self):
        self.release()

    # ---- life

    def use_tls(self, tls) -> None:
        """Read and write through `tls`, an SSLSocket on this descriptor whose handshake is over;
        to be called before start()."""
        global _WantRead, _WantWrite
        import ssl
        _WantRead, _WantWrite = ssl.SSLWantReadError, ssl.SSLWantWriteError
        self.tls = tls
        self.t.has_tls = True

    def start(self, double timeout_s) -> None:
        """Begin to read; the handshake must be over within timeout_s seconds."""
        self.set_timeout(timeout_s)
        self.loop.links.add(self)
        wheel_add(&self.loop.t, &self.t, link_look_ns(&self.t))
        self.watch_input(True)
        self.read_on()

    def set_timeout(self, double timeout_s) -> None:
        """Call session.on_timeout in timeout_s seconds unless called again; 0 = never."""
        self.t.deadline_ns = clock_ns() + <i64>(timeout_s * 1e9) if timeout_s else 0

    def close(self) -> None:
        """Stop reading and writing, requeue what is unacked, free everything. Idempotent."""
        if self.t.state == LINK_CLOSED:
            return
        self.watch_input(False)
        if self.t.has_writer and not self.t.is_lost:
            self.loop.events.remove_writer(self.t.fd)
        self.release()
        self.tls = None
        self.loop.links.discard(self)
        self.loop.kick()

    cdef void release(self):
        cdef link_t* l = &self.t
        cdef link_t** at
        cdef u32 i
        if l.state == LINK_CLOSED:
            return
        l.state = LINK_CLOSED
        l.fd = -1
        wheel_remove(l.loop, l)
        for i in range(l.cap_chans):
            if l.chans[i] != NULL:
                self.drop_channel(l.chans[i])
        while l.sparse != NULL:
            self.drop_channel(l.sparse)
        at = &l.loop.flush_links
        while l.is_in_flush and at[0] != NULL:
            if at[0] == l:
                at[0] = l.flush_next
                break
            at = &at[0].flush_next
        at = &l.loop.blocked_links
        while at[0] != NULL:
            if at[0] == l:
                at[0] = l.blocked_next
                break
            at = &at[0].blocked_next
        link_drop_rests(l)
        link_drop_output(l)
        free(l.left)
        l.left = NULL
        l.n_left = l.cap_left = 0
        free(l.known)
        l.known = NULL
        answers_free(l.answers)
        l.answers = NULL
        free(l.chans)
        l.chans = NULL
        l.cap_chans = 0

    @property
    def state(self) -> int:
        """One of STATE_HEADER, STATE_HANDSHAKE, STATE_OPEN, STATE_CLOSING, STATE_CLOSED."""
        return self.t.state

    @state.setter
    def state(self, int value) -> None:
        if self.t.state == LINK_CLOSED:
            return
        self.t.state = <u8>value
        if value == LINK_CLOSING:
            self.go(STOP_HELD)          # publishes are discarded now, and close-ok must be read

    @property
    def received_bytes(self) -> int:
        return self.t.n_received_bytes

    @property
    def sent_bytes(self) -> int:
        return self.t.n_sent_bytes

    # ---- input

    cdef void stop(self, u8 why):
        """Neither read nor walk until go(why). The watch stays until there is something to read:
        most stops are over before, and would cost several system calls each."""
        self.t.stops |= why

    cdef void go(self, u8 why):
        """That reason is gone: walk what was kept and read on, unless there is another one."""
        cdef u64 n = self.t.n_left
        if not self.t.stops & why:
            return
        self.t.stops &= ~why
        if self.t.stops or self.t.fd < 0:
            return
        if n:
            loop_clock(self.t.loop)
            self.loop.open_portion()
            if self.t.loop.is_spent:
                self.end_turn()
                return
            self.t.n_left = 0
            self.consume(self.t.left, n)
        if not self.t.stops:
            self.watch_input(True)
            self.read_on()
        self.loop.kick()

    cdef void end_turn(self):
        """Its portion is over: others come first."""
        self.stop(STOP_TURN)
        self.loop.end_turn(self)

    cdef void take_turn(self):
        """Others have had their turn: walk what was kept, or read what had to wait."""
        cdef bint is_unread = self.t.is_unread
        self.is_in_turns = self.t.is_unread = False
        self.go(STOP_TURN)
        if is_unread and not self.t.stops:
            self.on_readable()

    cdef void watch_input(self, bint on):
        if on == self.is_reading or self.t.fd < 0:
            return
        self.is_reading = on
        if on:
            self.loop.events.add_reader(self.t.fd, self.on_readable)
        else:
            self.loop.events.remove_reader(self.t.fd)

    def on_readable(self) -> None:
        """The event loop says that bytes are there: read once and walk them."""
        cdef link_t* l = &self.t
        cdef loop_t* loop = l.loop
        cdef u8* buf
        cdef u64 cap, kept = l.n_left
        cdef ssize_t n
        if l.fd < 0:
            return
        if l.send_awaits_input:
            self.on_writable()
            if l.fd < 0:
                return
        if l.stops:
            self.watch_input(False)
            return
        if loop.is_spent and self.loop.is_scheduled:
            l.is_unread = True
            self.end_turn()
            return
        loop.n_reads += 1
        if l.need > BLOCK_SIZE:
            if l.cap_left < l.need and not self.grow_left(l.need):
                self.session.on_lost("out of memory")
                return
            buf = l.left
            cap = l.cap_left
        else:
            buf = loop.input
            cap = BLOCK_SIZE
            if kept:
                memcpy(buf, l.left, kept)
            if self.loop.late_turns and cap - kept > LATE_READ:
                cap = kept + LATE_READ
        if l.has_tls:
            n = self.receive_tls(buf + kept, cap - kept)
            loop_clock(loop)
            if n == 0 and self.tls_failure is None:
                return
        else:
            with nogil:
                n = c_recv(l.fd, buf + kept, cap - kept, MSG_DONTWAIT)
                loop_clock(loop)
        if n <= 0:
            if n < 0 and (errno == EAGAIN or errno == EINTR):
                return
            self.session.on_lost(self.why_lost("" if n == 0 else os.strerror(errno)))
            return
        l.n_received_bytes += <u64>n
        l.last_read_ns = loop.now_ns
        l.n_left = 0
        self.loop.open_portion()
        loop_spent(loop, <u32>(n >> 6))
        self.consume(buf, kept + <u64>n)
        if l.crowd_bytes > CROWD_BYTES and l.fd >= 0:
            l.crowd_bytes = 0
            self.stop(STOP_CROWD)
            self.loop.hold_crowd(self)
        self.read_on()
        self.loop.kick()

    cdef u64 receive_tls(self, u8* p, u64 n):
        """Fill n bytes at p as far as there is something; returns how many. None are left to be
        found when it fails: then tls_failure says why."""
        cdef u64 got = 0
        cdef u64 k
        if n > BLOCK_SIZE:
            n = BLOCK_SIZE              # a turn: the rest of a large message comes in others
        while got < n and self.tls_failure is None:
            try:
                k = self.tls.read(n - got, PyMemoryView_FromMemory(
                    <char*>p + got, <Py_ssize_t>(n - got), PyBUF_WRITE))
            except _WantRead:
                break
            except _WantWrite:
                self.await_room()
                break
            except Exception as error:
                self.tls_failure = tls_reason(error)
                break
            if k == 0:
                self.tls_failure = ""
            got += k
            # OpenSSL takes one record at a time from the kernel: what it has not taken is shown by
            # an event, and asking costs an exception.
            if k < TLS_RECORD and not self.tls.pending():
                break
        return got

    cdef void read_on(self):
        """Come back for what OpenSSL holds, which no event of the socket would show."""
        if not self.t.has_tls or self.t.fd < 0 or self.t.stops or self.is_read_on_due:
            return
        if self.tls_failure is not None or self.tls.pending():
            self.is_read_on_due = True
            self.loop.events.call_soon(self.on_more)

    def on_more(self) -> None:
        """Another turn has come to read what OpenSSL holds. Called by the event loop."""
        self.is_read_on_due = False
        self.on_readable()

    cdef void await_room(self):
        """TLS has something to say before it can read on, and the kernel takes no more."""
        self.t.read_awaits_room = True
        self.watch_input(False)
        if not self.t.has_writer:
            self.t.has_writer = True
            self.loop.events.add_writer(self.t.fd, self.on_writable)

    cdef object why_lost(self, why):
        """The reason, or the one that TLS gives."""
        return why if self.tls_failure is None else self.tls_failure

    def drain(self) -> None:
        """Read and walk what the kernel has received already, before a close on purpose."""
        cdef u64 before
        cdef int reads = 0
        while reads < 1024 and self.t.fd >= 0 and self.t.state == LINK_OPEN:
            loop_begin_portion(self.t.loop, PORTION_NS)
            self.go(STOP_CROWD | STOP_TURN)
            before = self.t.n_received_bytes
            self.on_readable()
            if self.t.n_received_bytes == before and not self.t.stops & (STOP_CROWD | STOP_TURN):
                break
            reads += 1

    cdef void end(self):
        """The kernel says that the connection is over: take what it still holds up to there."""
        cdef u64 before
        while self.t.fd >= 0 and not self.t.stops:
            before = self.t.n_received_bytes
            self.on_readable()
            if self.t.n_received_bytes == before:
                break
        if self.t.stops & STOP_TURN:
            return                      # and is found again when it has had it
        if self.t.fd >= 0:
            self.session.on_lost(self.why_lost("connection reset"))

    def hold(self) -> None:
        """A publish has to wait: neither read nor walk until the disk has room (on_released)."""
        self.stop(STOP_HELD)
        self.loop.hold(self)

    cdef void release_hold(self):
        if self.t.stops & STOP_HELD and self.t.fd >= 0:
            self.session.on_released()
            self.go(STOP_HELD)

    cdef bint grow_left(self, u64 cap):
        cdef u8* grown = <u8*>realloc(self.t.left, cap)
        if grown == NULL:
            return False
        self.t.left = grown
        self.t.cap_left = <u32>cap
        return True

    cdef void consume(self, u8* buf, u64 n):
        """Walk n bytes at buf, with events to the session in between, and keep what is left."""
        cdef link_t* l = &self.t
        cdef u64 at = 0, used = 0
        cdef i64 began_ns = l.loop.look_ns
        cdef int event
        if l.state == LINK_HEADER:
            if n < 8 and same_bytes(buf, <const u8*>b"AMQP", n if n < 4 else 4):
                self.keep(buf, n)
                return
            self.session.on_header(PyBytes_FromStringAndSize(<char*>buf, n if n < 8 else 8))
            at = 8
        while at < n and l.fd >= 0 and not l.stops:
            with nogil:
                event = amqp_walk(l, buf + at, n - at, &used)
            at += used
            l.loop.work += <u32>(used >> UNIT_SHIFT)
            if event != WALK_DONE and event != WALK_TURN:
                self.dispatch(event)
                if loop_look(l.loop) and at < n:
                    event = WALK_TURN
            link_note_late(l, began_ns, event == WALK_TURN)
            if event == WALK_TURN and l.fd >= 0 and not l.stops:
                self.end_turn()
            if link_owes_much(l) and l.fd >= 0:
                self.choke()
            if event == WALK_DONE:
                break
        if l.fd >= 0:
            self.keep(buf + at, n - at if at < n else 0)

    cdef void choke(self):
        """The peer asks for more than it reads: it is heard again when all is sent."""
        if not self.t.is_blocked:
            link_send(&self.t)
        if link_owes_much(&self.t):
            self.stop(STOP_CHOKED)

    cdef void keep(self, u8* p, u64 n):
        """Keep n bytes for the next read."""
        cdef link_t* l = &self.t
        if n == 0:
            if l.cap_left > 4096:
                free(l.left)
                l.left = NULL
                l.cap_left = 0
            l.n_left = 0
            return
        if n > l.cap_left and not self.grow_left(n):
            self.session.on_lost("out of memory")
            return
        memmove(l.left, p, n)
        l.n_left = <u32>n

    cdef void dispatch(self, int event):
        cdef link_t* l = &self.t
        cdef props_t found
        cdef const u8* user_id
        if event == WALK_METHOD:
            payload = PyBytes_FromStringAndSize(<char*>l.ev_data, l.ev_len)
            self.session.on_method(l.ev_channel, payload)
        elif event == WALK_MISS:
            self.session.on_route_miss(l.ev_channel, *self.asked())
        elif event == WALK_HELD:
            self.session.on_held(l.ev_channel)
        elif event == WALK_ERROR:
            text = b""
            if l.ev_len == ERROR_USER_ID and props_walk(l.ev_data, l.ev_b, True, &found) == 1:
                user_id = l.ev_data + found.user_id_at
                text = PyBytes_FromStringAndSize(<char*>user_id + 1, user_id[0])
            self.session.on_error(l.ev_len, l.ev_channel, l.ev_method, l.ev_a, l.ev_b, text)
        else:
            self.session.on_illegal_frame()

    cdef tuple asked(self):
        """The question that is to be answered first: its kind, an exchange, and routing keys."""
        cdef link_t* l = &self.t
        cdef const u8* p = l.ev_data
        cdef const u8* end = p + l.ev_len
        cdef u32 n
        if l.ev_len == 0:
            key = PyBytes_FromStringAndSize(<char*>p + p[0] + 2, p[p[0] + 1])
            return ASK_PUBLISH, PyBytes_FromStringAndSize(<char*>p + 1, p[0]), [key]
        keys = []
        kind = p[0]
        name = PyBytes_FromStringAndSize(<char*>p + 2, p[1])
        p += 2 + p[1]
        while p < end:
            n = be32(p)
            keys.append(PyBytes_FromStringAndSize(<char*>p + 4, n))
            p += 4 + n
        return kind, name, keys

    def pause(self) -> None:
        """Keep frames unwalked, and stop reading, until resume()."""
        self.stop(STOP_PAUSED)

    def resume(self) -> None:
        """Walk what was kept and read on."""
        self.go(STOP_PAUSED)

    # ---- output

    def write(self, bytes data) -> None:
        """Append whole frames to the output; they are sent at the end of this iteration."""
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data)
        cdef u8* p = link_room(&self.t, <u64>n)
        if p == NULL:
            return
        memcpy(p, PyBytes_AS_STRING(data), n)
        self.t.out_end += <u32>n
        self.loop.kick()

    def flush(self) -> None:
        """Send what is there now, as far as the kernel takes it."""
        if self.t.fd >= 0 and not self.t.is_blocked:
            link_send(&self.t)

    @property
    def unsent_bytes(self) -> int:
        return self.t.out_end - self.t.out_at + self.t.rest_bytes

    cdef void watch_output(self):
        if self.t.is_lost:
            self.session.on_lost(self.why_lost("connection reset"))
        elif self.t.is_unreadable:
            self.t.is_unreadable = self.t.has_writer = self.t.is_blocked = False
            link_give_up_rests(&self.t)
            self.session.on_unreadable()
        elif self.t.fd >= 0 and not self.t.send_awaits_input:
            self.loop.events.add_writer(self.t.fd, self.on_writable)

    def on_writable(self) -> None:
        """The kernel has room again: send on; when all is sent consumers and reading go on."""
        cdef link_t* l = &self.t
        cdef chan_t* c
        cdef u32 i
        cdef int rc
        if l.fd < 0:
            return
        loop_clock(l.loop)
        if l.send_awaits_input:
            l.send_awaits_input = False
            self.loop.events.add_writer(l.fd, self.on_writable)
        if l.rests != NULL:
            if l.has_writer:
                self.loop.events.remove_writer(l.fd)
                l.has_writer = False
                loop_add_job(l.loop, &l.rests.job)
            self.loop.kick()
            return
        rc = link_send(l)
        if l.send_awaits_input:
            self.loop.events.remove_writer(l.fd)    # it would tell of room all the time
        if rc == 0:
            return
        self.loop.events.remove_writer(l.fd)
        l.has_writer = False
        l.is_blocked = False
        if rc < 0:
            self.session.on_lost(self.why_lost("connection reset"))
            return
        link_release_output(l)
        if l.read_awaits_room:
            l.read_awaits_room = False
            if not l.stops:
                self.watch_input(True)
        for i in range(l.cap_chans):
            if l.chans[i] != NULL:
                channel_wake_consumers(l.chans[i])
        c = l.sparse
        while c != NULL:
            channel_wake_consumers(c)
            c = c.sparse_next
        self.go(STOP_CHOKED)
        self.loop.kick()

    # ---- what the handshake decides

    def set_limits(self, u64 frame_max, u64 max_message_size, double heartbeat_s) -> None:
        """Limits in force from now on: payload bytes of a frame, body bytes, seconds (0 = none)."""
        self.t.frame_max = <u32>frame_max
        # Positions in a segment are 32 bits wide.
        self.t.max_message_size = max_message_size if max_message_size < 0x7FFFFFFF else 0x7FFFFFFF
        self.t.heartbeat_ns = <i64>(heartbeat_s * 1e9)

    def set_vhost(self, Vhost vhost) -> None:
        """The vhost whose epoch guards what this link knows of exchanges."""
        if self.t.cap_chans or self.t.sparse != NULL:
            raise ValueError("channels are open that another vhost counts")
        self.vhost = vhost
        self.t.vhost = &vhost.t

    def set_user(self, bytes name, bint is_impersonator) -> None:
        """Login name for the user-id check; an impersonator may publish as anybody."""
        self.user = name
        self.t.user = <const u8*>PyBytes_AS_STRING(name)
        self.t.user_len = <u32>PyBytes_GET_SIZE(name)
        self.t.is_impersonator = is_impersonator

    def learn(self, bytes name, Exchange exchange) -> None:
        """This connection may publish to the exchange until the vhost's epoch moves."""
        cdef u32 name_len
        if PyBytes_GET_SIZE(name) > 255:
            raise ValueError("exchange name is longer than 255 bytes")
        name_len = <u32>PyBytes_GET_SIZE(name)
        if link_learn(&self.t, <const u8*>PyBytes_AS_STRING(name), name_len, &exchange.t):
            raise MemoryError()

    def allow(self, int kind, bytes name, list keys, Exchange exchange or None) -> None:
        """This connection may publish so until the vhost's epoch moves: the answer to a question.
        None: there is no exchange of that name yet."""
        if not 0 <= kind < ASK_KINDS or PyBytes_GET_SIZE(name) > 255:
            raise ValueError("no question")
        parts = [bytes((kind, len(name))), name]
        for key in keys:
            parts += (len(key).to_bytes(4, "big"), key)
        question = b"".join(parts)
        if not link_allow(&self.t, <const u8*>PyBytes_AS_STRING(question), <u32>len(question),
                          &exchange.t if exchange is not None else NULL):
            raise MemoryError()

    # ---- channels

    cdef chan_t* channel(self, int id) except NULL:
        cdef chan_t* c = link_channel(&self.t, <u32>id)
        if c == NULL:
            raise KeyError(f"channel {id} is not open")
        return c

    def open_channel(self, int id, int prefetch) -> None:
        """Open channel id; `prefetch` is the limit of consumers to come (0 = none)."""
        cdef chan_t* c
        if not 0 < id < 65536:
            raise ValueError(f"channel id {id}")
        if link_channel(&self.t, <u32>id) != NULL:
            raise ValueError(f"channel {id} is open")
        c = channel_new(&self.t, <u16>id, prefetch)
        if c == NULL:
            raise MemoryError()
        if link_add_channel(&self.t, c):
            channel_free(c)
            raise MemoryError()

    def close_channel(self, int id, bint is_awaiting_close_ok) -> None:
        """Requeue the channel's unacked deliveries; keep the id reserved when close-ok is awaited.

        Its consumers must have been cancelled."""
        cdef chan_t* c = self.channel(id)
        if not is_awaiting_close_ok:
            self.drop_channel(c)
        else:
            tx_finish(c)
            tx_forget(c)
            channel_orphan(c)
            channel_reset_content(c)
            publish_drop(c)
            c.state = CHAN_CLOSING
        self.loop.kick()

    cdef void drop_channel(self, chan_t* c):
        while c.consumers != NULL:
            channel_remove_consumer(c.consumers)
        link_remove_channel(&self.t, c)
        channel_free(c)

    def set_prefetch(self, int id, int count, bint is_global) -> None:
        """basic.qos: per consumer (existing ones too) or shared by the channel; 0 = no limit."""
        cdef chan_t* c = self.channel(id)
        cdef consumer_t* k = c.consumers
        if is_global:
            c.global_prefetch = count
        else:
            c.prefetch = count
            while k != NULL:
                if count or k.reader == NULL:       # those of a stream have to have a limit
                    k.prefetch = count
                k = k.chan_next
        channel_wake_consumers(c)
        self.loop.kick()

    def prefetch(self, int id) -> tuple:
        """Limits of the channel: of each consumer to come, and shared; 0 = none."""
        cdef chan_t* c = self.channel(id)
        return c.prefetch, c.global_prefetch

    def select_confirms(self, int id) -> None:
        """confirm.select: publishes on the channel are numbered and confirmed from now on."""
        self.channel(id).is_confirm = True

    def stop_deliveries(self) -> None:
        """Deliver nothing more on any channel: the connection and its consumers are going."""
        cdef chan_t* c = self.t.sparse
        cdef u32 i
        for i in range(self.t.cap_chans):
            if self.t.chans[i] != NULL:
                self.t.chans[i].is_flow_stopped = True
        while c != NULL:
            c.is_flow_stopped = True
            c = c.sparse_next

    def cut(self) -> None:
        """Let go of the socket: nothing is read, sent or delivered any more. Then call close()."""
        if self.t.fd < 0:
            return
        self.watch_input(False)
        if self.t.has_writer and not self.t.is_lost:
            self.loop.events.remove_writer(self.t.fd)
        self.t.has_writer = False
        self.t.fd = -1
        self.tls = None
        self.t.has_tls = False
        self.stop_deliveries()
        link_drop_rests(&self.t)
        link_drop_output(&self.t)
        self.loop.links.discard(self)

    def set_flow(self, int id, bint active) -> None:
        """channel.flow from the client: pause or resume deliveries to the channel's consumers."""
        cdef chan_t* c = self.channel(id)
        c.is_flow_stopped = not active
        channel_wake_consumers(c)
        self.loop.kick()

    def select_transactions(self, int id) -> None:
        """tx.select: publishes and settlements on the channel are kept from now on."""
        self.channel(id).is_tx = True

    def commit(self, int id):
        """tx.commit: carry out what is kept; returns None when done, True when it goes on in the
        next turn: then call again, and pause() until then; False when it goes on once all that it
        has stored is on disk (Loop.after_sync): the same.

        Returns a question instead, and does nothing, when something has to be asked first: then
        call again. Raises ValueError, and does nothing, when one cannot be routed, or a closed
        queue or a full one would refuse it. QueueClosedError: a part of it is lost."""
        cdef chan_t* c = self.channel(id)
        cdef int rc
        loop_grant(self.t.loop)
        with nogil:
            rc = tx_commit(c)
        self.loop.kick()
        if rc == TX_MORE:
            return True
        if rc == TX_ASKS:
            return self.asked()
        if rc == TX_NO_MEMORY:
            raise MemoryError()
        if rc == TX_BAD_HEADER:
            raise ValueError("Routing header must be string")
        if rc == TX_MEETS_CLOSED:
            raise ValueError("a queue that the transaction publishes to is closed")
        if rc == TX_IS_TOO_MUCH:
            raise ValueError("a queue is full and refuses a publish of the transaction")
        if rc == TX_DISK and not c.is_refused and not c.is_overflowed:
            return False
        if c.tx_phase == TX_WAITS:
            tx_forget(c)            # settles nothing
        if c.is_refused:            # a queue has broken under it, or there was no memory
            raise QueueClosedError("a queue of the transaction cannot be written")
        if c.is_overflowed:         # dead letters of the transaction itself have filled it
            raise ValueError("a queue was full and has refused a publish of the transaction")
        return None

    @property
    def is_committing(self) -> bool:
        """Whether a commit is being carried out, which has to come to its end."""
        return self.has_phase(TX_CARRIES_OUT) or self.has_phase(TX_SETTLES)

    @property
    def is_awaiting_publishes(self) -> bool:
        """Whether a commit settles nothing yet because what it publishes is not on disk."""
        return self.has_phase(TX_WAITS)

    cdef bint has_phase(self, tx_phase phase):
        for id in self.open_channels():
            if link_channel(&self.t, id).tx_phase == phase:
                return True
        return False

    def rollback(self, int id) -> None:
        """tx.rollback: forget what is kept; settled deliveries are unacked again."""
        tx_forget(self.channel(id))

    def set_reply_address(self, int id, bytes address) -> None:
        """What reply-to becomes when it names the pseudo-queue; empty when nobody consumes it."""
        cdef chan_t* c = self.channel(id)
        if PyBytes_GET_SIZE(address) > 63:
            raise ValueError("reply address is longer than 63 bytes")
        c.reply_address_len = <u8>PyBytes_GET_SIZE(address)
        memcpy(c.reply_address, PyBytes_AS_STRING(address), c.reply_address_len)

    def recover(self, int id, bint requeue) -> None:
        """basic.recover: requeue what is unacked, or, when it is not too much, deliver it again to
        its consumers."""
        cdef chan_t* c = self.channel(id)
        if requeue or c.n_tx_settles or c.n_unacked > ORPHANS_AT_ONCE:
            channel_requeue(c)
        elif channel_recover(c):
            raise MemoryError()
        self.loop.kick()

    def unacked(self, int id) -> int:
        """Deliveries on the channel that are not settled."""
        return self.channel(id).n_unacked

    def channel_counters(self, int id) -> dict:
        """Messages on the channel since it was opened, by name."""
        return tally_dict(&self.channel(id).tally)

    def add_consumer(self, int id, Queue queue, bytes tag, bint no_ack, int priority=0) -> Consumer:
        """Register a consumer; it gets nothing before its start()."""
        cdef chan_t* c = self.channel(id)
        cdef Consumer consumer = Consumer.__new__(Consumer)
        if PyBytes_GET_SIZE(tag) > 255:
            raise ValueError("consumer tag is longer than 255 bytes")
        consumer.tag = tag
        consumer.k = channel_add_consumer(c, queue.q, <const u8*>PyBytes_AS_STRING(tag),
                                          <u32>PyBytes_GET_SIZE(tag), no_ack, priority)
        if consumer.k == NULL:
            raise MemoryError()
        consumer.k.refs += 1
        return consumer

    def unacked_of(self, int id, Queue queue not None, u64 after, u32 most) -> list:
        """(delivery tag, consumer tag or None, whole seconds) of up to `most` deliveries of a queue
        that the channel has not settled, with tags above `after`, by rising tag."""
        return channel_unacked(self.channel(id), queue.q, after, most)

    cdef list open_channels(self):
        """Ids of the channels that are open."""
        cdef link_t* l = &self.t
        cdef chan_t* c = l.sparse
        cdef u32 i
        found = [i for i in range(l.cap_chans)
                 if l.chans[i] != NULL and l.chans[i].state == CHAN_OPEN]
        while c != NULL:
            if c.state == CHAN_OPEN:
                found.append(c.id)
            c = c.sparse_next
        return found

    cdef void check_consumers(self):
        """Tell the session of channels that hold a delivery for too long. A link that waits for the
        disk is left to the next time: an answer would come behind channel.close."""
        cdef chan_t* c
        if self.t.state != LINK_OPEN or self.t.stops & STOP_PAUSED:
            return
        for id in self.open_channels():
            c = link_channel(&self.t, id)
            if c != NULL and channel_is_overdue(c):
                self.session.on_consumer_timeout(id)

    cdef void tell_oversized(self):
        """Tell the session of channels that were to get what their client cannot take."""
        cdef chan_t* c
        if self.t.state != LINK_OPEN or self.t.stops & STOP_PAUSED:
            return
        self.t.is_oversized = False
        for id in self.open_channels():
            c = link_channel(&self.t, id)
            if c != NULL and c.is_oversized:
                c.is_oversized = False
                self.session.on_large_header(id)

    cdef void tell_over(self, const consumer_t* k):
        """Tell the session that a consumer of a stream has had all it asked for."""
        if self.t.state == LINK_OPEN:
            self.session.on_stream_end(
                k.chan.id, PyBytes_FromStringAndSize(<char*>k.template + 12, k.template[11]))

    cdef void leave_queue(self, queue_t* q, queue_t* ghost):
        """See channel_leave_queue."""
        for id in self.open_channels():
            channel_leave_queue(link_channel(&self.t, id), q, ghost)

    def get(self, int id, Queue queue, bint no_ack) -> bool:
        """basic.get: write get-ok with the next message, or return False when there is none."""
        cdef chan_t* c = self.channel(id)
        cdef link_t* l = &self.t
        cdef queue_t* q = queue.q
        cdef rec_t rec
        cdef u32 chunk = l.frame_max - FRAME_OVERHEAD, n
        cdef u64 need
        cdef rest_t* rest = NULL
        cdef u8* p
        cdef u8* start
        if (q.is_deleted or q.is_closed or q.is_paused or q.n_orphans or q.ready == 0
                or q.stream != NULL or queue_next(q, &rec) != 1):
            loop_enforce(q.loop)
            self.loop.kick()
            return False
        record_find_bcc(&rec)
        if not header_fits(&rec, chunk):
            queue_touch(q)
            raise ValueError("the header does not fit a frame")
        need = 32 + rec.names_len + content_size(&rec, chunk)
        if need > BLOCK_SIZE and not link_may_take(l, need):
            queue_touch(q)
            raise MemoryError(f"no memory for a message of {rec.body_len} bytes")
        if record_has_far_body(&rec):
            rest = rest_new(l, q, &rec)
            if rest == NULL:
                queue_touch(q)
                raise MemoryError(f"no descriptor for a message of {rec.body_len} bytes")
            rest.channel = c.id
        start = p = link_room(l, need)
        if p == NULL:
            if rest != NULL:
                rest_free(rest)
            return False
        queue_take(q, &rec, no_ack)
        c.tally.redeliver += rec.redelivered
        p = frame_head(p, FRAME_METHOD, c.id, 17 + rec.names_len)
        put_be32(p, BASIC_GET_OK)
        put_be64(p + 4, c.next_tag)
        p[12] = rec.redelivered
        memcpy(p + 13, rec.names, rec.names_len)
        p += 13 + rec.names_len
        n = <u32>q.ready if q.ready >> 32 == 0 else <u32>-1
        put_be32(p, n)
        p[4] = FRAME_END
        p = content_write(p + 5, c.id, &rec, chunk)
        l.out_end += <u32>(p - start)
        if rest != NULL:
            link_add_rest(l, rest)
        if no_ack:
            q.n_get_no_ack += 1
            c.tally.get_no_ack += 1
            channel_skip_tag(c)
        else:
            q.n_get += 1
            c.tally.get += 1
            if channel_push(c, q, NULL, &rec):
                raise MemoryError()
        queue_touch(q)
        loop_enforce(q.loop)
        self.loop.kick()
        return True


cdef inline void link_note_late(link_t* l, i64 began_ns, bint is_stopped) noexcept nogil:
    """Have others come before l for a while when it has kept the loop busy since then, or is
    stopped while they do: what is left for it then may be short."""
    cdef i64 now_ns = l.loop.look_ns
    if (now_ns - began_ns >= LATE_NS or (is_stopped and now_ns < l.late_until_ns)
            or l.loop.portion_units):
        l.late_until_ns = now_ns + LATE_FOR_NS


cdef ssize_t link_send_tls(link_t* l, u8* p, u32 n) noexcept with gil:
    """send(2) by way of TLS: bytes taken, or a negative errno: EAGAIN or, when it has failed, EIO.

    A send that did not end has to be repeated with the same bytes, at any place, and may bring
    more: that is what the output of a link does."""
    cdef Link link = <Link>l.owner
    try:
        return link.tls.write(PyMemoryView_FromMemory(
            <char*>p, n, PyBUF_READ))
    except _WantWrite:
        return -EAGAIN
    except _WantRead:
        l.send_awaits_input = True
        return -EAGAIN
    except BaseException as why:        # what it has taken is not known
        link.tls_failure = tls_reason(why)
        return -EIO


cdef object tls_reason(error):
    """What an exception of the TLS library says, without its place in the library's source."""
    return f"TLS: {getattr(error, 'reason', None) or getattr(error, 'strerror', None) or error}"


STATE_HEADER = LINK_HEADER
STATE_HANDSHAKE = LINK_HANDSHAKE
STATE_OPEN = LINK_OPEN
STATE_CLOSING = LINK_CLOSING
STATE_CLOSED = LINK_CLOSED
ASK_KIND_PUBLISH = ASK_PUBLISH
ASK_KIND_COPIES = ASK_COPIES
ASK_KIND_LETTER = ASK_LETTER
ASK_KIND_LETTER_KEY = ASK_LETTER_KEY
