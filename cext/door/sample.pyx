# Sample: the class through which Python follows the messages of an exchange or a queue.


@cython.final
cdef class Sample:
    """Messages that pass what it is given to by `Exchange.follow` or `Queue.follow`.

    Args: `most_body`: bytes of a body that are kept."""
    cdef sample_t t
    cdef object followed        # the Queue or Exchange that is followed, which t points at

    def __cinit__(self, u32 most_body=0):
        self.t.most_body = most_body

    def __dealloc__(self):
        sample_let_go(&self.t)
        sample_free(&self.t)

    @property
    def seen(self) -> int:
        """Messages that have passed."""
        return self.t.n_seen + sample_unseen(&self.t)

    cdef void leave(self):
        """Nothing is followed any more; what has passed stays counted."""
        sample_close(&self.t)
        sample_let_go(&self.t)
        self.t.n_seen += sample_unseen(&self.t)
        self.t.queue = NULL
        self.t.exchange = NULL
        self.followed = None

    def take(self, u32 n, u64 room) -> list:
        """What was kept since the last time; from now on keep n messages of `room` bytes at most.
        A row: (when it passed in Unix milliseconds, exchange, routing key, properties, bytes of the
        body, the beginning of it)."""
        cdef taken_t* each
        cdef const u8* p
        cdef const u8* key
        cdef list rows = []
        while self.t.first != NULL:
            each = self.t.first
            p = <const u8*>(each + 1)
            key = p + p[0] + 1
            rows.append((
                each.at_ms, PyBytes_FromStringAndSize(<char*>p + 1, p[0]),
                PyBytes_FromStringAndSize(<char*>key + 1, key[0]),
                PyBytes_FromStringAndSize(<char*>p + each.names_len, each.props_len), each.size,
                PyBytes_FromStringAndSize(<char*>p + each.names_len + each.props_len,
                                          each.body_len)))
            self.t.first = each.next
            if self.t.first == NULL:
                self.t.last = NULL
            free(each)
        self.t.left = n
        self.t.room = room
        if n:
            sample_open(&self.t)
        else:
            sample_close(&self.t)
        return rows
