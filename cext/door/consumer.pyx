# Consumer: the class through which Python holds a registered consumer.


cdef class Consumer:
    """A registered consumer. `cancel()` ends it; deliveries it made stay unacked on its channel."""
    cdef consumer_t* k
    cdef readonly object tag

    @property
    def unacked(self) -> int:
        """Deliveries of this consumer that are not settled."""
        return self.k.unacked if self.k != NULL else 0

    @property
    def prefetch(self) -> int:
        """How many deliveries it may hold, 0 = any number."""
        return self.k.prefetch if self.k != NULL else 0

    def read_stream(self, start, *, bint is_tracked=False, bint uses_stored=False,
                    list conditions=None, bint is_any=False,
                    bint takes_unfiltered=False, i64 end=0, bint tells_time=False,
                    bint tells_epoch=False) -> None:
        """Say where a consumer of a stream begins, and what it wants; before start().

        Args: `start`, "first", "last" (the newest segment), "next", an offset (negative: so many
        messages from the end) or (Unix milliseconds,); `is_tracked`, whether its acknowledgements
        are kept under its tag; `uses_stored`, whether what is kept counts more than `start`;
        `conditions`, what messages have to fulfil, all of them or `is_any`:
        ("value", text, forms), ("header", key, text, forms), ("radius", lat, lon, km),
        ("box", lowest lat, highest lat, lowest lon, highest lon), ("polygon", [(lat, lon), ...]),
        where `forms` are values whose text form is `text`: integer, number, number32, seconds,
        boolean; `takes_unfiltered`, whether messages without a filter value are wanted anyway;
        `end`, the first offset that is not wanted, 0 = none: `on_stream_end` of the session is
        called behind the last delivery; `tells_time` and `tells_epoch`, whether deliveries have the
        headers x-stream-timestamp and x-stream-epoch."""
        cdef queue_t* q = self.k.queue
        cdef reader_t* r
        cdef track_t* t
        if q.stream == NULL or self.k.reader != NULL:
            raise ValueError("no stream, or told already")
        if q.is_deleted or q.is_closed:
            return
        r = reader_new(self.k)
        if r == NULL:
            raise MemoryError()
        t = tracks_find(&q.stream.tracks, self.k.tag + 1, self.k.tag[0])
        if uses_stored and t != NULL and t.offset:
            start = t.offset
        reader_start(q, r, start)
        r.end_offset = end
        r.tells_time = tells_time
        r.tells_epoch = tells_epoch
        if conditions:
            r.filter = filter_new(conditions, is_any, takes_unfiltered)
        if is_tracked and reader_track(self.k):
            raise MemoryError()

    def start(self) -> None:
        """Let deliveries begin; called once consume-ok has been written, and on a queue with a
        single active consumer when it is this one's turn."""
        if self.k != NULL:
            channel_start_consumer(self.k)

    def cancel(self) -> None:
        """Take the consumer away; does nothing the second time."""
        if self.k != NULL and not self.k.is_cancelled:
            channel_remove_consumer(self.k)

    def __dealloc__(self):
        if self.k != NULL:
            consumer_unref(self.k)


cdef reader_start(const queue_t* q, reader_t* r, start):
    """Put a reader where it begins, see Consumer.read_stream."""
    if start == "first":
        reader_go_to_offset(q, r, 0)
    elif start == "last":
        reader_go_to_offset(q, r, segment_first(q, q.store.wseg))
    elif start == "next":
        reader_go_to_end(q, r)
    elif isinstance(start, tuple):
        reader_go_to_time(q, r, max(-(1 << 62), min(start[0], 1 << 62)))
    elif start < 0:
        reader_go_to_offset(q, r, max(q.stream.next_offset + start, 0))
    else:
        reader_go_to_offset(q, r, min(start, 1 << 62))
