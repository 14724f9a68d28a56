# Door: the classes that Python holds. See the stub.
cdef extern from "<fcntl.h>" nogil:
    int c_open_root "open"(const char* path, int flags)
    enum:
        O_RDONLY
        O_DIRECTORY


def sync_file_systems(list fds) -> None:
    """Have all on disk that was written to the file systems of some descriptors. See the stub."""
    cdef int fd, rc, error
    for fd in fds:
        with nogil:
            rc = c_syncfs(fd)
            while rc and errno == EINTR:
                rc = c_syncfs(fd)
            error = errno
        if rc:
            raise OSError(error, os.strerror(error))


cdef class Ring:
    """The last changes of a node's files. See the stub."""
    cdef ring_t r
    cdef bint is_used           # by a feed or a follower
    cdef readonly unsigned int n_resets

    def __cinit__(self, u64 size, u64 position=0):
        if size < 4 * FOLLOW_READ or size & (size - 1):
            raise ValueError("a ring has 4 MiB or more, a power of two")
        ring_open(&self.r, size, position)

    def __dealloc__(self):
        ring_close(&self.r)

    @property
    def first(self) -> int:
        """From this position on it has all."""
        return position_hear(&self.r.first)

    @property
    def head(self) -> int:
        """The position behind the last change."""
        return position_hear(&self.r.head)

    def reset(self, u64 position) -> None:
        """Forget all, and begin at a position. Raises RuntimeError while it is used."""
        if self.is_used:
            raise RuntimeError("the ring is in use")
        self.r.first = self.r.head = position
        self.n_resets += 1
        touched_forget(self.r.touched, position)
        places_forget(self.r.places, position)

    def replaced(self) -> None:
        """Files have become others, past all changes. See the stub."""
        self.n_resets += 1
        places_forget(self.r.places, position_hear(&self.r.head))

    def is_same(self, str path, u64 since) -> bool:
        """Whether what is at a place is as a follower had it at a position. See the stub."""
        cdef bytes raw = os.fsencode(path)
        return places_are_same(self.r.places, raw, <u64>len(raw), since)

    def changes(self, u64 since, u64 until, int most) -> tuple:
        """What was changed between two positions. See the stub.

        The follower's thread may write the ring meanwhile: what it writes over it gives up first,
        so whatever was read is right if it is still there afterwards."""
        cdef u64 at = since, size, n_path, n_target
        cdef u8* p
        cdef list found = []
        while at < until and len(found) < most:
            p = ring_at(&self.r, at)
            size, n_path, n_target = le32(p), le16(p + 6), le16(p + 8)
            if size < ENTRY_HEAD + n_path + n_target or size > ENTRY_MOST:
                raise LookupError(f"position {at} is not in the ring")
            at += size
            if p[4] != ENTRY_MARK:
                found.append((p[4], PyBytes_FromStringAndSize(<char*>p + ENTRY_HEAD, n_path),
                              PyBytes_FromStringAndSize(<char*>p + ENTRY_HEAD + n_path, n_target),
                              le64(p + 24), at))
        reads_before()
        if since < self.r.first or at > self.r.head:
            raise LookupError(f"position {since} is not in the ring")
        return at, found

    cdef int use(self) except -1:
        if self.is_used:
            raise RuntimeError("the ring is in use")
        self.is_used = True
        return 0


cdef class Feed:
    """A leader's: hears of changes and knows who has them. See the stub."""
    cdef feed_t f
    cdef readonly Ring ring
    cdef bint is_open

    def __cinit__(self, Ring ring):
        self.f.copied_fd = -1
        ring.use()
        self.ring = ring
        pthread_mutex_init(&self.f.lock, NULL)
        self.is_open = True
        self.f.ring = ring.r
        self.f.changed = ring.r.head    # maybe: what is behind it is new in any case
        self.f.least = 1
        self.f.copies.mark = feed_mark
        self.f.copies.have = feed_has
        self.f.copies.wake = feed_wake
        self.f.copied_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.f.copied_fd < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.f.copied_fd >= 0:
            c_close(self.f.copied_fd)
        if self.is_open:
            keeper_close(&self.f.keeper)
            pthread_mutex_destroy(&self.f.lock)

    @property
    def note(self) -> int:
        """Address of the function for `_core.observe`."""
        return <size_t>&feed_note

    @property
    def address(self) -> int:
        """What that gets, and what `Loop.wait_for_copies` takes."""
        return <size_t>&self.f

    def fileno(self) -> int:
        """An eventfd, written when what the loop waits for may be there."""
        return self.f.copied_fd

    @property
    def head(self) -> int:
        """The position behind the last change."""
        return self.f.ring.head

    @property
    def first(self) -> int:
        """From this position on it has all."""
        return self.f.ring.first

    @property
    def changed(self) -> int:
        """The position behind the last change, marks do not count."""
        return self.f.changed

    def tell(self, u64 position) -> None:
        """Have the next marks say what all have on disk. See the stub."""
        pthread_mutex_lock(&self.f.lock)
        if position > self.f.told:
            self.f.told = position
        pthread_mutex_unlock(&self.f.lock)

    @property
    def error(self) -> int:
        """The errno when a change could not be read: nothing is acknowledged any more."""
        return self.f.error

    @property
    def n_copies(self) -> int:
        """How many nodes acknowledgements wait for by now, this one included."""
        cdef peer_t* p
        cdef int n = 1
        pthread_mutex_lock(&self.f.lock)
        p = self.f.peers
        while p != NULL:
            n += p.is_required
            p = p.next
        pthread_mutex_unlock(&self.f.lock)
        return n

    def require(self, u32 least, u32 n_missing) -> None:
        """Set how many copies there have to be, and how many that are in sync are not there."""
        pthread_mutex_lock(&self.f.lock)
        self.f.least, self.f.n_missing = least, n_missing
        pthread_mutex_unlock(&self.f.lock)
        wake(self.f.copied_fd)

    def is_same(self, bytes path, u64 since) -> bool:
        """Whether a file is as it was at a position. See the stub."""
        cdef const char* raw = path
        cdef u64 n = <u64>len(path)
        cdef bint is_same
        with nogil:
            pthread_mutex_lock(&self.f.lock)
            is_same = touched_is_same(self.f.ring.touched, raw, n, since)
            pthread_mutex_unlock(&self.f.lock)
        return is_same

    def mark(self) -> int:
        """Ask for all that was changed so far. Returns: the position behind it."""
        return feed_mark(&self.f.copies)

    def has(self, u64 position) -> bool:
        """Whether what was changed up to there is where it has to be."""
        return feed_has(&self.f.copies, position)


