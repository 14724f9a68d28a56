# Stored offsets: where all consumers of a stream go on reading, some at a time.
#
# A mark in the order of commits says how far that has come, while others commit and forget: an
# entry of nobody, without a tag, so that it is found by none and written to no file. An offset that
# is committed meanwhile may be told twice, the later is the right one.
# Called by lavinmq/http/api/streams.py, on the loop's thread.

cdef enum:
    OFFSETS_TOLD = 512          # entries that are gone over at once


cdef void tracks_enter(tracks_t* ts, track_t* mark) noexcept nogil:
    """Put a mark in front of the oldest commit."""
    mark.refs = 1
    mark.newer = ts.oldest
    if ts.oldest != NULL:
        ts.oldest.older = mark
    else:
        ts.newest = mark
    ts.oldest = mark


cdef void tracks_pass(tracks_t* ts, track_t* mark) noexcept nogil:
    """Put a mark behind the next one."""
    cdef track_t* t = mark.newer
    tracks_unlink(ts, mark)
    mark.older, mark.newer = t, t.newer
    if t.newer != NULL:
        t.newer.older = mark
    else:
        ts.newest = mark
    t.newer = mark


# Freeing one needs its Queue: the garbage collector must not take that away first.
@cython.no_gc_clear
cdef class StoredOffsets:
    """Lists of (consumer tag, offset), the oldest commit first. See the stub."""
    cdef Queue queue
    cdef track_t mark           # refs: 0 = the stream has gone
    cdef u64 left               # who commits all the while cannot keep it busy for ever

    def __cinit__(self, Queue queue not None):
        self.queue = queue
        if queue.q.stream != NULL:
            self.left = 2 * <u64>queue.q.stream.tracks.n + OFFSETS_TOLD
            tracks_enter(&queue.q.stream.tracks, &self.mark)

    def __dealloc__(self):
        if self.mark.refs:
            tracks_unlink(&self.queue.q.stream.tracks, &self.mark)

    def __iter__(self):
        return self

    def __next__(self) -> list:
        cdef track_t* t = self.mark.newer if self.mark.refs else NULL
        cdef u32 n = 0
        if t == NULL or self.left == 0:
            raise StopIteration
        found = []
        while t != NULL and self.left and n < OFFSETS_TOLD:
            tracks_pass(&self.queue.q.stream.tracks, &self.mark)
            if t.offset:
                found.append((PyBytes_FromStringAndSize(<char*>t.tag, t.len), t.offset))
            t = self.mark.newer
            self.left -= 1
            n += 1
        return found
