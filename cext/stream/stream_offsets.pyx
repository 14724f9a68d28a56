# Stream offsets: what the consumers of a stream have acknowledged, by tag, and the file that keeps
# it.
#
# A consumer's acknowledgements change its tag's offset in memory; the tick appends one entry for
# each tag that has changed. The newest entry of a tag counts. The file is rewritten with the newest
# entries alone at start, and some time after it is full or messages that tags point at are gone: a
# thread writes and syncs another file, to which the loop adds what was appended meanwhile before it
# takes the place of the old one (lavinmq/vhost/stored_offsets.py). Called by stream.pyx,
# stream_load.pyx and the door. Source: docs/formats.md, streams.
#
#   entry       u8 n, n bytes tag, i64 offset       little-endian; n = 0: the end of the entries
#
# The offset is where the tag goes on reading. The format is LavinMQ's and is not ours to change.

cdef enum:
    OFFSETS_GROWTH = 1000       # bytes of the file for each byte that lives, before it is rewritten
    OFFSETS_LEAST = 8192        # but not less than this
    OFFSETS_MOST = 67108864     # and not more
    OFFSETS_LIMIT = 201326592   # nobody has rewritten it for long: it is done at once
    OFFSETS_PIECE = 65536
    OFFSETS_ENTRY_MAX = 264
    OFFSETS_LOOKED = 4096       # tags that are looked at in one go
    OFFSETS_NOTES = 16          # lines for the log about tags that are set back

cdef const char* OFFSETS_FILE = b"consumer_offsets"


cdef void offsets_path(const store_t* st, char* path) noexcept nogil:
    snprintf(path, PATH_MAX_BYTES, b"%s/%s/%s", st.dirname, st.basename, OFFSETS_FILE)


# ---- tags ----------------------------------------------------------------------------------------

cdef void tracks_unlink(tracks_t* ts, track_t* t) noexcept nogil:
    """Take t out of the order of commits."""
    if ts.next is t:
        ts.next = t.newer
    if t.older != NULL:
        t.older.newer = t.newer
    else:
        ts.oldest = t.newer
    if t.newer != NULL:
        t.newer.older = t.older
    else:
        ts.newest = t.older


cdef void tracks_link(tracks_t* ts, track_t* t) noexcept nogil:
    """Make t the one committed last."""
    t.older = ts.newest
    t.newer = NULL
    if ts.newest != NULL:
        ts.newest.newer = t
    else:
        ts.oldest = t
    ts.newest = t


cdef int tracks_grow(tracks_t* ts) noexcept nogil:
    """0, or -1 out of memory."""
    cdef u32 cap = ts.n_buckets * 2 if ts.n_buckets else 16
    cdef track_t** grown = <track_t**>calloc(cap, sizeof(track_t*))
    cdef track_t* t = ts.oldest
    cdef u64 i
    if grown == NULL:
        return -1
    while t != NULL:
        if t.len:
            i = hash_bytes(t.tag, t.len, 0) & (cap - 1)
            t.bucket_next = grown[i]
            grown[i] = t
        t = t.newer
    free(ts.buckets)
    ts.buckets = grown
    ts.n_buckets = cap
    return 0


cdef track_t* tracks_find(const tracks_t* ts, const u8* tag, u32 n) noexcept nogil:
    cdef track_t* t
    if ts.n == 0:
        return NULL
    t = ts.buckets[hash_bytes(tag, n, 0) & (ts.n_buckets - 1)]
    while t != NULL and not (t.len == n and same_bytes(t.tag, tag, n)):
        t = t.bucket_next
    return t


cdef track_t* tracks_get(tracks_t* ts, const u8* tag, u32 n) noexcept nogil:
    """The track of a tag, made if it is new; NULL when out of memory."""
    cdef track_t* t = tracks_find(ts, tag, n)
    cdef u64 i
    if t != NULL:
        return t
    if ts.n == ts.n_buckets and tracks_grow(ts):
        return NULL
    t = <track_t*>calloc(1, sizeof(track_t) + n)
    if t == NULL:
        return NULL
    t.len = <u8>n
    memcpy(t.tag, tag, n)
    i = hash_bytes(tag, n, 0) & (ts.n_buckets - 1)
    t.bucket_next = ts.buckets[i]
    ts.buckets[i] = t
    ts.n += 1
    tracks_link(ts, t)
    return t


