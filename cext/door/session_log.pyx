# Session log: the class through which Python owns what sessions of MQTT keep beside their queues.


# Freeing one needs its Loop: the garbage collector must not take that away first.
@cython.no_gc_clear
cdef class SessionLog(SessionSink):
    """The sessions of a virtual host. See the stub."""
    cdef slog_t s
    cdef session_sink_t sink
    cdef Loop loop
    cdef bytes directory
    cdef object waiting         # (bytes that are to be on disk, callback), as they came
    cdef bint is_asked          # on_synced is going to be called
    cdef bint is_over

    def __cinit__(self, Loop loop not None, str directory not None, u32 file_size=16777216):
        memset(&self.s, 0, sizeof(slog_t))
        self.sink.sink.note = slog_sink_note
        self.sink.sink.place = slog_sink_place
        self.sink.sink.leave = slog_sink_leave
        self.sink.sink.origin = slog_sink_origin
        self.sink.sink.take = slog_sink_take
        self.sink.log = &self.s
        self.t = &self.sink.sink
        self.loop = loop
        self.waiting = deque()
        self.directory = os.fsencode(directory)
        if len(self.directory) > PATH_MAX_BYTES - 64:
            raise ValueError("path is too long")
        self.s.log.loop = &loop.t
        self.s.log.directory = PyBytes_AS_STRING(self.directory)
        self.s.log.name = b"mqtt_sessions"
        self.s.log.file_size = file_size
        memcpy(&self.s.seed, PyBytes_AS_STRING(os.urandom(8)), 8)
        if slog_init(&self.s):
            raise MemoryError()

    def __dealloc__(self):
        slog_release(&self.s)

    def __len__(self):
        return self.s.n

    def __contains__(self, bytes client_id not None):
        return not self.is_over and slog_find(
            &self.s, <const u8*>PyBytes_AS_STRING(client_id), <u32>len(client_id)) != NULL

    @property
    def memory(self) -> int:
        """Bytes."""
        return self.s.bytes

    @property
    def file_bytes(self) -> int:
        """Of all files."""
        return mlog_size(&self.s.log)

    cdef msession_t* get(self, bytes client_id) except NULL:
        cdef msession_t* m
        if self.is_over:
            raise ValueError("the log is closed")
        m = slog_find(&self.s, <const u8*>PyBytes_AS_STRING(client_id), <u32>len(client_id))
        if m == NULL:
            raise KeyError(client_id)
        return m

    cdef int done(self, int rc) except -1:
        """Have what was noted written; raise OSError when it was not noted."""
        checked(rc, os.fsdecode(self.directory))
        self.loop.kick()
        return 0

    def load(self) -> list:
        """Read the files. Returns lines for the log."""
        lines = mlog_load(&self.s.log, slog_take)
        slog_end_load(&self.s)
        if not self.s.is_in_doubt:      # else they say where messages are, until it is settled
            mlog_drop_below(&self.s.log)
        return lines

    # ---- what of it is true

    @property
    def is_in_doubt(self) -> bool:
        """Whether a loss of power may have left ids of messages that are not there."""
        return self.s.is_in_doubt

    def settle(self, list queues not None, RetainedStore retained or None) -> list:
        """Forget the received ids whose messages did not come to the disk. See the stub."""
        cdef msession_t* m
        cdef mpacket_t* packet
        cdef u32 i, at
        cdef dict wanted = {}
        forgotten = []
        for at in range(self.s.n_places):
            wanted.setdefault(self.s.places[at].key, []).append(at)
        for queue in queues if wanted else ():
            self.look(wanted.get(slog_key(&self.s, (<Queue>queue).q.name)), <Queue>queue)
        for at in wanted.get(0, ()):
            if retained is None or not mlog_holds(
                    &retained.r.log, self.s.places[at].seg, self.s.places[at].end):
                slog_miss(&self.s, at)
        for i in range(self.s.n_slots):
            m = self.s.slots[i]
            for at in range(m.cap_packets if m != NULL else 0):
                packet = &m.packets[at]
                if packet.id and packet.state == PACKET_RECEIVED and not slog_believes(
                        &self.s, packet):
                    forgotten.append((PyBytes_FromStringAndSize(<char*>m.name, m.name_len),
                                      packet.id))
        for client_id, packet_id in forgotten:
            self.note(client_id, SESSION_RELEASED, packet_id)
        slog_settled(&self.s)
        return forgotten

    cdef look(self, list places, Queue queue):
        """Look which of these places, of one queue, are there."""
        cdef u32 at
        for at in places or ():
            if queue.q.is_closed or not store_kept(
                    queue.q.store, self.s.places[at].seg, self.s.places[at].end):
                slog_miss(&self.s, at)

    def secure(self) -> None:
        """Have all that was noted on disk. Raises OSError. See the stub."""
        self.flush()
        if self.loop.t.sync and self.s.log.fd >= 0:
            checked(sync_data(self.s.log.fd), os.fsdecode(self.directory))
            sync_directory(os.fsdecode(self.directory))
        mlog_drop_below(&self.s.log)

    # ---- what was read

    def client_ids(self, u32 at, u32 n) -> tuple:
        """Ids of up to n sessions from a place on, and the next place; -1: there is none."""
        cdef msession_t* m
        found = []
        while at < self.s.n_slots and <u32>len(found) < n:
            m = self.s.slots[at]
            if m != NULL:
                found.append(PyBytes_FromStringAndSize(<char*>m.name, m.name_len))
            at += 1
        return found, at if at < self.s.n_slots else -1

    def times(self, bytes client_id not None) -> tuple:
        """Seconds that a session outlives its client, and when that went."""
        cdef msession_t* m = self.get(client_id)
        return m.expiry_s, m.left_ms

    def facts(self, bytes client_id not None) -> dict:
        """What is kept of a session, by key."""
        cdef mfact_t* fact = self.get(client_id).facts
        found = {}
        while fact != NULL:
            key = PyBytes_FromStringAndSize(<char*>fact.key, fact.key_len)
            found[key] = PyBytes_FromStringAndSize(<char*>&fact.key[fact.key_len],
                                                   fact.value_len)
            fact = fact.next
        return found

    def fact(self, bytes client_id not None, bytes key not None) -> object:
        """What is kept under a key, or None."""
        cdef mfact_t* fact = mfact_find(self.get(client_id), <const u8*>PyBytes_AS_STRING(key),
                                        <u32>len(key))[0]
        if fact == NULL:
            return None
        return PyBytes_FromStringAndSize(<char*>&fact.key[fact.key_len], fact.value_len)

    def packets(self, bytes client_id not None) -> tuple:
        """Ids received, (id, segment, position) of those sent, ids released."""
        cdef msession_t* m = self.get(client_id)
        cdef mpacket_t* packet
        cdef u32 i
        received, sent, released = [], [], []
        for i in range(m.cap_packets):
            packet = &m.packets[i]
            if packet.id and packet.state == PACKET_RECEIVED:
                received.append(packet.id)
            elif packet.id and packet.state == PACKET_SENT:
                if packet.origin.key == 0:
                    sent.append((packet.id, packet.seg, packet.pos))
            elif packet.id:
                released.append(packet.id)
        return sorted(received), sorted(sent), sorted(released)

    def taken(self, bytes client_id not None) -> list:
        """(id, segment, position, key, mark, segment, position, subscription) of messages of shared
        subscriptions: where each was moved to, 0, 0 = nowhere, and where it was."""
        cdef msession_t* m = self.get(client_id)
        cdef mpacket_t* packet
        cdef u32 i
        found = []
        for i in range(m.cap_packets):
            packet = &m.packets[i]
            if packet.id and packet.origin.key:
                found.append((packet.id, packet.seg, packet.pos, packet.origin.key,
                              packet.origin.mark, packet.origin.seg, packet.origin.pos,
                              packet.origin.subscription))
        return sorted(found)

    def key(self, Queue queue not None) -> int:
        """What stands for a queue in `taken`."""
        return slog_short_key(&self.s, queue.q.name)

    # ---- changes

    def make(self, bytes client_id not None) -> None:
        """A session begins, with nothing of an earlier one. Raises OSError."""
        if self.is_over or not 0 < len(client_id) < 65536:
            raise ValueError("no session")
        self.done(slog_make(&self.s, <const u8*>PyBytes_AS_STRING(client_id),
                            <u32>len(client_id)))

    def end(self, bytes client_id not None) -> None:
        """A session has ended. Raises OSError, KeyError."""
        self.done(slog_end(&self.s, self.get(client_id)))

    def set_times(self, bytes client_id not None, u32 expiry_s, i64 left_ms) -> None:
        """How long it outlives its client, and when that went. Raises OSError, KeyError."""
        self.done(slog_set_times(&self.s, self.get(client_id), expiry_s, left_ms))

    def set_fact(self, bytes client_id not None, bytes key not None, bytes value or None) -> None:
        """Keep a value under a key, or none. Raises OSError, KeyError, ValueError."""
        cdef msession_t* m = self.get(client_id)
        cdef const u8* p = <const u8*>PyBytes_AS_STRING(key)
        if not 0 < len(key) < 65536 or (value is not None and len(value) > SLOG_FACTS):
            raise ValueError("no fact")
        if value is None:
            self.done(slog_drop_fact(&self.s, m, p, <u32>len(key)))
        else:
            self.done(slog_set_fact(&self.s, m, p, <u32>len(key),
                                    <const u8*>PyBytes_AS_STRING(value), <u32>len(value)))

    def note(self, bytes client_id not None, int change, u16 id, u32 seg=0, u32 pos=0) -> None:
        """A packet id has changed, see SESSION_CHANGES. Raises OSError, KeyError, ValueError."""
        if not SESSION_RECEIVED <= change <= SESSION_DONE or id == 0:
            raise ValueError("no change")
        self.done(slog_note(&self.s, self.get(client_id), <u8>change, id, seg, pos))

    # ---- the disk

    def flush(self) -> None:
        """Write what was noted since the last tick. Raises OSError: it is tried again."""
        checked(mlog_flush(&self.s.log), os.fsdecode(self.directory))

    def synced(self, callback) -> None:
        """Call `callback()` on the loop once all that was noted so far is on disk, or written if
        the loop waits for no disk. While it cannot be written nothing is called, nor is it once
        the log is closed."""
        cdef u64 until
        if self.is_over:
            return                      # nor may it come to the loop's lists, which it has left
        slog_gather(&self.s.log)
        until = self.s.log.n_written + self.s.log.n_stage + self.s.n_block
        self.waiting.append((until, callback))
        self.ask()

    cdef ask(self):
        mlog_note_dirty(&self.s.log)
        mlog_want_sync(&self.s.log)
        if not self.is_asked:
            self.is_asked = True
            self.loop.after_sync(self.on_synced)
        else:
            self.loop.kick()

    def on_synced(self) -> None:
        """A sync has ended: those who waited for it are told in portions. Called by the loop."""
        cdef u64 safe = mlog_safe(&self.s.log)
        self.is_asked = False
        while self.waiting and self.waiting[0][0] <= safe:
            self.loop.answers.append(self.waiting.popleft()[1])
        if self.waiting and not self.is_over and self.s.log.error == 0:
            self.ask()

    def retry(self) -> None:
        """Write what had not to be written at once, and try again what could not be. Called once a
        second."""
        if self.is_over:
            return
        slog_look_safe(&self.s)
        slog_drop_left(&self.s, self.loop.t.n_synced)
        if self.s.log.error == 0 and self.s.n_block == 0 and self.s.safe == self.s.safe_told:
            return
        if mlog_flush(&self.s.log) == 0 and self.waiting:
            self.ask()
        self.loop.kick()                # publishers may have waited for room

    @property
    def is_due(self) -> bool:
        """Whether most of the files is records that do not count, and nobody compacts them."""
        return (not self.is_over and not self.s.is_compacting and self.loop.t.stuck == NULL
                and slog_is_due(&self.s))

    def compact_some(self) -> bool:
        """Write a portion of all sessions anew; whether there is more. Once all are on disk the
        other files go. Raises OSError: they stay, and the next call begins anew."""
        if self.is_over:
            return False
        loop_grant(&self.loop.t)
        rc = slog_compact_some(&self.s, &self.loop.t)
        error = errno if errno else EIO
        if rc < 0:
            raise OSError(error, os.strerror(error), os.fsdecode(self.directory))
        self.loop.kick()
        if rc == 0:
            floor = self.s.compact_file
            self.s.is_compacting = mlog_sync(
                &self.s.log, self.loop, lambda: self.compacted(floor))
        return rc == 1

    def compacted(self, u32 floor) -> None:
        """All sessions are on disk. Called by the loop."""
        if self.is_over:
            return
        self.s.is_compacting = False
        if mlog_safe(&self.s.log) < self.s.compact_end:
            return                      # queues wait for room: their messages are not on disk
        if not turn_is_safe(&self.s, self.s.compact_turn):
            self.s.safe = self.s.marked = self.s.compact_turn
        # The files that are to go say where messages are, until the log says that they are safe.
        self.s.is_compacting = mlog_supersede(
            &self.s.log, self.loop, floor, lambda: self.superseded(floor))

    def superseded(self, u32 floor) -> None:
        """That files do not count is on disk. Called by the loop."""
        if self.is_over:
            return
        self.s.is_compacting = False
        self.s.log.floor = floor
        mlog_drop_below(&self.s.log)

    def take_news(self) -> object:
        """errno of the last write when that has changed since the last call, else None."""
        cdef bint is_news = self.s.log.is_news
        self.s.log.is_news = False
        return self.s.log.error if is_news else None

    def close(self) -> None:
        """Write and sync what there is, and let go of all. Raises OSError; idempotent."""
        cdef int rc
        if self.is_over:
            return
        self.is_over = True
        self.waiting = deque()
        rc = mlog_flush(&self.s.log)
        if rc == 0 and self.s.log.fd >= 0 and self.loop.t.sync:
            rc = sync_data(self.s.log.fd)
        error = errno
        slog_release(&self.s)
        if rc:
            raise OSError(error, os.strerror(error), os.fsdecode(self.directory))

    def release(self) -> None:
        """Let go of all without writing: the files go. Idempotent."""
        self.is_over = True
        self.waiting = deque()
        slog_release(&self.s)


SESSION_CHANGES = {
    "RECEIVED": SESSION_RECEIVED, "RELEASED": SESSION_RELEASED, "SENT": SESSION_SENT,
    "REC": SESSION_REC, "DONE": SESSION_DONE,
}
