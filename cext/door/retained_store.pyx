# Retained store: the class through which Python owns the retained messages of a virtual host.


import hashlib

cdef enum:
    ORIGINAL_QOS = 1            # LavinMQ does not keep it, and gives 1 to who asks for more


# Freeing one needs its Loop: the garbage collector must not take that away first.
@cython.no_gc_clear
cdef class RetainedStore(RetainedSink):
    """The retained messages of a virtual host. See the stub."""
    cdef rstore_t r
    cdef retained_sink_t sink
    cdef Loop loop
    cdef bytes directory
    cdef rwalk_t expiring       # where the search for expired ones is
    cdef bint is_over

    def __cinit__(self, Loop loop not None, str directory not None, u32 file_size=67108864):
        memset(&self.r, 0, sizeof(rstore_t))
        memset(&self.expiring, 0, sizeof(rwalk_t))
        self.sink.sink.put = retained_sink_put
        self.sink.sink.hint = retained_sink_hint
        self.sink.sink.log = &self.r.log
        self.sink.store = &self.r
        self.t = &self.sink.sink
        self.loop = loop
        self.directory = os.fsencode(directory)
        if len(self.directory) > PATH_MAX_BYTES - 64:
            raise ValueError("path is too long")
        self.r.log.loop = &loop.t
        self.r.log.directory = PyBytes_AS_STRING(self.directory)
        self.r.log.name = b"mqtt_retained"
        self.r.log.file_size = file_size
        memcpy(&self.r.seed, PyBytes_AS_STRING(os.urandom(8)), 8)
        if retained_init(&self.r):
            raise MemoryError()

    def __dealloc__(self):
        rwalk_end(&self.expiring)
        retained_release(&self.r)

    def __len__(self):
        return self.r.n

    @property
    def memory(self) -> int:
        """Bytes."""
        return self.r.bytes

    @property
    def file_bytes(self) -> int:
        """Of all files."""
        return mlog_size(&self.r.log)

    @property
    def lost(self) -> int:
        """Messages that could not be read when they were wanted."""
        return self.r.n_lost

    cdef int check(self) except -1:
        if self.is_over:
            raise ValueError("the store is closed")
        return 0

    def load(self) -> list:
        """Read the files. Returns lines for the log."""
        lines = mlog_load(&self.r.log, retained_take)
        retained_drop_below(&self.r, self.r.log.floor)
        mlog_drop_below(&self.r.log)
        return lines

    def import_original(self) -> list:
        """Take over what LavinMQ has kept. Returns lines for the log. See the stub.

        Whatever happens its files are left as they are: it may be that somebody goes back."""
        place = f"{os.fsdecode(self.directory)}/mqtt_retained_store"
        try:
            stamp = os.stat(f"{place}/index").st_mtime_ns
        except FileNotFoundError:
            return []
        if stamp == self.r.imported_ns:
            return []
        lines = []
        topics = mlog_content(f"{place}/index").split(b"\n")
        for topic in topics:
            if 0 < len(topic) < 65536:
                self.import_one(place, bytes(topic), lines)
        self.forget_imported({bytes(topic) for topic in topics})
        if retained_note_import(&self.r, stamp, self.loop.t.now_ms) or mlog_flush(&self.r.log):
            raise OSError(errno, os.strerror(errno), os.fsdecode(self.directory))
        mlog_want_sync(&self.r.log)
        return lines

    cdef import_one(self, str place, bytes topic, list lines):
        """Take over a message of LavinMQ's, unless what we have, or have removed, is newer."""
        cdef rmsg_t* msg
        path = f"{place}/{hashlib.md5(topic, usedforsecurity=False).hexdigest()}.msg"
        try:
            found = os.stat(path)
            content = bytes(mlog_content(path))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            lines.append(f"retained message of {topic!r} is left out: {error}")
            return
        at_ms = found.st_mtime_ns // 1000000
        msg = retained_find(&self.r, <const u8*>PyBytes_AS_STRING(topic), <u32>len(topic))
        if msg == NULL and at_ms <= self.r.imported_at_ms:
            return                      # it was there before, and we have removed it
        if msg != NULL:
            if self.read_now(topic)[4] >= at_ms:
                return
        if not content:
            return
        try:
            self.put(topic, content, ORIGINAL_QOS, b"", at_ms)
        except OSError as error:
            lines.append(f"retained message of {topic!r} is left out: {error}")

    cdef tuple read_now(self, bytes topic):
        """What is kept of a topic; of the beginning of time when it cannot be read."""
        walk = RetainedWalk(self, topic)
        found = []
        while not walk.is_over and not found:
            found = walk.some(1)
        walk.stop()
        return found[0] if found else (topic, b"", 0, b"", 0, 0)

    cdef forget_imported(self, set topics):
        """What was taken over before, and is not there any more, LavinMQ has removed since."""
        if self.r.imported_ns == 0:
            return
        for filter in (b"#", b"$SYS/#"):
            walk = RetainedWalk(self, filter)
            while not walk.is_over:
                for topic, _, _, _, at_ms, _ in walk.some(100):
                    if topic not in topics and at_ms < self.r.imported_at_ms:
                        self.remove(topic)
            walk.stop()

    def put(self, bytes topic not None, bytes payload not None, int qos, bytes properties not None,
            i64 at_ms, i64 expires_ms=0) -> None:
        """Keep a message in the place of what its topic had. Raises OSError, ValueError."""
        cdef rfound_t m
        self.check()
        if not 0 < len(topic) < 65536 or not 0 <= qos <= 2 or len(payload) > RETAINED_MOST or (
                len(properties) > RETAINED_MOST):
            raise ValueError("no message that can be kept")
        m.topic = <const u8*>PyBytes_AS_STRING(topic)
        m.topic_len = <u32>len(topic)
        m.qos = <u8>qos
        m.props = <const u8*>PyBytes_AS_STRING(properties)
        m.props_len = <u32>len(properties)
        m.payload = <const u8*>PyBytes_AS_STRING(payload)
        m.payload_len = <u32>len(payload)
        m.at_ms = at_ms
        m.expires_ms = expires_ms
        checked(retained_put(&self.r, &m), os.fsdecode(self.directory))
        mlog_want_sync(&self.r.log)
        self.loop.kick()

    def remove(self, bytes topic not None) -> bool:
        """Forget the message of a topic; whether there was one. Raises OSError."""
        self.check()
        if len(topic) > 65535:
            return False
        was_there = checked(
            retained_remove(&self.r, <const u8*>PyBytes_AS_STRING(topic), <u32>len(topic)),
            os.fsdecode(self.directory))
        if was_there:
            mlog_want_sync(&self.r.log)
            self.loop.kick()
        return was_there != 0

    def walk(self, bytes filter not None) -> RetainedWalk:
        """The messages that a valid filter matches. Raises ValueError, MemoryError."""
        self.check()
        return RetainedWalk(self, filter)

    @property
    def mark(self) -> tuple[int, int]:
        return self.r.n_puts, self.loop.t.now_ms

    def give(self, bytes filter not None, Queue queue not None, int granted,
             u32 subscription_id=0, mark=None) -> RetainedGift:
        """Begin to give what a valid filter matches to a session. Raises ValueError,
        MemoryError."""
        self.check()
        return RetainedGift(self, filter, queue, granted, subscription_id, mark or self.mark)

    def flush(self) -> None:
        """Write what was put since the last tick. Raises OSError: it is taken back then."""
        checked(mlog_flush(&self.r.log), os.fsdecode(self.directory))

    # ---- cleaning

    @property
    def is_due(self) -> bool:
        """Whether most of the files is bytes that do not count, and nobody cleans them."""
        return not self.is_over and not self.r.is_cleaning and retained_is_due(&self.r)

    def clean_some(self) -> bool:
        """Put a portion of what counts in the oldest file anew; whether there is more. Once that is
        on disk the file goes. Raises OSError: the file stays, and the next call begins anew."""
        if self.is_over or self.r.log.n_files == 0:
            return False
        loop_grant(&self.loop.t)
        rc = retained_clean_some(&self.r, &self.loop.t)
        error = errno if errno else EIO
        if rc == CLEAN_FAILED:
            retained_clean_end(&self.r)
            raise OSError(error, os.strerror(error), os.fsdecode(self.directory))
        self.loop.kick()
        if rc == CLEAN_DONE:
            floor = self.r.log.files[0].number + 1
            if not mlog_sync(&self.r.log, self.loop, lambda: self.cleaned(floor)):
                retained_clean_end(&self.r)
        return rc == CLEAN_MORE

    def cleaned(self, u32 floor) -> None:
        """What was put anew is on disk. Called by the loop."""
        if not self.is_over and not mlog_supersede(
                &self.r.log, self.loop, floor, lambda: self.superseded(floor)):
            retained_clean_end(&self.r)

    def superseded(self, u32 floor) -> None:
        """That a file does not count is on disk. Called by the loop."""
        if self.is_over:
            return
        retained_clean_end(&self.r)
        self.r.log.floor = floor
        mlog_drop_below(&self.r.log)

    def expire_some(self) -> bool:
        """Forget a portion of what has expired; whether there is more to look at."""
        self.check()
        loop_grant(&self.loop.t)
        if self.expiring.store == NULL and rwalk_begin(&self.expiring, &self.r, b"#", 1):
            raise MemoryError()
        is_more = retained_expire(&self.expiring, &self.loop.t)
        if not is_more:
            rwalk_end(&self.expiring)
        self.loop.kick()
        return is_more

    # ---- the end

    def take_news(self) -> object:
        """errno of the last write when that has changed since the last call, else None."""
        cdef bint is_news = self.r.log.is_news
        self.r.log.is_news = False
        return self.r.log.error if is_news else None

    def close(self) -> None:
        """Write and sync what there is, and let go of all. Raises OSError; idempotent."""
        cdef int rc = 0
        if self.is_over:
            return
        self.is_over = True
        rwalk_end(&self.expiring)
        rc = mlog_flush(&self.r.log)
        if rc == 0 and self.r.log.fd >= 0 and self.loop.t.sync:
            rc = sync_data(self.r.log.fd)
        error = errno
        retained_release(&self.r)
        if rc:
            raise OSError(error, os.strerror(error), os.fsdecode(self.directory))

    def release(self) -> None:
        """Let go of all without writing: the files go. Memory goes in turns. Idempotent."""
        self.is_over = True
        rwalk_end(&self.expiring)
        retained_release(&self.r)
        self.loop.kick()


