# Compaction: gives back the disk space of deleted messages in a segment that some message keeps.
#
# A run of deleted records becomes one filler: a record head at its beginning whose body is the rest
# of the run, and that body becomes a hole in the file. No message moves, so whoever knows where one
# is stays right, and any reader of the format skips the filler by its ack position.
#
# It goes in steps, each of which waits until the one before is on disk (decisions 0014 and 0035):
#
#   1. the deleted positions, the messages, and that meta.N is gone
#   2. the heads of the fillers; each lies in one sector, which a disk writes whole or not at all
#   3. the holes; and the new ack file, under another name
#   4. that name is changed
#
# A loss of power between any two calls leaves a segment that the next start reads as before
# (load.pyx drops positions that are no record's start, and counts anew). Nothing here takes longer
# than a few milliseconds at once. Called by the door. Source: docs/formats.md.

import functools

cdef enum:
    FILLER_LEAST = 16384        # bytes of a run that is worth a filler
    COMPACT_LEAST = 65536       # bytes of a segment that is worth a look
    COMPACT_LOOKS = 256         # records, positions or fillers between two looks at the clock
    COMPACT_TURN_NS = 1000000   # and what a turn may take
    PAGE = 4096

cdef struct filler_t:
    u32 start
    u32 end
    u32 swallowed               # records that it covers, without the first


