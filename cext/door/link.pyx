# Link: the session half of a connection: channels, consumers and what the handshake decides.
#
# The session is any object with on_header, on_method, on_route_miss, on_held, on_released,
# on_error, on_illegal_frame, on_lost, on_timeout, on_consumer_timeout and on_unreadable; see
# lavinmq/amqp/connection.py. The socket half is Wire.


# Freeing one needs its Loop: the garbage collector must not take that away first.
@cython.no_gc_clear
cdef class Link(Wire):
    """The message path's side of one connection.

    Args: `loop`, its Loop; `fd`, a connected non-blocking socket, which stays the caller's to close
    after `close()`; `protocol`, what its peer speaks. Set `session` before `start()`.
    """
    cdef Vhost vhost
    cdef bytes user
    cdef list unlooked          # ids of channels whose deliveries are still to be looked at

    def __cinit__(self, Loop loop, int fd, Protocol protocol):
        self.t.frame_max = HANDSHAKE_FRAME_MAX

    def __dealloc__(self):
        self.release()

    cdef void leave(self):
        cdef link_t* l = &self.t
        cdef u32 i
        for i in range(l.cap_chans):
            if l.chans[i] != NULL:
                self.drop_channel(l.chans[i])
        while l.sparse != NULL:
            self.drop_channel(l.sparse)
        free(l.known)
        l.known = NULL
        answers_free(l.answers)
        l.answers = NULL
        free(l.chans)
        l.chans = NULL
        l.cap_chans = 0

    def use_tls(self, tls) -> None:
        """Read and write through `tls`, a session of `_tls` on this descriptor whose handshake is
        over, or what else hands over a tls_provider_t; to be called before start()."""
        cdef const tls_provider_t* given = <const tls_provider_t*>PyCapsule_GetPointer(
            tls.wire(), TLS_PROVIDER)
        self.tls = tls
        self.t.wire.tls_session = given.session
        self.t.wire.tls = given.calls

    # ---- events of the walk

    cdef void dispatch(self, int event):
        cdef const loop_t* e = self.t.loop
        cdef props_t found
        cdef const u8* user_id
        if event == WALK_HEADER:
            self.session.on_header(PyBytes_FromStringAndSize(<char*>e.ev_data, e.ev_len))
        elif event == WALK_METHOD:
            payload = PyBytes_FromStringAndSize(<char*>e.ev_data, e.ev_len)
            self.session.on_method(e.ev_channel, payload)
        elif event == WALK_MISS:
            self.session.on_route_miss(e.ev_channel, *self.asked())
        elif event == WALK_HELD:
            self.session.on_held(e.ev_channel)
        elif event == WALK_ERROR:
            text = b""
            if e.ev_len == ERROR_USER_ID and props_walk(e.ev_data, e.ev_b, True, &found) == 1:
                user_id = e.ev_data + found.user_id_at
                text = PyBytes_FromStringAndSize(<char*>user_id + 1, user_id[0])
            self.session.on_error(e.ev_len, e.ev_channel, e.ev_method, e.ev_a, e.ev_b, text)
        else:
            self.session.on_illegal_frame()

    cdef tuple asked(self):
        """The question that is to be answered first: its kind, an exchange, and routing keys."""
        cdef const loop_t* e = self.t.loop
        cdef const u8* p = e.ev_data
        cdef const u8* end = p + e.ev_len
        cdef u32 n
        if e.ev_len == 0:
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
        link_stop_deliveries(&self.t)

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
    def is_paused(self) -> bool:
        """Whether it waits for resume()."""
        return self.t.stops & STOP_PAUSED != 0

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
        free(c.reply_address)
        c.reply_address = NULL
        if address:
            c.reply_address = short_string(address)

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

    cdef bint tell_overdue(self):
        """Tell the session of channels that hold a delivery for too long. A link that waits for the
        disk is left to the next time: an answer would come behind channel.close. Whether there are
        more to look at, for they are looked at in portions."""
        cdef chan_t* c
        cdef int rc
        cdef u32 left = OVERDUE_LOOK
        if self.t.state != LINK_OPEN or self.t.stops & STOP_PAUSED:
            return False
        if not self.t.is_in_ages:
            if not link_may_be_overdue(&self.t):
                return False
            self.loop.t.n_overdue_looks += 1
            self.t.overdue_look_ns = self.loop.t.now_ns
            self.t.held_ds = self.loop.t.now_ds
            self.unlooked = self.open_channels()
            self.t.is_in_ages = True
        while self.unlooked:
            id = self.unlooked[len(self.unlooked) - 1]
            c = link_channel(&self.t, id)
            if c != NULL and c.state == CHAN_OPEN:
                rc = channel_overdue(c, &left)
                if rc == OVERDUE_MORE:
                    return True
            else:
                rc = OVERDUE_NONE
                c = NULL
            self.unlooked.pop()
            if rc == OVERDUE:
                self.session.on_consumer_timeout(id)
            elif c != NULL:
                channel_note_oldest(c)
        self.t.is_in_ages = False
        return False

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
                k.chan.id, PyBytes_FromStringAndSize(<char*>k.tag + 1, k.tag[0]))

    cdef void leave_queue(self, queue_t* q, queue_t* ghost):
        """See channel_leave_queue."""
        for id in self.open_channels():
            channel_leave_queue(link_channel(&self.t, id), q, ghost)

    def get(self, int id, Queue queue, bint no_ack) -> bool:
        """basic.get: write get-ok with the next message, or return False when there is none."""
        cdef queue_t* q = queue.q
        cdef int rc = amqp_get(self.channel(id), q, no_ack)
        if rc == GET_HEADER:
            raise ValueError("the header does not fit a frame")
        if rc == GET_NO_MEMORY:
            raise MemoryError("no memory, or no descriptor, for a message")
        loop_enforce(q.loop)
        self.loop.kick()
        return rc == GET_WRITTEN


cdef Protocol amqp_spoken():
    """The table of AMQP 0-9-1."""
    cdef Protocol spoken = Protocol.__new__(Protocol)
    amqp_protocol(&spoken.t)
    return spoken


AMQP = amqp_spoken()
STATE_HEADER = LINK_HEADER
STATE_HANDSHAKE = LINK_HANDSHAKE
STATE_OPEN = LINK_OPEN
STATE_CLOSING = LINK_CLOSING
STATE_CLOSED = LINK_CLOSED
ASK_KIND_PUBLISH = ASK_PUBLISH
ASK_KIND_COPIES = ASK_COPIES
ASK_KIND_LETTER = ASK_LETTER
ASK_KIND_LETTER_KEY = ASK_LETTER_KEY