cdef class Peer:
    """A follower that is connected. See the stub."""
    cdef peer_t* p
    cdef Feed feed
    cdef object sock

    def __cinit__(self, Feed feed, sock, u64 position, str compression=None):
        cdef feed_t* f = &feed.f
        cdef bint is_there
        self.feed, self.sock = feed, sock
        self.p = <peer_t*>calloc(1, sizeof(peer_t))
        if self.p == NULL:
            raise MemoryError
        self.p.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.p.wake_fd < 0:
            raise OSError(errno, os.strerror(errno))
        self.p.feed = f
        channel_open(&self.p.wire, sock)
        if compression is not None:
            self.p.is_in_blocks, self.p.pack.mode = True, _PACKING[compression]
        self.p.cursor = self.p.given = self.p.acked = self.p.began = position
        self.p.heard_ns = clock_ns()
        pthread_mutex_lock(&f.lock)
        is_there = f.ring.first <= position <= f.ring.head
        if is_there:
            self.p.next = f.peers
            f.peers = self.p
        pthread_mutex_unlock(&f.lock)
        if not is_there:
            raise LookupError(f"position {position} is not in the ring")

    def __dealloc__(self):
        if self.p != NULL:
            self.leave()
            if self.p.wake_fd >= 0:
                c_close(self.p.wake_fd)
            packer_close(&self.p.pack)
            free(self.p.block)
            free(self.p)

    cdef void leave(self) noexcept:
        """The feed knows it no more."""
        cdef peer_t** at = &self.feed.f.peers
        pthread_mutex_lock(&self.feed.f.lock)
        while at[0] != NULL and at[0] != self.p:
            at = &at[0].next
        if at[0] != NULL:
            at[0] = self.p.next
        pthread_mutex_unlock(&self.feed.f.lock)

    def serve(self) -> str:
        """Send until it ends, and say why: empty when it was closed. In a thread of its own."""
        cdef int why, error
        with nogil:
            why = peer_serve(self.p)
            error = errno
        if why == PEER_OVERRUN:
            return "it is too far behind"
        if why == PEER_LIES:
            return "it claims to have what it was not sent"
        if why == PEER_GONE:
            return channel_words(self.sock, error, "it has closed the connection")
        return ""

    def stop(self) -> None:
        """Have `serve` end. Acknowledgements that wait for it go on waiting."""
        self.p.is_over = True
        wake(self.p.wake_fd)

    def close(self) -> None:
        """Nothing waits for it any more. When `serve` has ended."""
        self.leave()
        wake(self.feed.f.copied_fd)

    @property
    def is_required(self) -> bool:
        """Whether acknowledgements wait for it."""
        return self.p.is_required

    @is_required.setter
    def is_required(self, bint value) -> None:
        pthread_mutex_lock(&self.feed.f.lock)
        self.p.is_required = value
        pthread_mutex_unlock(&self.feed.f.lock)
        wake(self.feed.f.copied_fd)

    @property
    def sent(self) -> int:
        """Position up to which it was sent, or nearly so."""
        return self.p.cursor

    @property
    def n_sent(self) -> int:
        """Bytes of changes that it was sent, or nearly so."""
        return self.p.cursor - self.p.began

    @property
    def n_wire(self) -> int:
        """Bytes that went over the wire for them."""
        return self.p.pack.n_wire

    @property
    def n_packed(self) -> int:
        """How many of the former went packed."""
        return self.p.pack.n_packed

    @property
    def acked(self) -> int:
        """Position up to which it has all on disk."""
        return self.p.acked

    @property
    def lag_s(self) -> float:
        """Seconds since it has told of something new on its disk, if it owes anything; else 0."""
        cdef i64 behind
        pthread_mutex_lock(&self.feed.f.lock)
        behind = self.p.behind_ns
        pthread_mutex_unlock(&self.feed.f.lock)
        return (clock_ns() - behind) / 1e9 if behind else 0.0

    @property
    def silent_s(self) -> float:
        """Seconds since it has said anything."""
        cdef i64 heard
        pthread_mutex_lock(&self.feed.f.lock)
        heard = self.p.heard_ns
        pthread_mutex_unlock(&self.feed.f.lock)
        return (clock_ns() - heard) / 1e9