cdef seg_t* store_compactable(const store_t* st) noexcept nogil:
    """A finished segment, half of which was deleted since it was looked at last; or NULL."""
    cdef seg_t* seg
    cdef u32 i
    if not st.is_durable:
        return NULL
    for i in range(st.n_segs):
        seg = st.segs[i]
        if (seg is not st.wseg and seg is not st.rseg and seg.acked < seg.count
                and not seg.n_pins and seg.size >= COMPACT_LEAST and not seg.damaged_at
                and seg.acked - seg.looked_acked >= (seg.count - seg.looked_acked + 1) // 2):
            return seg
    return NULL


cdef inline bint filler_fits(u32 pos) noexcept nogil:
    """Whether the head of a filler at pos lies in one sector."""
    return pos % SECTOR + FILLER_HEAD <= SECTOR


cdef int filler_write(store_t* st, u32 id, int fd, const filler_t* f) noexcept nogil:
    """Make one record of the bytes of a filler. 0, or -1 with errno."""
    cdef u8 head[FILLER_HEAD]
    memset(head, 0, FILLER_HEAD)
    head[0] = FILLER_MS
    put_le64(head + FILLER_HEAD - 8, f.end - f.start - FILLER_HEAD)
    cdef int rc = segment_write(st, b"msgs", id, CHANGE_PATCH, fd, head, FILLER_HEAD, f.start)
    segment_touched(st, b"msgs", id, CHANGE_PATCH, f.start, f.start + <i64>FILLER_HEAD)
    return rc


cdef int filler_punch(store_t* st, u32 id, int fd, const filler_t* f) noexcept nogil:
    """Make a hole of its body. 0, or -1 with errno."""
    cdef i64 hole = (<i64>f.start + FILLER_HEAD + PAGE - 1) // PAGE * PAGE
    cdef i64 hole_end = <i64>f.end // PAGE * PAGE
    if hole >= hole_end:
        return 0
    return segment_punch(st, id, fd, hole, hole_end)


# What it owns are plain bytes; freeing the descriptor must not wait for the garbage collector.
@cython.no_gc_clear
cdef class _Compaction:
    """One segment of a queue on its way. `begin` once; `done` is called when it is over, however it
    ends. Whatever fails ends it: the segment is as good as it was."""
    cdef Queue queue
    cdef object done
    cdef object step            # that a turn goes on with
    cdef u32 level
    cdef u32 seg_id
    cdef u32 size               # of the segment
    cdef int fd                 # msgs.N, -1 when closed
    cdef int acks_fd            # acks.N, as it is replaced
    cdef window_t window
    cdef u8* deleted            # a bit for each position
    cdef u32 n_acks             # positions of acks.N that were looked at
    cdef u32* kept              # deleted positions that stay; of fillers the first
    cdef u32 n_kept
    cdef u32 cap_kept
    cdef filler_t* fillers
    cdef u32 n_fillers
    cdef u32 cap_fillers
    cdef u32 n_done             # fillers, or positions, of this step
    cdef u32 pos                # how far the walk has come
    cdef filler_t run           # of deleted records, that the walk is in; start 0 = none
    cdef u32 run_kept           # n_kept, when its filler began
    cdef bint has_begun

    def __cinit__(self, Queue queue, u32 level, u32 seg_id, done):
        self.queue = queue
        self.level = level
        self.seg_id = seg_id
        self.done = done
        self.fd = self.acks_fd = -1
        memset(&self.window, 0, sizeof(window_t))
        self.window.fd = -1

    def __dealloc__(self):
        self.release()

    cdef void release(self):
        if self.fd >= 0:
            c_close(self.fd)
        if self.acks_fd >= 0:
            c_close(self.acks_fd)
        self.fd = self.acks_fd = -1
        window_drop(&self.window, &self.queue.loop.t.pool)
        free(self.deleted)
        free(self.kept)
        free(self.fillers)
        self.deleted = NULL
        self.kept = NULL
        self.fillers = NULL

    # ---- turns

    cdef store_t* store(self):
        return queue_level(self.queue.q, self.level)

    cdef bint is_wanted(self):
        """Whether the queue is still there, as it was loaded."""
        cdef queue_t* q = self.queue.q
        return self.queue.compaction is self and not q.is_deleted and not q.is_closed

    cdef seg_t* segment(self):
        """The segment, or NULL when it has gone."""
        cdef seg_t* seg = store_segment(self.store(), self.seg_id) if self.is_wanted() else NULL
        return seg if seg != NULL and not seg.damaged_at else NULL

    cdef str path(self, str kind):
        return f"{store_directory(self.store())}/{kind}.{self.seg_id:010d}"

    def begin(self) -> None:
        """Read what was deleted. Raises OSError."""
        cdef store_t* st = self.store()
        cdef seg_t* seg = store_segment(st, self.seg_id)
        seg.looked_acked = seg.acked
        if segment_flush_acks(st, seg, False):
            raise OSError(errno, os.strerror(errno), self.path("acks"))
        self.size = seg.size
        self.n_acks = seg.ack_size // 4
        self.cap_kept = self.n_acks
        self.deleted = <u8*>calloc(1, (<u64>self.size >> 3) + 1)
        self.kept = <u32*>malloc(<u64>self.cap_kept * 4 + 4)
        if self.deleted == NULL or self.kept == NULL:
            raise MemoryError()
        self.fd = segment_open(st, b"msgs", self.seg_id, O_RDWR)
        self.acks_fd = segment_open(st, b"acks", self.seg_id, O_RDONLY)
        if self.fd < 0 or self.acks_fd < 0:
            raise OSError(errno, os.strerror(errno), store_directory(st))
        self.pos = SEGMENT_HEADER
        self.has_begun = True
        self.queue.loop.n_compactions += 1
        self.go(self.read_acks)

    cdef void go(self, step):
        """Work on a step, a portion in each turn."""
        self.step = step
        self.n_done = 0
        self.queue.loop.events.call_soon(self.turn)

    def turn(self) -> None:
        """A portion of the present step, which says whether there is more. Called by the loop."""
        if self.segment() == NULL:
            self.drop()
            return
        try:
            if self.step():
                self.queue.loop.events.call_soon(self.turn)
        except (OSError, MemoryError):
            self.drop()

    def after_sync(self, list fds, step) -> None:
        """Take a step once these descriptors are on disk."""
        for fd in fds[1:]:
            self.queue.loop.sync_file(fd, lambda: None)
        self.queue.loop.sync_file(fds[0], functools.partial(self.go_on, step))

    def go_on(self, step) -> None:
        """Something is on disk. Called by the loop."""
        self.go(step)

    def drop(self) -> None:
        """End it here."""
        if self.is_wanted():
            try:
                unlink_file(self.queue.q.loop, self.path("tmp.acks"))
            except OSError:
                pass                # there is none; or the next start removes it
        self.end()

    cdef void end(self):
        done, self.done = self.done, None
        self.step = None
        if self.has_begun:
            self.has_begun = False
            self.queue.loop.n_compactions -= 1
        self.release()
        if self.queue.compaction is self:
            self.queue.compaction = None
        if done is not None:
            done()

    # ---- 1. what is to be done

    def read_acks(self) -> bool:
        """Note the positions of acks.N."""
        cdef u32 block[1024]
        cdef i64 ends_ns = clock_ns() + COMPACT_TURN_NS
        cdef i64 got
        cdef u32 i
        while self.n_done < self.n_acks:
            got = read_at(self.acks_fd, <u8*>block, sizeof(block), <i64>self.n_done * 4)
            if got < 4:
                raise OSError(errno if got < 0 else EIO, "", self.path("acks"))
            for i in range(<u32>(got // 4)):
                if block[i] < self.size:
                    self.deleted[block[i] >> 3] |= <u8>(1 << (block[i] & 7))
            self.n_done += <u32>(got // 4)
            if clock_ns() >= ends_ns:
                return True
        self.go(self.find_runs)
        return False

    def find_runs(self) -> bool:
        """Walk the segment: which runs of deleted records become fillers?"""
        cdef i64 ends_ns = clock_ns() + COMPACT_TURN_NS
        cdef u32 n = 0
        cdef store_t* st = self.store()
        cdef seg_t* seg = self.segment()
        cdef rec_t rec
        while self.pos < self.size:
            if store_read(st, &self.queue.loop.t.pool, &self.window, seg, self.pos, BLOCK_SIZE,
                          &rec) != 1:
                raise OSError(EIO, "", self.path("msgs"))
            if self.deleted[self.pos >> 3] >> (self.pos & 7) & 1:
                self.add_to_run(self.pos)
            else:
                self.end_run(self.pos)
            self.pos += rec.size
            n += 1
            if n % COMPACT_LOOKS == 0 and clock_ns() >= ends_ns:
                return True
        self.end_run(self.pos)
        window_drop(&self.window, &self.queue.loop.t.pool)
        if self.n_fillers == 0:
            self.end()
        elif seg.is_reserved:
            # The filling behind the data goes first: it follows from bytes that a head may replace.
            self.after_sync([self.fd], self.trim)
        else:
            self.go(self.secure)
        return False

    cdef int add_to_run(self, u32 pos) except -1:
        """The record at pos is deleted."""
        if self.n_kept == self.cap_kept:
            raise OSError(EIO, "", self.path("acks"))
        if self.run.start == 0 and filler_fits(pos):
            self.run.start = pos
            self.run.swallowed = 0
            self.run_kept = self.n_kept + 1
        elif self.run.start:
            self.run.swallowed += 1
        self.kept[self.n_kept] = pos
        self.n_kept += 1
        return 0

    cdef int end_run(self, u32 pos) except -1:
        """What stands at pos is not deleted."""
        cdef filler_t* grown
        if self.run.start and pos - self.run.start >= FILLER_LEAST and self.run.swallowed:
            if self.n_fillers == self.cap_fillers:
                grown = <filler_t*>realloc(
                    self.fillers, (<u64>self.cap_fillers * 2 + 16) * sizeof(filler_t))
                if grown == NULL:
                    raise MemoryError()
                self.fillers = grown
                self.cap_fillers = self.cap_fillers * 2 + 16
            self.run.end = pos
            self.fillers[self.n_fillers] = self.run
            self.n_fillers += 1
            self.n_kept = self.run_kept
        self.run.start = 0
        return 0

    # ---- 2. before anything is overwritten

    def trim(self) -> bool:
        """All data is on disk: cut the filling behind it."""
        cdef seg_t* seg = self.segment()
        if segment_resize(self.store(), b"msgs", self.seg_id, self.fd, self.size):
            raise OSError(errno, os.strerror(errno), self.path("msgs"))
        seg.is_reserved = False
        self.go(self.secure)
        return False

    def secure(self) -> bool:
        """Have on disk what was deleted, and that no meta file counts it: a start then looks at
        each record, and knows a filler by itself, should acks.N be lost."""
        try:
            unlink_file(self.queue.q.loop, self.path("meta"))
        except FileNotFoundError:
            pass
        directory = os.open(store_directory(self.store()), os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.after_sync([self.acks_fd, directory, self.fd], self.write_heads)
        finally:
            os.close(directory)
        return False

    def write_heads(self) -> bool:
        """Turn the runs into fillers, and count them so."""
        cdef i64 ends_ns = clock_ns() + COMPACT_TURN_NS
        cdef store_t* st = self.store()
        cdef seg_t* seg = self.segment()
        cdef filler_t* f
        while self.n_done < self.n_fillers:
            if seg is st.rseg:
                self.end()          # who reads it knows the records that are there
                return False
            f = &self.fillers[self.n_done]
            if filler_write(st, self.seg_id, self.fd, f):
                raise OSError(errno, os.strerror(errno), self.path("msgs"))
            seg.count -= f.swallowed
            seg.acked -= f.swallowed
            seg.looked_acked = seg.acked
            seg.written = seg.count
            seg.n_fillers += 1
            self.n_done += 1
            store_forget_window(st)
            if clock_ns() >= ends_ns:
                return True
        self.after_sync([self.fd], self.punch)
        return False

    # ---- 3. the fillers are on disk

    def punch(self) -> bool:
        """Give back their space."""
        cdef i64 ends_ns = clock_ns() + COMPACT_TURN_NS
        while self.n_done < self.n_fillers:
            if filler_punch(self.store(), self.seg_id, self.fd, &self.fillers[self.n_done]):
                break               # this file system keeps it
            self.n_done += 1
            if clock_ns() >= ends_ns:
                return True
        self.go(self.write_acks)
        return False

    def write_acks(self) -> bool:
        """Write the deleted positions that are left to a file beside."""
        path = self.path("tmp.acks")
        cdef int fd = open_file(self.queue.q.loop, path, O_RDWR | O_CREAT | O_TRUNC)
        try:
            write_file(self.queue.q.loop, path, CHANGE_APPEND, fd, PyBytes_FromStringAndSize(
                <char*>self.kept, <Py_ssize_t>self.n_kept * 4), 0)
            self.after_sync([fd], self.replace_acks)
        finally:
            os.close(fd)
        return False

    # ---- 4. and so are the positions

    def replace_acks(self) -> bool:
        """Let the new file be acks.N, once it has all that was deleted meanwhile, on disk."""
        cdef store_t* st = self.store()
        cdef seg_t* seg = self.segment()
        path = self.path("tmp.acks")
        if seg.ack_size // 4 > self.n_acks:
            self.write_late(path, seg.ack_size // 4 - self.n_acks)
            return False
        rename_file(self.queue.q.loop, path, self.path("acks"))
        if seg.ack_fd >= 0:
            c_close(seg.ack_fd)
            seg.ack_fd = -1
        seg.ack_size = self.n_kept * 4
        seg.looked_acked = seg.acked
        directory = os.open(store_directory(st), os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.after_sync([directory], self.finish)
        finally:
            os.close(directory)
        return False

    cdef write_late(self, str path, u32 n):
        """Add the next n positions of acks.N, which may be of a commit that was answered: they are
        on disk in one of the two files at any time. Comes to an end, as a message is deleted once.
        """
        cdef int fd = open_file(self.queue.q.loop, path, O_RDWR)
        try:
            late = os.pread(self.acks_fd, n * 4, self.n_acks * 4)
            if len(late) != n * 4:
                raise OSError(EIO, "", path)
            write_file(self.queue.q.loop, path, CHANGE_APPEND, fd, late, self.n_kept * 4)
            self.n_acks += n
            self.n_kept += n
            self.after_sync([fd], self.replace_acks)
        finally:
            c_close(fd)

    def finish(self) -> bool:
        """All is on disk."""
        self.end()
        return False
