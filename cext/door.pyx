# Door: the classes through which Python owns queues, exchanges and vhosts of the message path.
#
# Each owns one struct. Removing a queue: detach its consumers, unbind it everywhere (routes made
# before become void by the exchanges' versions), then delete() here; lavinmq/vhost.py does it in
# that order.


# Freeing one needs its Loop: the garbage collector must not take that away first.
@cython.no_gc_clear
cdef class Queue:
    """One queue: a store and its counters.

    Args: `loop`, its Loop; `directory`, absolute path of the queue's files (made when first
    needed); `segment_size` in bytes; `durable`, whether messages are written through at the end of
    each tick.
    """
    cdef queue_t* q
    cdef Loop loop

    def __cinit__(self, Loop loop, str directory, int segment_size, bint durable):
        cdef bytes parent, leaf
        if len(os.fsencode(directory)) > 4000:
            raise ValueError("directory path is too long")
        parent, leaf = map(os.fsencode, os.path.split(directory))
        parent = loop.parents.setdefault(parent, parent)
        self.loop = loop
        self.q = <queue_t*>calloc(1, sizeof(queue_t))
        if self.q == NULL:
            raise MemoryError()
        self.q.loop = &loop.t
        loop.t.n_queues += 1
        self.q.refs = 1
        if store_init(&self.q.store, parent, leaf, <u32>segment_size, durable):
            raise MemoryError()

    def __dealloc__(self):
        if self.q != NULL:
            self.q.loop.n_queues -= 1
            if not self.q.is_deleted:
                self.q.is_deleted = True
                queue_unstick(self.q)
                store_release(&self.q.store, &self.q.loop.pool)
            queue_unref(self.q)

    def load(self) -> list:
        """Read the segments found in the directory; returns a line for each thing put right.

        Raises OSError, or ValueError naming the file when the store cannot be read (wrong schema
        version); the queue is then closed and its files are untouched: publishes to it are dropped.
        Source: storage reference section 15."""
        self.q.is_closed = True
        try:
            notes = queue_load(self.q)
        except BaseException:
            queue_forget(self.q)
            raise
        self.q.is_closed = False
        return notes

    def take_damage(self) -> list:
        """(path, position, end) of damages found since the last call."""
        cdef store_t* st = &self.q.store
        directory = store_directory(st)
        found = [(f"{directory}/msgs.{st.gaps[i].seg:010d}", st.gaps[i].pos, st.gaps[i].end)
                 for i in range(st.n_gaps)]
        st.n_gaps = 0
        return found

    def close(self) -> None:
        """Write everything out and let go of files and memory.
        Deliveries still unacked stay messages."""
        cdef store_t* st = &self.q.store
        if self.q.is_deleted:
            return
        self.q.is_deleted = True
        failed = not self.q.is_closed and st.is_durable and store_close(st)
        error = errno
        path = store_directory(st)
        if not failed and st.is_durable and st.wfd >= 0 and fdatasync(st.wfd):
            failed, error = True, errno
        queue_unstick(self.q)
        store_release(st, &self.q.loop.pool)
        if failed:
            raise OSError(error, os.strerror(error), path)

    def delete(self) -> bool:
        """Forget all messages and let go of files and memory; the caller removes the directory.

        Returns whether there can be files in it."""
        cdef store_t* st = &self.q.store
        cdef bint had_files
        if self.q.is_deleted:
            return True
        had_files = st.is_durable or st.n_segs > 1 or st.flushed > SEGMENT_HEADER or st.wfd >= 0
        self.q.is_deleted = True
        self.q.ready = self.q.ready_bytes = 0
        queue_unstick(self.q)
        store_release(st, &self.q.loop.pool)
        return had_files

    def purge(self) -> int:
        """Delete the ready messages; returns how many there were."""
        cdef u64 n
        with nogil:
            n = queue_purge(self.q)
        self.loop.kick()
        return n

    @property
    def ready(self) -> int:
        return self.q.ready

    @property
    def ready_bytes(self) -> int:
        return self.q.ready_bytes

    @property
    def unacked(self) -> int:
        return self.q.unacked

    @property
    def consumers(self) -> int:
        return self.q.n_consumers

    @property
    def lost(self) -> int:
        """Records that could not be read and were given up."""
        return self.q.store.lost

    @property
    def read_error(self) -> int:
        """errno of the last read that failed, 0 = none. The message stays; it is tried again."""
        return self.q.store.error

    @property
    def write_error(self) -> int:
        """errno of the last write, 0 = it went well."""
        return self.q.store.write_error

    @property
    def failed_file(self) -> str:
        """Path of the file that the last failed write was for; empty when there was none."""
        cdef const store_t* st = &self.q.store
        if st.failed_kind == NULL or st.leaf == NULL:
            return ""
        return f"{store_directory(st)}/{st.failed_kind.decode()}.{st.failed_seg:010d}"

    @property
    def is_stuck(self) -> bool:
        """The disk has no room for it: its messages wait in memory."""
        return self.q.is_stuck

    @property
    def is_closed(self) -> bool:
        """The store could not be read or written: publishes are dropped, gets are empty."""
        return self.q.is_closed

    def take_broken(self) -> bool:
        """Whether a write has closed it since the last call."""
        cdef bint was = self.q.is_broken
        self.q.is_broken = False
        return was

    def counters(self) -> dict:
        """Totals since start, by name."""
        cdef queue_t* q = self.q
        return {
            "publish": q.n_published, "deliver": q.n_delivered,
            "deliver_no_ack": q.n_delivered_no_ack, "get": q.n_get, "get_no_ack": q.n_get_no_ack,
            "ack": q.n_acked, "redeliver": q.n_redelivered, "reject": q.n_rejected,
        }