cdef class Follower:
    """Makes the leader's changes again. See the stub."""
    cdef follow_t w
    cdef readonly Ring ring

    def __cinit__(self, Ring ring, str root, int touches=-1):
        cdef int i
        self.w.apply.root = -1
        self.w.apply.touches.fd = touches
        pthread_mutex_init(&self.w.lock, NULL)
        ring.use()
        self.ring = ring
        raw = os.fsencode(root)
        self.w.apply.files = <applied_file_t*>calloc(APPLY_FILES, sizeof(applied_file_t))
        if self.w.apply.files == NULL:
            raise MemoryError
        for i in range(APPLY_FILES):
            self.w.apply.files[i].fd = -1
        self.w.apply.root = c_open_root(raw, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        if self.w.apply.root < 0:
            raise OSError(errno, os.strerror(errno), root)
        self.w.ring = &ring.r
        self.w.applied = self.w.synced = self.w.changed = ring.r.head

    def __dealloc__(self):
        self.close()
        pthread_mutex_destroy(&self.w.lock)

    def close(self) -> None:
        """Let go of the files, and of the ring. Not while it runs. Idempotent."""
        cdef int i
        if self.w.apply.files != NULL:
            for i in range(APPLY_FILES):
                apply_close(&self.w.apply, &self.w.apply.files[i])
            free(self.w.apply.files)
            self.w.apply.files = NULL
            self.ring.is_used = False
        unpacker_close(&self.w.unpack)
        if self.w.apply.root >= 0:
            c_close(self.w.apply.root)
            self.w.apply.root = -1

    @property
    def is_incomplete(self) -> bool:
        """Whether a change could not be noted. See the stub."""
        return self.w.apply.touches.is_incomplete

    @property
    def applied(self) -> int:
        """Position up to which all was done."""
        return position_hear(&self.w.applied)

    @property
    def synced(self) -> int:
        """Position up to which all is on disk."""
        return position_hear(&self.w.synced)

    def sync_times(self) -> tuple:
        """How long syncs took: see histogram_values."""
        return histogram_values(&self.w.sync_times)

    @property
    def common(self) -> int:
        """Position up to which the disks of all nodes in sync have all. See the stub."""
        return position_hear(&self.w.common)

    def run(self, sock, u64 until=0, bint is_lazy=False, bint is_lenient=False,
            bint in_blocks=False, bint beats=False) -> tuple:
        """Do what comes by a connection until it ends. See the stub."""
        cdef int end, error
        if self.w.apply.files == NULL:
            raise RuntimeError("it was closed")
        channel_open(&self.w.wire, sock)
        self.w.stop_at = until
        self.w.apply.lenient_until = until if is_lenient else 0
        self.w.heard_ns = clock_ns()
        self.w.apply.is_full = False
        self.w.is_lazy = is_lazy
        self.w.unpack.is_on = in_blocks
        with nogil:
            # Whoever beats sees the connection that this is about.
            pthread_mutex_lock(&self.w.lock)
            self.w.may_beat = beats
            pthread_mutex_unlock(&self.w.lock)
            end = follow_run(&self.w)
            error = errno
            # Who runs this may close the connection next.
            pthread_mutex_lock(&self.w.lock)
            self.w.may_beat = False
            pthread_mutex_unlock(&self.w.lock)
            if end != FOLLOW_THERE:
                # Of what has come in part there is nothing.
                position_tell(&self.ring.r.head, self.w.applied)
        if end == FOLLOW_THERE:
            return ("there", "")
        why = unpacker_words(&self.w.unpack)
        unpacker_close(&self.w.unpack)
        if end == FOLLOW_GARBLED:
            return ("garbled", why)
        if end == FOLLOW_LOST:
            return ("lost", channel_words(sock, error, "the leader has closed the connection"))
        if end == FOLLOW_REFUSED or end == FOLLOW_FULL:
            kind = "refused" if end == FOLLOW_REFUSED else "full"
            return (kind, os.fsdecode(<bytes>self.w.apply.why))
        return ("disk", os.strerror(error))

    def beat(self) -> bool:
        """Say that this node is there. See the stub."""
        return follow_beat(&self.w)

    def sync(self) -> None:
        """Have all that was done on disk. Raises OSError. Not while it runs."""
        cdef int rc, error
        with nogil:
            rc = apply_sync(&self.w.apply)
            error = errno
        if rc:
            raise OSError(error, os.strerror(error))
        self.w.synced = self.w.applied
