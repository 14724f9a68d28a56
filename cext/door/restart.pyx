# Restart: reads the files of a closed queue again, a segment in each step, so that others are
# served meanwhile.
#
# The queue stays closed until the last step, and is empty and closed again when one fails. What it
# holds up to then nobody touches, as that of any closed queue; its deletion ends the restart.
# Called by lavinmq/vhost/queue_files.py, and by Queue.restart as a whole.


@cython.no_gc_clear
cdef class Restart:
    """See the stub. Args: `queue`, a closed one whose consumers have gone; `is_held`, whether it
    stays closed until open()."""
    cdef Queue queue
    cdef readonly list notes
    cdef bint is_held
    cdef bint is_begun
    cdef bint is_over
    cdef dict entries           # of the queue's directory
    cdef dict own               # of that of the level
    cdef u32 level              # the next one
    cdef store_t* st            # that is being loaded, NULL = none
    cdef u32 at                 # its next segment
    cdef u32 n_unread           # of a stream: its segments that are still to be read
    cdef bint is_numbered       # of a stream: they have been
    cdef _TracksLoad tracks      # of a stream: what its consumers have stored, None = not begun
    cdef bint has_tracks
    cdef u64 before             # messages of the levels before it

    def __cinit__(self, Queue queue not None, *, bint is_held=False):
        if queue.q.is_deleted or not queue.q.is_closed:
            raise ValueError("the queue is running")
        self.queue = queue
        self.notes = []
        self.is_held = is_held

    def __iter__(self):
        return self

    def __next__(self):
        if self.is_over:
            raise StopIteration
        if self.queue.q.is_deleted or not self.queue.q.is_closed:
            self.is_over = True
            raise ValueError("the queue has been deleted or restarted meanwhile")
        try:
            self.step()
        except BaseException:
            self.is_over = True
            queue_forget(self.queue.q)
            raise
        if self.is_over:
            raise StopIteration
        return None

    cdef int step(self) except -1:
        """Find the files of a level, or read one of its segments."""
        cdef queue_t* q = self.queue.q
        if not self.is_begun and q.n_orphans and q.loop.jobs != NULL:
            loop_step_job(q.loop)       # no channel has these: they come while it takes none
        elif not self.is_begun:
            self.begin()
        elif q.stream != NULL:
            self.stream_step()
        elif self.st != NULL and self.at < self.st.n_segs:
            load_segment(q, self.st, self.at, self.own, self.notes)
            self.at += 1
        elif self.st != NULL:
            load_end(q, self.st, self.before, self.own)
            self.st = NULL
        elif self.level < queue_levels(q):
            self.before = q.ready
            self.at = 0
            self.st = load_level(q, self.level, self.entries)
            self.level += 1
            if self.st != NULL:
                self.own = self.entries if q.levels == NULL else entries_of(self.st)
                load_find(self.st, self.own, self.notes)
                store_drop_window(self.st, &q.loop.pool)    # what goes meanwhile is missed
        else:
            self.end()
        return 0

    cdef int stream_step(self) except -1:
        """Read a segment, or number all of them, or write what one of them lacks, or read some of
        what consumers have stored."""
        cdef queue_t* q = self.queue.q
        if self.at < self.n_unread:
            stream_load_segment(q, q.store.segs[self.at], self.entries)
            self.at += 1
        elif not self.is_numbered:
            stream_number(q)
            self.is_numbered = True
            self.at = 0
            self.n_unread = 0
        elif self.at < q.store.n_segs:
            stream_end_segment(q, q.store.segs[self.at])
            self.at += 1
        elif self.tracks is None:
            stream_loaded(q, False, self.entries, self.notes)
            self.tracks = _TracksLoad()
            self.has_tracks = self.tracks.begin(q, self.entries, stream_first(q))
        elif not self.has_tracks or not self.tracks.step():
            self.notes += self.tracks.notes
            if (self.has_tracks and self.tracks.is_changed and not self.is_held
                    and tracks_rewrite(q.store, &q.stream.tracks)):
                raise OSError(errno, os.strerror(errno), self.tracks.path)
            stream_all_read(q)
            self.end()
        return 0

    cdef int begin(self) except -1:
        cdef queue_t* q = self.queue.q
        self.is_begun = True
        self.queue.leave_channels()
        queue_forget(q)
        self.queue.compaction = None
        self.entries = queue_entries(self.queue, None, self.notes)
        if q.stream != NULL:
            self.n_unread = stream_find(q, self.entries, self.notes)
            store_drop_window(q.store, &q.loop.pool)
        return 0

    cdef int end(self) except -1:
        """All is read: serve it."""
        cdef queue_t* q = self.queue.q
        cdef u32 i
        if q.stream == NULL:
            queue_loaded(q)
        for i in range(queue_levels(q)):
            if queue_level(q, i) != NULL and queue_level(q, i).n_segs:
                # It was closed before anybody knew that.
                queue_level(q, i).is_unsynced = queue_level(q, i).is_dir_unsynced = True
        self.is_over = True
        if not self.is_held:
            self.queue.open()
            queue_touch(q)              # somebody may have begun to consume meanwhile
            self.queue.loop.kick()
        return 0

    # ---- what consumers of a stream have stored, for a stream that is held

    def offsets(self) -> object:
        """What the file of stored offsets is to hold before the stream is opened; None: it does."""
        cdef tracks_t* ts
        if not (self.is_over and self.is_held and self.has_tracks and self.tracks.is_changed):
            return None
        ts = &self.queue.q.stream.tracks
        tracks_trim(ts, OFFSETS_MOST - OFFSETS_ENTRY_MAX)
        text = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>tracks_live(ts))
        tracks_write(ts, <u8*>PyBytes_AS_STRING(text))
        ts.copied = ts.size
        return text

    def take_offsets(self, u64 written) -> None:
        """A file `consumer_offsets.tmp` beside it holds them, on disk: it takes its place. Raises
        OSError."""
        cdef queue_t* q = self.queue.q
        if q.is_deleted or not q.is_closed:
            raise ValueError("the queue has been deleted or restarted meanwhile")
        raw = os.fsencode(f"{self.tracks.path}.tmp")
        if tracks_adopt(q.store, &q.stream.tracks, PyBytes_AS_STRING(raw), written):
            raise OSError(errno, os.strerror(errno), self.tracks.path)
