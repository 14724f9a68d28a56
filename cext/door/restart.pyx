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
    cdef u32 level              # the next one
    cdef store_t* st            # that is being loaded, NULL = none
    cdef u32 at                 # its next segment
    cdef u32 n_unread           # of a stream: its segments that are still to be read
    cdef bint is_numbered       # of a stream: they have been
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
        if not self.is_begun:
            self.begin()
        elif q.stream != NULL:
            self.stream_step()
        elif self.st != NULL and self.at < self.st.n_segs:
            load_segment(q, self.st, self.at, self.notes)
            self.at += 1
        elif self.st != NULL:
            load_end(q, self.st, self.before)
            self.st = NULL
        elif self.level < queue_levels(q):
            self.before = q.ready
            self.at = 0
            self.st = load_level(q, self.level)
            self.level += 1
            if self.st != NULL:
                load_find(self.st, self.notes)
        else:
            self.end()
        return 0

    cdef int stream_step(self) except -1:
        """Read a segment, or number all of them, or write what one of them lacks."""
        cdef queue_t* q = self.queue.q
        if self.at < self.n_unread:
            stream_load_segment(q, q.store.segs[self.at])
            self.at += 1
        elif not self.is_numbered:
            stream_number(q)
            self.is_numbered = True
            self.at = 0
            self.n_unread = 0
        elif self.at < q.store.n_segs:
            stream_end_segment(q, q.store.segs[self.at])
            self.at += 1
        else:
            self.notes += stream_loaded(q, False)
            self.end()
        return 0

    cdef int begin(self) except -1:
        cdef queue_t* q = self.queue.q
        self.is_begun = True
        self.queue.leave_channels()
        queue_forget(q)
        self.queue.compaction = None
        if q.stream != NULL:
            self.n_unread = stream_find(q, self.notes)
        elif q.levels != NULL:
            self.notes += migrate_levels(self.queue)
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
