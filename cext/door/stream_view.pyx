# Stream view: Python's half of a stream that is read here and written elsewhere. See the stub.
#
# Called by lavinmq/cluster/view.py, on the loop's thread.


cdef queue_t* viewed(Queue queue) except NULL:
    """The stream of a view. Raises TypeError."""
    if queue.q.stream == NULL or not queue.q.loop.is_reading:
        raise TypeError("no stream that is only read")
    return queue.q


def view_segments(Queue queue not None, list segments) -> None:
    """Take over finished segments. See the stub."""
    cdef queue_t* q = viewed(queue)
    for id, size, count, first, first_ms, last_ms in segments:
        if id <= q.store.wseg.id:
            raise ValueError("segments come by rising numbers")
        if view_add(q, id, first):
            raise MemoryError
        view_fill(q, size, count, first_ms, last_ms)


def view_begin(Queue queue not None, u32 segment, i64 first) -> None:
    """A segment begins with an offset. See the stub."""
    cdef queue_t* q = viewed(queue)
    cdef seg_t* last = q.store.wseg
    if q.is_deleted or q.is_closed:
        return
    if segment > last.id:
        if view_add(q, segment, first):
            raise MemoryError
    elif segment == last.id and last.count == 0 and first > last.first_offset:
        last.first_offset = q.stream.next_offset = first


def view_reached(Queue queue not None, u32 segment, u32 end) -> bool:
    """A segment may be read up to a position. See the stub."""
    cdef queue_t* q = viewed(queue)
    cdef int rc
    if q.is_deleted or q.is_closed:
        return True
    with nogil:
        rc = view_reach(q, segment, end)
    if rc < 0:
        raise os_error(q.store, "msgs", segment)
    queue.loop.kick()
    return rc == 0


def view_forgotten(Queue queue not None, u32 segment) -> None:
    """Segments have gone. See the stub."""
    cdef queue_t* q = viewed(queue)
    if not q.is_deleted and not q.is_closed:
        view_forget(q, segment)
