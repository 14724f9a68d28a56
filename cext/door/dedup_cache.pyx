# Dedup cache: the class through which Python owns the keys of an exchange or a queue.


def siphash128(bytes key, bytes data) -> bytes:
    """SipHash-2-4 of data with 16 bytes of output. Raises ValueError for a key not of 16 bytes."""
    cdef u64 words[2]
    cdef u64 out[2]
    if len(key) != 16:
        raise ValueError("the key needs 16 bytes")
    memcpy(words, PyBytes_AS_STRING(key), 16)
    siphash(words, <const u8*>PyBytes_AS_STRING(data), <u64>len(data), out)
    return PyBytes_FromStringAndSize(<char*>out, 16)


# Freeing one needs its Loop: the garbage collector must not take that away first.
@cython.no_gc_clear
cdef class DedupCache:
    """The keys that an exchange or a queue has seen: `set_dedup` hands it over.

    Args: `loop`, whose tick writes the file, None in tests; `header`, whose value is the key;
    `size` in keys; `ttl_ms`, -1 for none; `path` of the file, None when the keys go with the
    broker; `boot`, a number of this boot of the machine, not 0.
    """
    cdef dedup_t d
    cdef Loop loop
    cdef bytes header
    cdef bytes path
    cdef budget_t budget        # in place of the loop's
    cdef bytes data             # what is being taken over, or None
    cdef u64 at                 # its next slot
    cdef readonly i64 damaged   # slots of what was taken over, or why it was not: see load

    def __cinit__(self, Loop loop or None, bytes header, size, i64 ttl_ms, str path or None,
                  u64 boot):
        memset(&self.d, 0, sizeof(dedup_t))
        self.d.fd = -1
        self.loop = loop
        self.header = header
        self.d.header = <const u8*>PyBytes_AS_STRING(header)
        self.d.header_len = <u32>len(header)
        self.d.limit = <u32>min(size, MAX_DEDUP_KEYS)
        self.d.ttl_ms = ttl_ms
        self.d.boot = boot
        self.budget.most = MAX_DEDUP_BYTES
        self.d.budget = &self.budget
        memcpy(self.d.salt, PyBytes_AS_STRING(os.urandom(16)), 16)
        if loop is not None:
            self.d.loop = &loop.t
            self.d.budget = &loop.t.dedup_budget
        if path is not None:
            self.path = os.fsencode(path)
            if len(self.path) > PATH_MAX_BYTES - 16:
                raise ValueError("path is too long")
            self.d.path = PyBytes_AS_STRING(self.path)

    def __dealloc__(self):
        dedup_release(&self.d)

    def __len__(self):
        return self.d.n

    def load(self, bytes data) -> int:
        """Take over the keys of a file; returns how many slots were damaged, or what is negative:
        KEYS_UNREADABLE, KEYS_OF_OTHER_BOOT. Raises OSError, and takes over none, when their
        messages cannot be synced: the broker before was killed."""
        if self.is_sync_wanted(data):
            self.loop.sync_found()
        self.load_begin(data)
        while self.load_some():
            pass
        return self.damaged

    def is_sync_wanted(self, bytes data) -> bool:
        """Whether all that was found at the start has to be on disk before these keys count."""
        return (self.loop is not None and self.loop.t.sync and not self.loop.is_found_synced
                and dedup_was_killed(
                    &self.d, <const u8*>PyBytes_AS_STRING(data), <u64>len(data)))

    def load_begin(self, bytes data) -> None:
        """Begin to take over the keys of a file; `load_some` goes on."""
        self.damaged = dedup_load_head(
            &self.d, <const u8*>PyBytes_AS_STRING(data), <u64>len(data))
        self.data = data if self.damaged == 0 else None
        self.at = DEDUP_SLOT

    def load_some(self) -> bool:
        """Take over some; whether there are more. Cost: 0.3 ms."""
        cdef const u8* p
        cdef u64 n, size
        if self.data is None:
            return False
        p = <const u8*>PyBytes_AS_STRING(self.data)
        size = <u64>len(self.data)
        n = min(size - self.at, <u64>DEDUP_LOADED)
        self.damaged += dedup_load_keys(&self.d, p + self.at, n)
        self.at += n
        if self.at == size:
            dedup_load_end(&self.d, p)
            self.data = None
        return self.data is not None

    def seen(self, bytes headers, i64 now_ms) -> bool:
        """Whether a message with these headers is a duplicate."""
        cdef msg_t m
        message_of_headers(headers, &m)
        return dedup_seen(&self.d, &m, now_ms) != 0

    def remember(self, bytes headers, i64 now_ms, bint is_stored=True) -> None:
        """A message with these headers was taken."""
        cdef msg_t m
        message_of_headers(headers, &m)
        dedup_remember(&self.d, &m, now_ms, is_stored)

    def flush(self) -> None:
        """Write new keys to the file. Raises OSError."""
        if dedup_flush(&self.d):
            raise OSError(self.d.error, os.strerror(self.d.error), os.fsdecode(self.path))

    def forget_new(self) -> None:
        """Forget what was remembered since the last flush."""
        dedup_forget_new(&self.d)

    def close(self) -> None:
        """Write and sync the file, let go of all. Raises OSError; idempotent."""
        self.data = None
        failed = dedup_finish(&self.d)
        error = errno
        dedup_release(&self.d)
        self.d.path = NULL
        if failed:
            raise OSError(error, os.strerror(error), os.fsdecode(self.path))

    def release(self) -> None:
        """Let go of all without writing. Idempotent."""
        self.data = None
        dedup_release(&self.d)
        self.d.path = NULL
        if self.loop is not None:
            self.loop.kick()        # memory goes in its turns

    def take_news(self) -> object:
        """errno of the last write when that has changed since the last call, else None."""
        cdef bint is_news = self.d.is_news
        self.d.is_news = False
        return self.d.error if is_news else None


cdef int message_of_headers(bytes headers, msg_t* m) except -1:
    """A message that has nothing but the content of a headers table."""
    if not table_is_valid(<const u8*>PyBytes_AS_STRING(headers), <u64>len(headers), 0):
        raise ValueError("no field table")
    memset(m, 0, sizeof(msg_t))
    # As if flags and the table's length stood before it, which nobody reads.
    m.headers_at = 2
    m.props = <const u8*>PyBytes_AS_STRING(headers) - 6
    m.headers_len = <u32>len(headers)
    return 0


KEYS_MAX = MAX_DEDUP_KEYS
KEYS_UNREADABLE = DEDUP_NO_LOG
KEYS_OF_OTHER_BOOT = DEDUP_OTHER_BOOT