@cython.no_gc_clear
cdef class RetainedWalk:
    """The messages that a filter matches. See the stub."""
    cdef rwalk_t w
    cdef RetainedStore store

    def __cinit__(self, RetainedStore store not None, bytes filter not None):
        memset(&self.w, 0, sizeof(rwalk_t))
        self.store = store
        if not 0 < len(filter) < 65536:
            raise ValueError("no filter")
        if rwalk_begin(&self.w, &store.r, <const u8*>PyBytes_AS_STRING(filter),
                       <u32>len(filter)):
            raise MemoryError()

    def __dealloc__(self):
        self.end()

    cdef void end(self):
        if self.store is None:
            return
        if self.store.is_over:
            self.w.store = NULL                 # it has gone, with what walks had of it
        rwalk_end(&self.w)

    @property
    def is_over(self) -> bool:
        """Whether there are no more."""
        return self.w.is_over

    def some(self, u32 n) -> list:
        """The next messages, up to n, fewer when the portion is over."""
        cdef rfound_t m
        cdef int rc = RWALK_FOUND
        found = []
        if self.store.is_over:
            return found
        loop_grant(&self.store.loop.t)
        while rc == RWALK_FOUND and <u32>len(found) < n:
            rc = rwalk_next(&self.w, &self.store.loop.t, &m)
            if rc == RWALK_NO_MEMORY:
                raise MemoryError()
            if rc == RWALK_FOUND:
                found.append((
                    PyBytes_FromStringAndSize(<char*>m.topic, m.topic_len),
                    PyBytes_FromStringAndSize(<char*>m.payload, m.payload_len), m.qos,
                    PyBytes_FromStringAndSize(<char*>m.props, m.props_len), m.at_ms,
                    m.expires_ms))
                if loop_spent(&self.store.loop.t, FOUND_UNITS):
                    break
        return found

    def stop(self) -> None:
        """No more are wanted. Idempotent."""
        self.end()