cdef void tracks_forget(tracks_t* ts, track_t* t) noexcept nogil:
    """Nothing is stored for t any more; it goes unless a reader or the next flush needs it."""
    cdef track_t** at
    t.offset = 0
    if t.refs or t.is_dirty:
        return
    at = &ts.buckets[hash_bytes(t.tag, t.len, 0) & (ts.n_buckets - 1)]
    while at[0] != t:
        at = &at[0].bucket_next
    at[0] = t.bucket_next
    tracks_unlink(ts, t)
    ts.n -= 1
    free(t)


# hot
cdef inline void track_set(tracks_t* ts, track_t* t, i64 offset) noexcept nogil:
    """The tag goes on at offset from now on. Cost: 2 ns."""
    if t.offset == offset:
        return
    t.offset = offset
    if not t.is_dirty:
        t.is_dirty = True
        t.dirty_next = ts.dirty
        ts.dirty = t


cdef void tracks_free(tracks_t* ts) noexcept nogil:
    cdef track_t* t
    while ts.oldest != NULL:
        t = ts.oldest
        ts.oldest = t.newer
        if t.len:
            free(t)
        else:
            t.refs = 0
    free(ts.buckets)
    tracks_close(ts)


cdef void tracks_close(tracks_t* ts) noexcept nogil:
    """Let go of the descriptor; it is opened again when needed."""
    if ts.fd >= 0:
        c_close(ts.fd)
        ts.fd = -1


# ---- writing -------------------------------------------------------------------------------------

cdef inline u32 track_size(const track_t* t) noexcept nogil:
    """Bytes of its entry, 0 when nothing is stored."""
    return 9 + <u32>t.len if t.offset else 0


cdef u32 track_write(const track_t* t, u8* p) noexcept nogil:
    """Write its entry at p; returns its bytes."""
    p[0] = t.len
    memcpy(p + 1, t.tag, t.len)
    put_le64(p + 1 + t.len, <u64>t.offset)
    return 9 + <u32>t.len


cdef int tracks_open(store_t* st, tracks_t* ts) noexcept nogil:
    """0, or -1 with errno."""
    cdef char path[PATH_MAX_BYTES]
    if ts.fd >= 0:
        return 0
    offsets_path(st, path)
    ts.fd = file_open(st.loop, path, O_RDWR | O_CREAT)
    if ts.fd < 0 and errno == ENOENT:
        store_path(st, path)
        directory_make(st.loop, path)
        offsets_path(st, path)
        ts.fd = file_open(st.loop, path, O_RDWR | O_CREAT)
    return 0 if ts.fd >= 0 else -1


cdef int tracks_append(store_t* st, tracks_t* ts, u64 size) noexcept nogil:
    """Append the entries of all tags that have changed, `size` bytes in all. 0, or -1 with
    errno."""
    cdef char path[PATH_MAX_BYTES]
    cdef u8* buf
    cdef u64 n = 0
    cdef track_t* t = ts.dirty
    cdef int rc
    if tracks_open(st, ts):
        return -1
    buf = <u8*>malloc(size)
    if buf == NULL:
        return -1
    while t != NULL:
        if t.offset:
            n += track_write(t, buf + n)
        t = t.dirty_next
    offsets_path(st, path)
    rc = file_write(st.loop, path, CHANGE_PATCH, ts.fd, buf, n, <i64>ts.size)
    free(buf)
    if rc == 0:
        ts.size += n
    return rc


cdef u64 tracks_live(tracks_t* ts) noexcept nogil:
    """Bytes of the newest entries."""
    cdef track_t* t = ts.oldest
    cdef u64 n = 0
    while t != NULL:
        n += track_size(t)
        t = t.newer
    return n


cdef void tracks_trim(tracks_t* ts, u64 most) noexcept nogil:
    """Forget those committed longest ago until the entries are less than `most` bytes."""
    cdef u64 n = tracks_live(ts)
    cdef track_t* t = ts.oldest
    cdef track_t* newer
    while t != NULL and n >= most:
        newer = t.newer
        n -= track_size(t)
        tracks_forget(ts, t)
        t = newer


cdef void tracks_set_size(tracks_t* ts, u64 n) noexcept nogil:
    """The file holds the newest entries alone, n bytes: how far may it grow?"""
    ts.size = n
    ts.is_copying = ts.is_stale = False
    n *= OFFSETS_GROWTH
    ts.capacity = OFFSETS_LEAST if n < OFFSETS_LEAST else (OFFSETS_MOST if n > OFFSETS_MOST else n)


