# Queue: the class through which Python owns a queue of the message path.
#
# Removing one: detach its consumers, unbind it everywhere (routes made before become void by the
# exchanges' versions), then delete() here; lavinmq/vhost/vhost.py does it in that order.
# Longer than 500 lines: a class of Cython stands in one file.
import heapq

# By file_kind.
cdef tuple FILE_NAMES = ("", "msgs", "acks", "consumer_offsets")


cdef u8* short_string(bytes text) except NULL:
    """A copy of at most 255 bytes, its length first."""
    cdef u8* copy
    if len(text) > 255:
        raise ValueError("longer than 255 bytes")
    copy = <u8*>malloc(len(text) + 1)
    if copy == NULL:
        raise MemoryError()
    copy[0] = <u8>len(text)
    memcpy(copy + 1, PyBytes_AS_STRING(text), len(text))
    return copy


# Freeing one needs its Loop: the garbage collector must not take that away first.
@cython.no_gc_clear
cdef class Queue:
    """One queue: a store and its counters.

    Args: `loop`, its Loop; `directory`, absolute path of the queue's files (made when first
    needed); `segment_size` in bytes; `durable`, whether messages are written through at the end of
    each tick; `name`, for its dead letters, which find their exchange in `vhost`; `max_priority`,
    the highest level of a priority queue, -1 for any other; `is_stream`, whether consuming leaves
    messages where they are.
    """
    cdef queue_t* q
    cdef Loop loop
    cdef Vhost vhost
    cdef readonly DedupCache dedup
    cdef Sample sample          # of whoever follows it, or None
    cdef object compaction      # the _Compaction of a segment, or None

    def __cinit__(self, Loop loop, str directory, u32 segment_size, bint durable, *,
                  bytes name=b"", Vhost vhost=None, int max_priority=-1, bint is_stream=False):
        cdef bytes path = PyUnicode_EncodeFSDefault(directory), dirname, basename
        cdef const u8* own_name = NULL
        if len(path) > 4000:
            raise ValueError("directory path is too long")
        if len(name) > 255:
            raise ValueError("longer than 255 bytes")
        if vhost is not None:
            own_name = <const u8*>PyBytes_AS_STRING(name)
        dirname, _, basename = path.rpartition(b"/")
        if max_priority >= 0:
            basename = b"prio.000"
        self.loop = loop
        self.vhost = vhost
        dirname = loop.dirnames.setdefault(dirname, dirname)
        self.q = queue_new(&loop.t, segment_size, durable, PyBytes_AS_STRING(dirname),
                           PyBytes_AS_STRING(basename), own_name, <u32>len(name))
        if self.q == NULL:
            raise MemoryError()
        loop.t.n_stores += 1
        if vhost is not None:
            self.q.vhost = &vhost.t
        if (max_priority >= 0 or is_stream) and queue_own_store(self.q) == NULL:
            raise MemoryError()
        if max_priority >= 0:
            self.q.levels = levels_new(<u32>max_priority + 1, path)
            if self.q.levels == NULL:
                raise MemoryError()
            self.q.store.dirname = self.q.levels.dirname
            self.q.levels.stores[0] = self.q.store
            self.q.store.is_nested = self.q.is_special = True
        if is_stream:
            self.q.stream = stream_new(segment_size)
            if self.q.stream == NULL:
                raise MemoryError()
            self.q.store.is_stream = self.q.is_special = True

    def __dealloc__(self):
        if self.q != NULL:
            self.q.loop.n_stores -= 1
            if not self.q.is_deleted:
                self.q.is_deleted = True
                self.q.dedup = NULL
                self.q.sample = NULL
                if self.q.history != NULL:
                    self.q.history.sample = NULL
                queue_unstick(self.q)
                queue_release(self.q)
            queue_unref(self.q)

    @property
    def is_followed(self) -> bool:
        """Whether `follow` has given it a sample."""
        return self.sample is not None

    def follow(self, Sample sample or None) -> None:
        """Have messages that arrive pass a sample, as long as it wants any; None ends that."""
        if self.sample is not None:
            self.sample.leave()
        self.sample = sample
        if sample is not None:
            sample.t.queue = self.q
            sample.t.closed_at = self.q.n_published
            sample.followed = self

    def set_dedup(self, DedupCache cache) -> None:
        """Drop duplicates from now on."""
        self.dedup = cache
        cache.d.queue = self.q
        self.q.dedup = &cache.d
        self.q.is_special = True

    def set_features(self, *, u64 max_length=NO_LIMIT, u64 max_bytes=NO_LIMIT,
                     int overflow=DROP_HEAD, i64 ttl_ms=-1, i64 delivery_limit=-1,
                     bytes target=None, bytes target_key=None) -> None:
        """Replace what the queue does with messages beyond handing them out in order, and hold it
        to that at once.

        Args: `max_length` in ready messages, `max_bytes` in bytes of their records; `overflow`, one
        of DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX; `ttl_ms`, -1 = none; `delivery_limit`, -1
        = none; `target`, the exchange of dead letters, `target_key` their routing key."""
        cdef queue_t* q = self.q
        cdef features_t* features = NULL
        cdef u32 i
        if q.is_deleted:
            return
        if (max_length != NO_LIMIT or max_bytes != NO_LIMIT or ttl_ms >= 0 or delivery_limit >= 0
                or target is not None or target_key is not None):
            features = <features_t*>calloc(1, sizeof(features_t))
            if features == NULL:
                raise MemoryError()
            features.max_length = max_length
            features.max_bytes = max_bytes
            features.ttl_ms = ttl_ms
            features.delivery_limit = delivery_limit
            features.overflow = <u8>overflow
            if target is not None:
                features.target = short_string(target)
            if target_key is not None:
                features.target_key = short_string(target_key)
        if q.features != NULL and q.features.delivery_limit >= 0 and delivery_limit < 0:
            for i in range(queue_levels(q)):
                if queue_level(q, i) != NULL and queue_level(q, i).counts.cap:
                    store_drop_counts(queue_level(q, i))
        features_free(q.features)
        q.features = features
        queue_note_special(q)
        q.may_bury = q.may_bury or target is not None
        if ttl_ms >= 0:
            queue_may_expire(q)
        if q.may_expire and q.ready:
            queue_set_due(q, 0)
        if features != NULL and q.ready:
            queue_want_limits(q)
            queue_touch(q)
            with nogil:
                loop_enforce(q.loop)
        self.loop.kick()

    def set_stream_limits(self, *, u64 max_length=NO_LIMIT, u64 max_bytes=NO_LIMIT,
                          i64 max_age_ms=-1) -> None:
        """Replace what a stream keeps, and begin to remove what is beyond it.

        Args: `max_length` in messages, `max_bytes` in bytes of their records, `max_age_ms`, -1 =
        none. Whole segments go, the newest always stays."""
        if self.q.stream == NULL:
            raise TypeError("no stream")
        loop_clock(self.q.loop)
        with nogil:
            stream_set_limits(self.q, max_length, max_bytes, max_age_ms)
        self.loop.kick()

    @property
    def first_offset(self) -> int:
        """Of a stream: the lowest offset that can be read; when it is empty that of the next
        message."""
        return stream_first(self.q) if self.q.stream != NULL else 0

    @property
    def next_offset(self) -> int:
        """Of a stream: the offset of the next message."""
        return self.q.stream.next_offset if self.q.stream != NULL else 0

    @property
    def damaged_offsets(self) -> tuple:
        """Of a stream: the offset behind the first damage that the load met in a segment that it
        had to count, and the offset from which on others may be new for that; (0, 0): none."""
        if self.q.stream == NULL:
            return 0, 0
        return self.q.stream.damaged_offset, self.q.stream.changed_offset

    @property
    def synced(self) -> tuple:
        """Of a stream: (offset, segment, position) behind the last message that is on disk, or
        written when nothing waits for the disk; what planning goes by."""
        cdef reach_t reach
        if self.q.stream == NULL:
            return 0, 0, 0
        reach = stream_synced(self.q)
        return reach.offset, reach.seg, reach.pos

    def ask_sync(self, callback) -> bool:
        """Of a stream: have what it holds brought to the disk, or a part of it when that is much,
        and call `callback()` then. False when all is there, or it cannot be written now.

        Raises OSError when a file cannot be opened."""
        cdef queue_t* q = self.q
        if q.stream == NULL or q.is_deleted or q.is_closed or self.loop.is_over:
            return False
        if not q.is_stuck and store_flush(q.store):
            queue_failed(q)
        if q.is_closed or stream_synced(q).offset >= stream_written(q):
            return False
        if stream_hand_over(q):
            raise os_error(q.store, "msgs", q.stream.unsynced_seg)
        self.loop.waiting.append(callback)
        self.loop.kick()
        return True

    @property
    def epochs(self) -> list:
        """Of a stream: (number, first offset) of the parts of its life, the last one is now."""
        if self.q.stream == NULL:
            return []
        return [(self.q.stream.epochs[i].number, self.q.stream.epochs[i].first_offset)
                for i in range(self.q.stream.n_epochs)]

    @epochs.setter
    def epochs(self, list value) -> None:
        if self.q.stream == NULL:
            raise TypeError("no stream")
        stream_set_epochs(self.q, value)

    @property
    def n_offsets(self) -> int:
        """Of a stream: how many stored offsets there are at most."""
        return self.q.stream.tracks.n if self.q.stream != NULL else 0

    def stored_offset(self, bytes tag not None) -> int:
        """Of a stream: where the consumer of a tag goes on reading, 0 = nothing is stored."""
        cdef const track_t* t = NULL
        if self.q.stream != NULL:
            t = tracks_find(&self.q.stream.tracks, <const u8*>PyBytes_AS_STRING(tag),
                            <u32>len(tag))
        return t.offset if t != NULL else 0

    def newest_offsets(self, u32 n) -> list:
        """Of a stream: the tags of n stored offsets at most, the newest commit comes first."""
        cdef track_t* t = self.q.stream.tracks.newest if self.q.stream != NULL else NULL
        found = []
        while t != NULL and n:
            if t.offset:
                found.append(PyBytes_FromStringAndSize(<char*>t.tag, t.len))
            n -= 1
            t = t.older
        return found

    @property
    def created(self) -> str:
        """Of a stream: what tells it from others that have its name, empty when that is not
        known. At most 47 bytes of ASCII."""
        return self.q.stream.created.decode("ascii") if self.q.stream != NULL else ""

    @created.setter
    def created(self, str value) -> None:
        stream_set_created(self.q, value)

    @property
    def span(self) -> tuple:
        """Of a stream: how many segments there are, when the oldest message was stored, and the
        latest time of one in the newest segment that has any; Unix ms, 0 when it is empty."""
        cdef const store_t* st = self.q.store
        cdef u32 first = 0, last = st.n_segs
        while first < st.n_segs and st.segs[first].count == 0:
            first += 1
        while last and st.segs[last - 1].count == 0:
            last -= 1
        if self.q.stream == NULL or last == 0:
            return st.n_segs, 0, 0
        return st.n_segs, st.segs[first].first_ms, st.segs[last - 1].last_ms

    def segments(self, u32 after=0, u32 most=<u32>-1) -> list:
        """Of a stream: (id, messages, bytes, first offset, first time, last time) of up to `most`
        segments with an id above `after`; times in Unix milliseconds, 0 when it is empty. The last
        one is written to."""
        cdef store_t* st = self.q.store
        cdef u32 begin = store_index(st, after + 1), end
        if self.q.stream == NULL:
            return []
        end = st.n_segs if most > st.n_segs - begin else begin + most
        return [(st.segs[i].id, st.segs[i].count, st.segs[i].size,
                 segment_first(self.q, st.segs[i]),
                 st.segs[i].first_ms, st.segs[i].last_ms)
                for i in range(begin, end)]

    def offset_at(self, i64 at_ms, i64 offset=0) -> tuple:
        """Of a stream: (offset, True) of the first message stored then (Unix ms) or later, or of
        the next one when there is none; (offset, False) when others have to have their turn before
        the search goes on: with that offset. Raises OSError."""
        cdef reader_t r
        cdef rec_t rec
        cdef i64 worked = FIRST_TURN
        cdef int rc
        if self.q.stream == NULL or self.q.is_deleted or self.q.is_closed:
            return 0, True
        memset(&r, 0, sizeof(reader_t))
        r.window.fd = -1
        with nogil:
            if offset:
                reader_go_to_offset(self.q, &r, offset)
                r.from_ms = at_ms
            else:
                reader_go_to_time(self.q, &r, at_ms)
            rc = reader_peek(self.q, &r, BLOCK_SIZE, &worked, &rec)
            window_drop(&r.window, &self.q.loop.pool)
        if rc == READ_FAILED:
            raise os_error(self.q.store, "msgs", r.seg.id)
        return r.offset, rc != READ_TIRED

    def store_offset(self, bytes tag, i64 offset) -> bool:
        """Of a stream: have a consumer tag go on reading at an offset; 0: forget it. False when a
        consumer of that tag is there, whose acknowledgements count.

        Written in the next tick, forgotten on disk when the file is written anew
        (`is_offsets_due`)."""
        cdef tracks_t* ts
        cdef track_t* t
        if self.q.stream == NULL or self.q.is_deleted or self.q.is_closed:
            raise ValueError("no stream, or it is closed")
        if not 0 < len(tag) < 256:
            raise ValueError("a tag has 1 to 255 bytes")
        ts = &self.q.stream.tracks
        t = tracks_find(ts, <const u8*>PyBytes_AS_STRING(tag), <u32>len(tag))
        if t != NULL and t.refs:
            return False
        if offset:
            t = tracks_get(ts, <const u8*>PyBytes_AS_STRING(tag), <u32>len(tag))
            if t == NULL:
                raise MemoryError()
            track_set(ts, t, offset)
            queue_touch(self.q)
            self.loop.kick()
        elif t != NULL:
            tracks_forget(ts, t)
            ts.is_stale = True
        return True

    @property
    def is_offsets_due(self) -> bool:
        """Of a stream: whether the file of its offsets should be written anew, and nobody does."""
        return (self.q.stream != NULL and not self.q.is_deleted and not self.q.is_closed
                and tracks_is_due(&self.q.stream.tracks))

    def begin_offsets(self) -> bytes:
        """The newest offsets, as they stand in the file; to be written to `consumer_offsets.tmp`
        beside it, synced, and handed over by `end_offsets`. Only when `is_offsets_due`."""
        cdef tracks_t* ts = &self.q.stream.tracks
        if not self.is_offsets_due:
            raise ValueError("the offsets are not due")
        tracks_trim(ts, OFFSETS_MOST - OFFSETS_ENTRY_MAX)
        text = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>tracks_live(ts))
        tracks_write(ts, <u8*>PyBytes_AS_STRING(text))
        ts.copied = ts.size
        ts.is_copying = True
        ts.is_stale = False
        return text

    def end_offsets(self, i64 written) -> None:
        """The file of so many bytes is on disk: it takes the place of the old one, with what has
        changed since. Negative: it could not be written. Raises OSError."""
        cdef tracks_t* ts
        cdef int rc
        if self.q.stream == NULL or self.q.is_deleted or self.q.is_closed:
            return
        ts = &self.q.stream.tracks
        if not ts.is_copying:
            return              # it was loaded again, or rewritten, meanwhile
        if written < 0:
            ts.is_copying = False
            ts.is_stale = True
            return
        path = f"{store_directory(self.q.store)}/{OFFSETS_FILE.decode()}.tmp"
        raw = os.fsencode(path)
        cdef const char* temporary = PyBytes_AS_STRING(raw)
        with nogil:
            rc = tracks_adopt(self.q.store, ts, temporary, <u64>written)
        if rc:
            ts.is_stale = True
            raise OSError(errno, os.strerror(errno), path)

    def finish_segments(self) -> bool:
        """Of a stream: begin to cut the filling of finished segments, so that the next start need
        not look at each record; whether there were any. The rest happens after a sync."""
        cdef store_t* st = self.q.store
        cdef u32 i, n = 0
        cdef int fd
        if self.q.stream == NULL or self.q.is_deleted or self.q.is_closed:
            return False
        for i in range(st.n_segs):
            if n == FINISH_SEGMENTS:
                break
            if not st.segs[i].is_reserved or st.segs[i] is st.wseg:
                continue
            fd = segment_open(st, b"msgs", st.segs[i].id, O_RDWR)
            if fd < 0:
                break
            n += 1
            try:
                self.loop.sync_file(fd, functools.partial(self.end_segment, st.segs[i].id))
            finally:
                c_close(fd)
        return n > 0

    def end_segment(self, u32 seg_id) -> None:
        """A finished segment is on disk: cut its filling. What fails is tried again later."""
        cdef store_t* st = self.q.store
        cdef seg_t* seg
        if self.q.is_deleted or self.q.is_closed:
            return
        seg = store_segment(st, seg_id)
        if seg != NULL and seg is not st.wseg and seg.is_reserved:
            segment_cut(st, seg)

    def load(self, dict entries=None, *, bint is_synced=False, bint is_held=False) -> list:
        """Read the segments found in the directory; returns a line for each thing put right.

        Args: `entries` of the directory, if somebody has looked; of a stream: `is_synced`, whether
        an orderly stop has brought the files to the disk; `is_held`, whether it stays closed until
        open().
        Raises OSError, or ValueError naming the file when the store cannot be read (wrong schema
        version); the queue is then closed and its files are untouched: publishes to it are refused.
        Source: docs/formats.md."""
        queue_shut(self.q, True)
        self.compaction = None
        try:
            notes = []
            entries = queue_entries(self, entries, notes)
            if self.q.stream != NULL:
                notes += stream_load(self.q, entries, is_synced)
            else:
                notes += queue_load(self.q, entries)
        except BaseException:
            queue_forget(self.q)
            raise
        if not is_held:
            self.open()
        return notes

    def forget(self) -> None:
        """Let go of what was loaded, of a queue that is not served: files stay."""
        if not self.q.is_deleted:
            self.compaction = None
            queue_shut(self.q, True)
            queue_forget(self.q)

    def open(self) -> None:
        """Serve what was loaded."""
        if not self.q.is_deleted:
            queue_shut(self.q, False)
            queue_begin(self.q)
            if self.q.stream != NULL:
                stream_look(self.q)     # nobody looks at a closed one
            if self.q.store.n_segs:
                queue_touch(self.q)     # what was open for the load may be closed
            self.loop.kick()

    def restart(self, *, bint is_held=False) -> list:
        """Read the files of a closed queue again. Its consumers must have gone; acks of what it had
        delivered do nothing any more, since those messages are ready again.

        Returns and raises as load(), and ValueError when the queue is not closed."""
        restart = Restart(self, is_held=is_held)
        for _ in restart:
            pass
        return restart.notes

    cdef int leave_channels(self) except -1:
        """Deliveries of it become those of a queue that is gone."""
        cdef queue_t* ghost = <queue_t*>calloc(1, sizeof(queue_t))
        if ghost == NULL:
            raise MemoryError()
        ghost.store = <store_t*>calloc(1, sizeof(store_t))
        if ghost.store == NULL:
            free(ghost)
            raise MemoryError()
        ghost.is_store_owner = True
        ghost.loop = self.q.loop
        ghost.is_deleted = True
        ghost.refs = 1
        for link in self.loop.links:
            (<Link>link).leave_queue(self.q, ghost)
        for local in self.loop.locals:
            channel_leave_queue((<LocalChannel>local).c, self.q, ghost)
        queue_unref(ghost)
        return 0

    def take_damage(self) -> list:
        """(path, position, end) of damages found since the last call."""
        cdef store_t* st
        cdef u32 i, level
        found = []
        for level in range(queue_levels(self.q)):
            st = queue_level(self.q, level)
            if st == NULL or st.n_gaps == 0:
                continue
            directory = store_directory(st)
            found += [(f"{directory}/msgs.{st.gaps[i].seg:010d}", st.gaps[i].pos, st.gaps[i].end)
                      for i in range(st.n_gaps)]
            st.n_gaps = 0
        return found

    def close(self) -> None:
        """Write everything out and let go of files and memory.
        Deliveries still unacked stay messages."""
        cdef store_t* st
        cdef u32 i
        if self.q.is_deleted:
            return
        if self.compaction is not None:
            self.compaction.drop()
        if self.q.n_orphans:
            queue_await_orphans(self.q)
        self.q.is_deleted = True
        failed = None
        for i in range(queue_levels(self.q)):
            st = queue_level(self.q, i)
            if st == NULL or st.is_vacant or not st.is_durable or self.q.is_closed:
                continue
            if store_close(st) or (st.wfd >= 0 and sync_data(st.wfd)) or (
                    st.is_stream and (tracks_flush(self.q) or stream_sync_files(self.q))):
                failed = OSError(errno, os.strerror(errno), store_directory(st))
        queue_unstick(self.q)
        queue_release(self.q)
        if failed is not None:
            raise failed

    @property
    def directory(self) -> str:
        """The path of its files."""
        return queue_directory(self.q)

    @property
    def n_segments(self) -> int:
        """Segments of all its stores, each of which has up to three files."""
        return sum(queue_level(self.q, i).n_segs for i in range(queue_levels(self.q))
                   if queue_level(self.q, i) != NULL)

    def delete(self) -> bool:
        """Forget all messages and let go of files and memory; the caller removes the directory.

        Returns whether there can be files in it."""
        cdef store_t* st = self.q.store
        cdef bint had_files
        if self.q.is_deleted:
            return True
        had_files = (st.is_durable or self.q.levels != NULL or st.n_segs > 1
                     or st.flushed > SEGMENT_HEADER or st.wfd >= 0)
        self.q.is_deleted = True
        queue_forget_owed(self.q)
        self.q.ready = self.q.ready_bytes = 0
        queue_unstick(self.q)
        queue_detach_large(self.q)
        queue_release(self.q)
        self.loop.kick()
        return had_files

    def purge(self) -> int:
        """Delete the ready messages in one go; returns how many there were. Purge does the same
        while others are served."""
        purge = Purge(self)
        for _ in purge:
            pass
        return purge.purged

    @property
    def ready(self) -> int:
        """Messages that are ready, or `parked`, or large and on their way to other queues."""
        return self.q.ready + queue_kept(self.q)

    @property
    def ready_bytes(self) -> int:
        return self.q.ready_bytes + (self.q.moves.parked_bytes if self.q.moves != NULL else 0)

    @property
    def parked(self) -> int:
        """Messages that are to go to other queues, one of which could not be written."""
        return queue_parked(self.q)

    @property
    def refuser(self) -> bytes:
        """The name of a queue that has not taken what is parked here; empty when there is none."""
        cdef const moves_t* moves = self.q.moves
        cdef u32 i
        for i in range(moves.parked_end if moves != NULL and moves.try_at == 0 else 0):
            if moves.parked[i].refuser != NULL and moves.parked[i].refuser.name != NULL:
                name = moves.parked[i].refuser.name
                return PyBytes_FromStringAndSize(<char*>name + 1, name[0])
        return b""

    @property
    def returned(self) -> int:
        """Messages since start that a `Move` had moved, and that are ready again, because the
        other queue could not be written."""
        return self.q.moves.n_returned if self.q.moves != NULL else 0

    @property
    def unacked(self) -> int:
        return self.q.unacked

    @property
    def unacked_bytes(self) -> int:
        return self.q.unacked_bytes

    @property
    def consumers(self) -> int:
        return self.q.n_consumers

    @property
    def lost(self) -> int:
        """Records that could not be read and were given up."""
        return sum(queue_level(self.q, i).lost for i in range(queue_levels(self.q))
                   if queue_level(self.q, i) != NULL)

    @property
    def read_error(self) -> int:
        """errno of the last read that failed, 0 = none. The message stays; it is tried again."""
        return max(queue_level(self.q, i).error for i in range(queue_levels(self.q))
                   if queue_level(self.q, i) != NULL)

    @property
    def write_error(self) -> int:
        """errno of the last write, 0 = it went well."""
        return self.q.store.write_error

    @property
    def failed_file(self) -> str:
        """Path of the file that the last failed write was for; empty when there was none."""
        cdef const store_t* st
        cdef u32 i
        for i in range(queue_levels(self.q)):
            st = queue_level(self.q, i)
            if st != NULL and st.failed_kind and st.basename != NULL:
                path = f"{store_directory(st)}/{FILE_NAMES[st.failed_kind]}"
                return path if st.failed_seg == 0 else f"{path}.{st.failed_seg:010d}"
        return ""

    @property
    def is_stuck(self) -> bool:
        """The disk has no room for it: its messages wait in memory."""
        return self.q.is_stuck

    @property
    def is_closed(self) -> bool:
        """The store could not be read or written: publishes are refused, gets are empty."""
        return self.q.is_closed

    @property
    def is_paused(self) -> bool:
        """Nothing is delivered and gets are empty, until an operator resumes it."""
        return self.q.is_paused

    @is_paused.setter
    def is_paused(self, bint value) -> None:
        self.q.is_paused = value
        if not value and not self.loop.t.is_reading:
            loop_clock(&self.loop.t)        # time may have passed: nobody has sent anything
            if self.q.stream != NULL:
                stream_wake(self.q.stream)
            queue_touch(self.q)
            self.loop.kick()

    @property
    def consumer_timeout_ms(self) -> int:
        """How long a delivery may stay unacked before its channel is closed, 0 = for ever."""
        return self.q.timeout_ms

    @consumer_timeout_ms.setter
    def consumer_timeout_ms(self, u64 value) -> None:
        cdef loop_t* loop = &self.loop.t
        self.q.timeout_ms = value
        if value and (loop.shortest_timeout_ms == 0 or value < loop.shortest_timeout_ms):
            loop.shortest_timeout_ms = value

    @property
    def missed(self) -> int:
        """Publishes while it was closed, of which nobody was told."""
        return self.q.n_missed

    def take_missed(self) -> int:
        """`missed`, which begins anew."""
        cdef u64 n = self.q.n_missed
        self.q.n_missed = 0
        return n

    def take_broken(self) -> bool:
        """Whether a write has closed it since the last call."""
        cdef bint was = self.q.is_broken
        self.q.is_broken = False
        return was

    def compact(self, done=None) -> bool:
        """Begin to give back the disk space of deleted messages in a segment that others keep;
        whether there was such a segment, and holes may be made now. The rest happens in portions
        and after syncs; then, or when it cannot go on, `done()` is called."""
        cdef store_t* st
        cdef seg_t* seg
        cdef u32 i
        if (self.q.is_deleted or self.q.is_closed or self.q.is_stuck
                or self.compaction is not None or self.loop.t.n_snapshots):
            return False
        for i in range(queue_levels(self.q)):
            st = queue_level(self.q, i)
            seg = store_compactable(st) if st != NULL else NULL
            if seg == NULL:
                continue
            self.compaction = _Compaction(self, i, seg.id, done)
            try:
                self.compaction.begin()
            except (OSError, MemoryError):
                self.compaction = None
                return False
            return True
        return False

    def reach(self) -> bool:
        """Go to the next message, past what is deleted in front of it, for as long as others can
        wait; False when it takes another turn."""
        cdef queue_t* q = self.q
        cdef rec_t rec
        cdef int rc
        if (q.ready == 0 or q.stream != NULL or q.releases != NULL or q.is_deleted
                or q.is_closed):
            return True
        loop_clock(q.loop)
        self.loop.open_portion()
        with nogil:
            rc = queue_peek(q, &rec)
        self.loop.kick()
        return rc != PEEK_LATER

    def release_some(self) -> bool:
        """Release waiting messages of a delayed exchange's queue now, whenever they are due, for
        as long as others can wait; whether to go on. For want of memory or descriptors some may
        stay."""
        cdef u32 before = self.q.store.n_dues
        if self.q.releases == NULL or self.q.is_closed or before == 0:
            return False
        with nogil:
            delayed_release(self.q, NEVER - 1)
            loop_enforce(self.q.loop)
        self.loop.kick()
        return 0 < self.q.store.n_dues < before

    def pending(self, u32 n) -> list:
        """(Unix ms, routing key, size) of the n messages of a delayed exchange's queue that are
        released next, the first one first. Of the heap of dues it looks at what it needs."""
        cdef store_t* st = self.q.store
        cdef seg_t* seg
        cdef rec_t rec
        cdef u64 child
        cdef u64 i = 0
        found = []
        # Those that may come next: the children of what has been taken.
        nearest = [(st.dues[0].at_ms, st.dues[0].seg, st.dues[0].pos, 0)] if st.n_dues else []
        while nearest and n:
            at_ms, seg_id, pos, i = heapq.heappop(nearest)
            n -= 1
            for child in range(2 * i + 1, min(2 * i + 3, <u64>st.n_dues)):
                heapq.heappush(nearest, (st.dues[child].at_ms, st.dues[child].seg,
                                         st.dues[child].pos, child))
            seg = store_segment(st, seg_id)
            if seg != NULL and store_read(st, &self.q.loop.pool, store_window(st), seg, pos, 4096,
                                          &rec) == 1:
                found.append((at_ms, PyBytes_FromStringAndSize(<char*>rec.names + rec.names[0] + 2,
                                                               rec.names[rec.names[0] + 1]),
                              rec.size))
        return found

    def counters(self) -> dict:
        """Totals since start, by name."""
        cdef queue_t* q = self.q
        return {
            "publish": q.n_published, "deliver": q.n_delivered,
            "deliver_no_ack": q.n_delivered_no_ack, "get": q.n_get, "get_no_ack": q.n_get_no_ack,
            "deliver_get": q.n_delivered + q.n_delivered_no_ack + q.n_get + q.n_get_no_ack,
            "ack": q.n_acked, "redeliver": q.n_redelivered, "reject": q.n_rejected,
            "dedup": q.dedup.n_refused if q.dedup != NULL else 0,
        }


UNLIMITED = NO_LIMIT
OVERFLOW = {"drop-head": DROP_HEAD, "reject-publish": REJECT_PUBLISH,
            "reject-publish-dlx": REJECT_PUBLISH_DLX}