@cython.no_gc_clear
cdef class RetainedGift:
    """Retained messages on their way to a session. See the stub."""
    cdef rgift_t g
    cdef RetainedStore store
    cdef Queue queue

    def __cinit__(self, RetainedStore store not None, bytes filter not None,
                  Queue queue not None, int granted, u32 subscription_id, tuple mark not None):
        memset(&self.g, 0, sizeof(rgift_t))
        self.store = store
        self.queue = queue
        if not 0 < len(filter) < 65536 or not 0 <= granted <= 2:
            raise ValueError("no subscription")
        if rgift_begin(&self.g, &store.r, <const u8*>PyBytes_AS_STRING(filter),
                       <u32>len(filter), queue.q, <u8>granted, subscription_id,
                       mark[0], mark[1]):
            raise MemoryError()

    def __dealloc__(self):
        self.end()

    cdef void end(self):
        if self.store is None:
            return
        if self.store.is_over:
            self.g.walk.store = NULL            # it has gone, with what walks had of it
        rgift_end(&self.g)

    def some(self) -> int:
        """Give a portion: RETAINED_OVER, RETAINED_MORE or RETAINED_WAIT."""
        cdef int rc
        if self.store.is_over:
            return GIVE_OVER
        loop_grant(&self.store.loop.t)
        with nogil:
            rc = rgift_some(&self.g, &self.store.loop.t)
        self.store.loop.kick()
        if rc == GIVE_NO_MEMORY:
            raise MemoryError()
        if rc == GIVE_OVER:
            self.end()
        return rc

    def stop(self) -> None:
        """No more are wanted. Idempotent."""
        self.end()


RETAINED_OVER = GIVE_OVER
RETAINED_MORE = GIVE_MORE
RETAINED_WAIT = GIVE_WAIT