cdef u64 tracks_write(tracks_t* ts, u8* buf) noexcept nogil:
    """Write the newest entries, in the order of their commits, to a place of tracks_live bytes.
    Returns how many bytes they are."""
    cdef track_t* t = ts.oldest
    cdef u64 n = 0
    while t != NULL:
        if t.offset:
            n += track_write(t, buf + n)
        t = t.newer
    return n


cdef int tracks_rewrite(store_t* st, tracks_t* ts) noexcept nogil:
    """Write the newest entries to a file that then takes the place of the old one. Waits for the
    disk. Its name is its own: a thread may be at the other copy for as long as its disk takes. 0,
    or -1 with errno."""
    cdef char path[PATH_MAX_BYTES]
    cdef char temporary[PATH_MAX_BYTES + 9]
    cdef u8* buf
    cdef u64 n
    cdef int fd, rc = -1
    tracks_trim(ts, OFFSETS_MOST - OFFSETS_ENTRY_MAX)
    buf = <u8*>malloc(tracks_live(ts) + 1)
    if buf == NULL:
        return -1
    n = tracks_write(ts, buf)
    offsets_path(st, path)
    snprintf(temporary, sizeof(temporary), b"%s.tmp-loop", path)
    fd = file_open(st.loop, temporary, O_RDWR | O_CREAT | O_TRUNC)
    if fd >= 0:
        rc = file_write(st.loop, temporary, CHANGE_APPEND, fd, buf, n, 0)
        if rc == 0:
            rc = sync_data(fd)
        close_failed(fd)
    free(buf)
    if rc == 0:
        rc = file_rename(st.loop, temporary, path)
    if rc:
        return -1
    tracks_close(ts)
    tracks_set_size(ts, n)
    return 0


cdef inline bint tracks_is_due(const tracks_t* ts) noexcept nogil:
    """Whether the file should be rewritten, and nobody does."""
    return not ts.is_copying and (ts.is_stale or ts.size >= ts.capacity)


cdef int tracks_adopt(store_t* st, tracks_t* ts, const char* temporary, u64 n) noexcept nogil:
    """Add what was appended to the file since it was copied to the copy of n bytes, which then
    takes its place. Appended entries are never waited for, here as there. 0, or -1 with errno."""
    cdef char path[PATH_MAX_BYTES]
    cdef u8 piece[OFFSETS_PIECE]
    cdef u64 at = ts.copied, end = ts.size, to = n
    cdef bint is_stale = ts.is_stale
    cdef i64 got
    cdef int fd
    ts.is_copying = False
    fd = file_open(st.loop, temporary, O_RDWR)
    if fd < 0:
        return -1
    while at < end:
        got = -1
        if tracks_open(st, ts) == 0:
            got = pread(ts.fd, piece, OFFSETS_PIECE if end - at > OFFSETS_PIECE else end - at,
                        <i64>at)
        if got <= 0 or file_write(st.loop, temporary, CHANGE_APPEND, fd, piece, <u64>got,
                                  <i64>to):
            close_failed(fd)
            return -1
        at += <u64>got
        to += <u64>got
    c_close(fd)
    offsets_path(st, path)
    if file_rename(st.loop, temporary, path):
        return -1
    tracks_close(ts)
    tracks_set_size(ts, n)
    ts.size = to
    ts.is_stale = is_stale
    return 0


cdef int tracks_flush(queue_t* q) noexcept nogil:
    """Write what was acknowledged since the last flush. 0, or -1 with errno."""
    cdef store_t* st = q.store
    cdef tracks_t* ts = &q.stream.tracks
    cdef track_t* t = ts.dirty
    cdef track_t* following
    cdef u64 size = 0
    if t == NULL:
        return 0
    while t != NULL:
        size += track_size(t)
        tracks_unlink(ts, t)
        tracks_link(ts, t)
        t = t.dirty_next
    if size and (tracks_rewrite(st, ts) if ts.size + size >= OFFSETS_LIMIT
                 else tracks_append(st, ts, size)):
        return store_failed(st, FILE_OFFSETS, 0)
    t = ts.dirty
    ts.dirty = NULL
    while t != NULL:
        following = t.dirty_next
        t.is_dirty = False
        if t.offset == 0:
            tracks_forget(ts, t)
        t = following
    return 0


# ---- reading -------------------------------------------------------------------------------------

