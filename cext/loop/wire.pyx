# Wire: the socket half of a link as Python holds it: reads, sends, and waits for its turn.
#
# Input is read into the loop's one shared buffer; what is left of a frame is kept until the next
# read, so an idle link owns no buffer. Link, which derives from it, is the session half: it says
# what an event of the walk means. The loop knows links as wires. See link/wire.pyx, output.pyx.
# Longer than 500 lines: a class of Cython stands in one file.

cdef extern from "<sys/socket.h>" nogil:
    int SHUT_WR
    int c_shutdown "shutdown"(int fd, int how)


# Freeing one needs its Loop: the garbage collector must not take that away first.
@cython.no_gc_clear
cdef class Wire:
    """The socket half of a connection; see Link.

    Args: `loop`, its Loop; `fd`, a connected non-blocking socket, which stays the caller's to close
    after `close()`, unless it calls `own()`; `protocol`, what its peer speaks. Set `session` before
    `start()`.
    """
    cdef link_t t
    cdef Loop loop
    cdef Protocol protocol
    cdef public object session
    cdef object tls             # the TLS session, which says why it has failed; or None
    cdef readonly i64 connected_at_ms
    cdef flag_t is_reading
    cdef flag_t is_read_on_due  # a read is scheduled that no event of the socket would bring
    cdef flag_t is_in_turns     # of the loop
    cdef flag_t is_owner        # of the descriptor, which is closed with it
    cdef int end_error          # that the peer has gone with, 0 = in order; see STOP_ENDED

    def __cinit__(self, Loop loop, int fd, Protocol protocol):
        memset(&self.t, 0, sizeof(link_t))
        if protocol.t.walk == NULL:
            raise ValueError("no protocol")
        self.protocol = protocol
        self.t.protocol = &protocol.t
        self.loop = loop
        self.t.wire.fd = fd
        self.t.loop = &loop.t
        self.t.owner = <void*>self
        self.connected_at_ms = clock_unix_ms()
        self.t.wire.last_read_ns = self.t.wire.last_sent_ns = clock_ns()

    # ---- what the session half does

    cdef void dispatch(self, int event):
        """The walk has stopped at an event."""

    cdef void leave(self):
        """Let go of all that the session holds."""

    cdef void look(self):
        """Once in a while: let go of what it has no use for now."""

    cdef bint tell_overdue(self):
        """Tell the session of deliveries that were not settled in time. Whether there are more to
        look at."""
        return False

    cdef void tell_oversized(self):
        """Tell the session of channels that were to get what their client cannot take."""

    cdef void tell_over(self, const consumer_t* k):
        """Tell the session that a consumer of a stream has had all it asked for."""

    # ---- life

    def own(self) -> None:
        """The descriptor is its own from now on, and closed by `cut` or `close`."""
        self.is_owner = True

    cdef void let_go_socket(self):
        if self.is_owner and self.t.wire.fd >= 0:
            c_close(self.t.wire.fd)
        self.t.wire.fd = -1

    def end_output(self) -> None:
        """Nothing more is sent: the peer sees the end of what was. Raises OSError."""
        if c_shutdown(self.t.wire.fd, SHUT_WR):
            raise OSError(errno, os.strerror(errno))

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
        self.unwatch()
        self.release()
        self.t.wire.tls = NULL
        self.tls = None
        self.loop.links.discard(self)
        self.loop.kick()

    cdef void release(self):
        cdef link_t* l = &self.t
        cdef link_t** at
        if l.state == LINK_CLOSED:
            return
        l.state = LINK_CLOSED
        self.let_go_socket()
        wheel_remove(l.loop, l)
        self.leave()
        if l.is_in_flush and not unlink_flush(&l.loop.flush_links, l):
            unlink_flush(&l.loop.flush_rest, l)
        at = &l.loop.blocked_links
        while at[0] != NULL:
            if at[0] == l:
                at[0] = l.blocked_next
                break
            at = &at[0].blocked_next
        link_drop_rests(l)
        link_drop_output(l)
        wire_drop_left(&l.wire)

    def cut(self) -> None:
        """Let go of the socket: nothing is read, sent or delivered any more. Then call close(): its
        channels have deliveries until then, and the loop knows it for their sake."""
        if self.t.wire.fd < 0:
            return
        self.unwatch()
        self.let_go_socket()
        self.t.wire.tls = NULL
        self.tls = None
        link_stop_deliveries(&self.t)
        link_drop_rests(&self.t)
        link_drop_output(&self.t)

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
        return self.t.wire.n_received_bytes

    @property
    def sent_bytes(self) -> int:
        return self.t.wire.n_sent_bytes

    # ---- turns and stops

    cdef void stop(self, u8 why):
        """Neither read nor walk until go(why). The watch stays until there is something to read:
        most stops are over before, and would cost several system calls each."""
        self.t.stops |= why

    cdef void go(self, u8 why):
        """That reason is gone: walk what was kept and read on, unless there is another one."""
        cdef u64 n = self.t.wire.n_left
        if not self.t.stops & why:
            return
        self.t.stops &= ~why
        if self.t.stops or self.t.wire.fd < 0:
            return
        if n:
            loop_clock(self.t.loop)
            self.loop.open_portion()
            if self.t.loop.is_spent:
                self.end_turn()
                return
            self.t.wire.n_left = 0
            self.consume(self.t.wire.left, n)
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
        if not is_unread or self.t.stops != STOP_TURN or self.t.wire.fd < 0:
            self.go(STOP_TURN)
            return
        # All that was kept of one that was not stopped is the beginning of a frame.
        self.t.stops = 0
        self.read()
        if not self.t.stops:
            self.watch_input(True)      # after it: of one that has ended nothing comes any more

    def hold(self) -> None:
        """A publish has to wait: neither read nor walk until the disk has room (on_released)."""
        self.stop(STOP_HELD)
        self.loop.hold(self)

    cdef void release_hold(self):
        if not self.t.stops & STOP_HELD or self.t.wire.fd < 0:
            return
        try:
            self.session.on_released()
        except Exception as error:
            self.fail(error)
        self.go(STOP_HELD)

    def pause(self) -> None:
        """Keep frames unwalked, and stop reading, until resume()."""
        self.stop(STOP_PAUSED)

    def resume(self) -> None:
        """Walk what was kept and read on."""
        self.go(STOP_PAUSED)

    # ---- what the kernel looks for

    cdef void watch_input(self, bint on):
        if on == self.is_reading or self.t.wire.fd < 0:
            return
        self.is_reading = on
        self.watch()

    cdef void watch(self):
        """Have the kernel look for what is waited for."""
        cdef u32 wanted = EPOLLIN | EPOLLRDHUP if self.is_reading else 0
        cdef int error
        if self.t.wire.has_writer:
            wanted |= EPOLLOUT
        error = watch_set(&self.t.loop.watch, &self.t.wire, <void*>self, wanted)
        if error and not self.t.stops & STOP_ENDED:
            self.note_end(error)

    cdef void unwatch(self):
        """The descriptor is about to be somebody else's."""
        self.is_reading = self.t.wire.has_writer = False
        if self.t.wire.fd >= 0:
            watch_set(&self.t.loop.watch, &self.t.wire, <void*>self, 0)

    cdef void on_event(self, u32 found):
        """The kernel has found what was looked for, or an end or an error, of which reading and
        sending tell more. Thousands may end at once: they are read behind all others."""
        if self.is_reading and found & ENDS and not self.t.stops:
            self.t.is_unread = True
            self.stop(STOP_TURN)
            self.watch_input(False)     # else it is found again until its turn has come
            self.loop.hear_last(self)
        elif self.is_reading and found & ~EPOLLOUT:
            self.on_readable()
        if self.t.wire.has_writer and found & ~(EPOLLIN | EPOLLRDHUP):
            self.on_writable()

    # ---- input

    def on_readable(self) -> None:
        """The kernel says that bytes are there: read once and walk them. One that has kept the
        loop busy of late is read behind all others that are readable now."""
        cdef link_t* l = &self.t
        if l.loop.look_ns < l.late_until_ns and not l.stops and l.wire.fd >= 0:
            l.is_unread = True
            self.end_turn()
            return
        self.read()

    cdef void read(self):
        """Read once and walk that, unless the portion is over."""
        cdef link_t* l = &self.t
        cdef loop_t* loop = l.loop
        cdef u8* buf
        cdef u64 cap, kept = l.wire.n_left
        cdef i64 n
        if l.wire.fd < 0:
            return
        if l.stops:
            # A turn comes so soon that ending the watch for it, and beginning it again, would cost
            # more than being told meanwhile.
            if l.stops != STOP_TURN:
                self.watch_input(False)
            return
        if loop.is_spent and self.loop.is_scheduled:
            l.is_unread = True
            self.end_turn()
            return
        loop.n_reads += 1
        if l.wire.need > BLOCK_SIZE:
            if l.wire.cap_left < l.wire.need and not wire_grow_left(&l.wire, l.wire.need):
                self.session.on_lost("out of memory")
                return
            buf = l.wire.left
            cap = l.wire.cap_left
        else:
            buf = loop.input
            cap = BLOCK_SIZE
            if kept:
                memcpy(buf, l.wire.left, kept)
            if self.loop.late_turns and cap - kept > LATE_READ:
                cap = kept + LATE_READ
        with nogil:
            n = wire_receive(&l.wire, buf + kept, cap - kept)
            loop_clock(loop)
        if n <= 0:
            self.loop.open_portion()
            loop_spent(loop, READ_UNITS)
            if n != -EAGAIN:
                self.note_end(<int>-n)
            return
        l.wire.last_read_ns = loop.now_ns
        l.wire.n_left = 0
        l.is_asking = l.mqtt == NULL
        self.received(buf, kept, <u64>n)
        if not l.is_asking and loop.n_reads:
            loop.n_reads -= 1           # who only acknowledges waits for nothing, see is_quiet
        self.read_on()
        self.loop.kick()

    cdef void received(self, u8* buf, u64 kept, u64 n):
        """Walk what was kept and n bytes that have come since, which lie behind each other."""
        cdef link_t* l = &self.t
        self.loop.open_portion()
        loop_spent(l.loop, <u32>(n >> 6))
        self.consume(buf, kept + n)
        if l.wire.fd >= 0 and (
                l.crowd_bytes > CROWD_BYTES or (l.loop.is_behind and n > MUCH_BYTES)):
            l.crowd_bytes = 0
            self.stop(STOP_CROWD)
            self.loop.hold_crowd(self)

    cdef void read_on(self):
        """Come back for what TLS holds, which no event of the socket would show."""
        if self.t.wire.fd < 0 or self.t.stops or self.is_read_on_due:
            return
        if wire_has_more(&self.t.wire):
            self.is_read_on_due = True
            self.loop.events.call_soon(self.on_more)

    def on_more(self) -> None:
        """Another turn has come to read what TLS holds. Called by the event loop."""
        self.is_read_on_due = False
        self.on_readable()

    cdef void note_end(self, int error):
        """The peer has gone: what that takes is done behind what others ask for."""
        self.end_error = error
        self.stop(STOP_ENDED)
        self.watch_input(False)         # else it is found again until it is let go
        self.loop.end_link(self)

    cdef void note_unsendable(self):
        """The kernel takes nothing more: the peer has gone. Nothing is delivered meanwhile."""
        self.t.wire.has_writer = False
        self.t.wire.is_blocked = True
        if not self.t.stops & STOP_ENDED and self.t.wire.fd >= 0:
            self.note_end(ECONNRESET)

    cdef void let_go(self):
        """Others have been heard: tell the session that the peer has gone."""
        if self.t.wire.fd >= 0:
            self.session.on_lost(
                self.why_lost(os.strerror(self.end_error) if self.end_error else ""))

    cdef object why_lost(self, why):
        """The reason, or the one that TLS gives."""
        if self.tls is None or self.tls.failure is None:
            return why
        return self.tls.failure

    def drain(self) -> None:
        """Read and walk what the kernel has received already, before a close on purpose."""
        cdef u64 before
        cdef int reads = 0
        while reads < 1024 and self.t.wire.fd >= 0 and self.t.state == LINK_OPEN:
            loop_begin_portion(self.t.loop, PORTION_NS)
            self.go(STOP_CROWD | STOP_TURN)
            before = self.t.wire.n_received_bytes
            self.read()
            if (self.t.wire.n_received_bytes == before
                    and not self.t.stops & (STOP_CROWD | STOP_TURN)):
                break
            reads += 1

    cdef void end(self):
        """The kernel says that the connection is over: take what it still holds up to there."""
        cdef u64 before
        while self.t.wire.fd >= 0 and not self.t.stops:
            before = self.t.wire.n_received_bytes
            self.read()
            if self.t.wire.n_received_bytes == before:
                break
        if self.t.stops & (STOP_TURN | STOP_ENDED):
            return                      # and is found again when it has had it, or let go
        if self.t.wire.fd >= 0:
            self.note_end(ECONNRESET)

    cdef void consume(self, u8* buf, u64 n):
        """Walk n bytes at buf, with events to the session in between, and keep what is left."""
        cdef link_t* l = &self.t
        cdef u64 at = 0, used = 0
        cdef i64 began_ns = l.loop.look_ns
        cdef int event
        l.wire.need = 0
        l.is_unread = False             # what is kept from here on may be more than a beginning
        while at < n and l.wire.fd >= 0 and not l.stops:
            with nogil:
                event = l.protocol.walk(l, buf + at, n - at, &used)
            at += used
            l.loop.work += <u32>(used >> UNIT_SHIFT)
            if event != WALK_DONE and event != WALK_TURN:
                self.tell(event)
                if loop_look(l.loop) and at < n:
                    event = WALK_TURN
            link_note_late(l, began_ns, event == WALK_TURN)
            if event == WALK_TURN and l.wire.fd >= 0 and not l.stops:
                self.end_turn()
            if link_owes_much(l) and l.wire.fd >= 0:
                self.choke()
            if event == WALK_DONE:
                lmq_assert(link_whole(l, buf + at, n - at) == 0)
                if at < n:
                    l.wire.need = <u32>l.protocol.frame_size(l, buf + at, n - at)
                break
        if l.wire.fd >= 0:
            self.keep(buf + at, n - at if at < n else 0)

    cdef void tell(self, int event):
        """Tell the session what the walk has stopped at. What that raises, a bug or a lack of
        memory, costs this peer its connection: were what it has sent since forgotten, confirms
        would be of other messages than it thinks."""
        try:
            self.dispatch(event)
        except Exception as error:
            self.fail(error)

    cdef void fail(self, object error):
        """This peer pays for what was raised; nobody else waits for it."""
        self.loop.report(error)
        if self.t.wire.fd >= 0 and not self.t.stops & STOP_ENDED:
            self.note_end(ECONNABORTED)

    cdef void choke(self):
        """The peer asks for more than it reads: it is heard again when all is sent."""
        if not self.t.wire.is_blocked:
            link_send(&self.t)
        if link_owes_much(&self.t):
            self.stop(STOP_CHOKED)

    cdef void keep(self, const u8* p, u64 n):
        """Keep n bytes for the next read."""
        if not wire_keep(&self.t.wire, p, n):
            self.session.on_lost("out of memory")

    # ---- output

    def write(self, bytes data) -> None:
        """Append whole frames to the output; they are sent at the end of this iteration."""
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data)
        cdef u8* p = link_room(&self.t, <u64>n)
        if p == NULL:
            return
        memcpy(p, PyBytes_AS_STRING(data), n)
        link_wrote(&self.t, p + n)
        self.loop.kick()

    def flush(self) -> None:
        """Send what is there now, as far as the kernel takes it."""
        if self.t.wire.fd >= 0 and not self.t.wire.is_blocked:
            link_send(&self.t)

    @property
    def unsent_bytes(self) -> int:
        return link_unsent(&self.t)

    cdef void watch_output(self):
        if self.t.wire.is_lost:
            self.note_unsendable()
        elif self.t.is_unreadable:
            self.t.is_unreadable = self.t.wire.has_writer = self.t.wire.is_blocked = False
            link_give_up_rests(&self.t)
            self.session.on_unreadable()
        elif self.t.wire.fd >= 0:
            self.watch()

    def on_writable(self) -> None:
        """The kernel has room again: send on; when all is sent consumers and reading go on."""
        cdef link_t* l = &self.t
        cdef int rc
        if l.wire.fd < 0:
            return
        loop_clock(l.loop)
        if l.rests != NULL:
            if l.wire.has_writer:
                l.wire.has_writer = False
                self.watch()
                loop_add_job(l.loop, &l.rests.job)
            self.loop.kick()
            return
        rc = link_send(l)
        if rc == 0:
            return
        if rc < 0:
            self.note_unsendable()
            return
        l.wire.has_writer = False
        l.wire.is_blocked = False
        self.watch()
        link_release_output(l)
        link_wake_consumers(l)
        self.go(STOP_CHOKED)
        self.loop.kick()


cdef inline void link_note_late(link_t* l, i64 began_ns, bint is_stopped) noexcept nogil:
    """Have others come before l for a while when it has kept the loop busy since then, or is
    stopped while they do: what is left for it then may be short."""
    cdef i64 now_ns = l.loop.look_ns
    if (now_ns - began_ns >= LATE_NS or (is_stopped and now_ns < l.late_until_ns)
            or l.loop.portion_units):
        l.late_until_ns = now_ns + LATE_FOR_NS


cdef bint unlink_flush(link_t** at, const link_t* l) noexcept nogil:
    """Take l out of a list of links with output. Whether it was there."""
    while at[0] != NULL:
        if at[0] == l:
            at[0] = at[0].flush_next
            return True
        at = &at[0].flush_next
    return False