cdef class Vhost:
    """The epoch of one vhost: `touch()` makes every connection ask again before it publishes."""
    cdef vhost_t t

    def __cinit__(self):
        self.t.epoch = 1

    def touch(self) -> None:
        """An exchange or a permission has changed."""
        self.t.epoch += 1


cdef dest_t* destination_of(object destination) except NULL:
    """The struct of a Queue or Exchange. Raises TypeError for anything else."""
    if isinstance(destination, Queue):
        return &(<Queue>destination).q.dest
    if isinstance(destination, Exchange):
        return &(<Exchange>destination).t.dest
    raise TypeError("a binding needs a Queue or an Exchange")


cdef object weight_error():
    return ValueError("Routing key must to be a number")


cdef class Exchange:
    """The compiled bindings of one exchange.

    Args: `kind`, one of DIRECT, FANOUT, TOPIC, HEADERS, HASH; `seed` of its hash tables;
    `default_any`, for headers: x-match of bindings that do not say; for hash: `is_jump`, which
    algorithm, and `hash_on`, the header to hash instead of the routing key.
    """
    cdef exchange_t t
    cdef Exchange alternate
    cdef u32 n_exchanges        # compiled bindings to exchanges

    def __cinit__(self, int kind, seed, bint default_any=False, bint is_jump=False,
                  bytes hash_on=None):
        memset(&self.t, 0, sizeof(exchange_t))
        self.t.match = match_new(kind, <u64>(seed & 0xFFFFFFFFFFFFFFFF))
        if self.t.match == NULL:
            raise MemoryError()
        self.t.version = 1
        self.t.is_plain = True
        self.t.dest.kind = DEST_EXCHANGE
        self.t.has_key_routes = kind != MATCH_HEADERS and hash_on is None
        if default_any:
            match_set_default_any(self.t.match, True)
        if kind == MATCH_HASH:
            hash_set_up(self.t.match, is_jump, hash_on)

    def __dealloc__(self):
        if self.t.match != NULL:
            match_free(self.t.match)

    def bind(self, bytes key, bytes arguments, destination) -> None:
        """Add a binding to a Queue or an Exchange; arguments are the content of a field table, for
        HASH behind the destination's name as a short string.
        Raises ValueError for a bad x-match or weight."""
        cdef dest_t* dest = destination_of(destination)
        self.t.version += 1
        rc = match_bind(self.t.match, <const u8*>PyBytes_AS_STRING(key), <u32>len(key),
                        <const u8*>PyBytes_AS_STRING(arguments), <u32>len(arguments), dest)
        if rc == MATCH_BAD_MODE:
            raise ValueError("x-match must be 'any' or 'all'")
        if rc == MATCH_BAD_WEIGHT:
            raise weight_error()
        if rc == MATCH_TOO_HEAVY:
            raise ValueError(f"weights of a hash ring are limited to {HASH_POINTS_MAX} in all")
        if rc == MATCH_NO_MEMORY:
            raise MemoryError()
        if rc < 0:
            raise ValueError("binding arguments are malformed")
        if rc == 1 and dest.kind == DEST_EXCHANGE:
            self.n_exchanges += 1
        self.t.is_plain = self.n_exchanges == 0 and self.alternate is None

    def unbind(self, bytes key, bytes arguments, destination) -> None:
        """Remove a binding; one that is not there is no error.
        Raises ValueError for a bad weight."""
        cdef dest_t* dest = destination_of(destination)
        self.t.version += 1
        rc = match_unbind(self.t.match, <const u8*>PyBytes_AS_STRING(key), <u32>len(key),
                          <const u8*>PyBytes_AS_STRING(arguments), <u32>len(arguments), dest)
        if rc == MATCH_BAD_WEIGHT:
            raise weight_error()
        if rc == 1 and dest.kind == DEST_EXCHANGE:
            self.n_exchanges -= 1
        self.t.is_plain = self.n_exchanges == 0 and self.alternate is None

    def set_alternate(self, Exchange alternate or None) -> None:
        """Where messages go that match nothing; None for nowhere. The vhost's epoch must move."""
        self.alternate = alternate
        self.t.alternate = &alternate.t if alternate is not None else NULL
        self.t.is_plain = self.n_exchanges == 0 and alternate is None

    def counters(self) -> dict:
        """Totals since start, by name."""
        return {
            "publish_in": self.t.n_in, "publish_out": self.t.n_out,
            "unroutable": self.t.n_unroutable,
        }


DIRECT = MATCH_DIRECT
FANOUT = MATCH_FANOUT
TOPIC = MATCH_TOPIC
HEADERS = MATCH_HEADERS
HASH = MATCH_HASH