cdef i64 tracks_parse(tracks_t* ts, const u8* p, u64 n, u64* entries) noexcept nogil:
    """Take in the entries at p. What follows a zero, or is not whole, is none. How many bytes they
    are, or -1 out of memory."""
    cdef track_t* t
    cdef u64 at = 0
    while at < n and p[at] and at + 9 + p[at] <= n:
        t = tracks_get(ts, p + at + 1, p[at])
        if t == NULL:
            return -1
        t.offset = <i64>le64(p + at + 1 + p[at])
        tracks_unlink(ts, t)
        tracks_link(ts, t)
        at += 9 + <u64>p[at]
        entries[0] += 1
    return <i64>at


cdef class _TracksLoad:
    """Reads the file of a stream in steps: a piece of it in each, and then some of the tags.

    An offset behind the end is of messages that a crash has taken before they were on disk: those
    to come have to be read. `is_changed`: the file has to be written anew before it is added to,
    and before anybody is served. `notes`: lines for the log."""
    cdef queue_t* q             # which stays closed meanwhile: nobody else touches its tags
    cdef i64 first
    cdef u64 at                 # the next entry of the file
    cdef u64 entries
    cdef u64 kept
    cdef int fd
    cdef bint is_read
    cdef bint is_changed
    cdef list notes
    cdef str path

    def __cinit__(self):
        self.fd = -1
        self.notes = []

    def __dealloc__(self):
        if self.fd >= 0:
            c_close(self.fd)

    cdef bint begin(self, queue_t* q, dict entries, i64 first) except -1:
        """Open the file. Whether there is one. Raises OSError, ValueError."""
        self.q = q
        self.first = first
        self.path = f"{store_directory(q.store)}/{OFFSETS_FILE.decode()}"
        entry = entries.get(OFFSETS_FILE.decode())
        if entry is None:
            return False
        if not entry.is_file():
            raise ValueError(f"{self.path} is not a regular file")
        self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        return True

    cdef bint step(self) except -1:
        """Read a piece, or look at some tags. Whether there is more. Raises OSError, MemoryError.
        Cost: half a millisecond."""
        if not self.is_read:
            self.read()
            return True
        return self.look()

    cdef int read(self) except -1:
        cdef tracks_t* ts = &self.q.stream.tracks
        cdef bytes piece = os.pread(self.fd, OFFSETS_PIECE, self.at)
        cdef i64 n = tracks_parse(ts, <const u8*>PyBytes_AS_STRING(piece), <u64>len(piece),
                                  &self.entries)
        if n < 0:
            raise MemoryError()
        self.at += <u64>n
        if n and self.at < 4 * OFFSETS_MOST:
            return 0
        self.is_read = True
        # Zeros are room that nothing was written to; what is torn must not follow an entry.
        self.is_changed = (self.at >= OFFSETS_MOST - OFFSETS_ENTRY_MAX
                           or piece.count(0, n) != len(piece) - n
                           or len(piece) - n == OFFSETS_PIECE)
        tracks_set_size(ts, self.at)
        ts.next = ts.oldest     # from where on they are looked at
        return 0

    cdef bint look(self) except -1:
        cdef tracks_t* ts = &self.q.stream.tracks
        cdef track_t* t
        cdef u32 left = OFFSETS_LOOKED
        while ts.next != NULL and left:
            t = ts.next
            ts.next = t.newer
            left -= 1
            if t.offset < self.first:
                tracks_forget(ts, t)
                continue
            self.kept += 1
            if t.offset > self.q.stream.next_offset:
                self.set_back(t)
        if ts.next != NULL:
            return True
        ts.dropped = self.first
        self.is_changed = self.is_changed or self.kept != self.entries
        return False

    cdef int set_back(self, track_t* t) except -1:
        """It was told of messages that are lost."""
        if len(self.notes) < OFFSETS_NOTES:
            tag = PyBytes_FromStringAndSize(<char*>t.tag, t.len).decode("utf-8", "replace")
            self.notes.append(f"consumer {tag!r} was at offset {t.offset} and goes on at "
                              f"{self.q.stream.next_offset}: what it has read behind that is lost")
        elif len(self.notes) == OFFSETS_NOTES:
            self.notes.append("so do other consumers")
        t.offset = self.q.stream.next_offset
        self.is_changed = True
        return 0


cdef list tracks_load(queue_t* q, dict entries, i64 first):
    """Read the file, and write it anew unless it holds just what it should. Returns lines for the
    log. Raises OSError, ValueError, MemoryError."""
    cdef _TracksLoad load = _TracksLoad()
    if not load.begin(q, entries, first):
        return load.notes
    while load.step():
        pass
    if load.is_changed and tracks_rewrite(q.store, &q.stream.tracks):
        raise OSError(errno, os.strerror(errno), load.path)
    return load.notes
