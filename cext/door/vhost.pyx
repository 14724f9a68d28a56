# Vhost: the class through which Python owns what the queues of a virtual host share.


cdef class Vhost:
    """The exchanges of one vhost by name, and its epoch: `touch()` makes every connection ask again
    before it publishes."""
    cdef vhost_t t
    cdef dict exchanges         # keeps them alive

    def __cinit__(self):
        self.t.epoch = 1
        self.exchanges = {}
        self.t.names = match_new(MATCH_DIRECT, 0)
        if self.t.names == NULL:
            raise MemoryError()

    def __dealloc__(self):
        if self.t.names != NULL:
            match_free(self.t.names)

    def add(self, bytes name, Exchange exchange not None) -> None:
        """Have dead letters find an exchange by its name."""
        if match_bind(self.t.names, <const u8*>PyBytes_AS_STRING(name), <u32>len(name), NULL, 0,
                      &exchange.t.dest) < 0:
            raise MemoryError()
        self.exchanges[name] = exchange

    def remove(self, bytes name) -> None:
        """The exchange of that name is gone."""
        cdef Exchange exchange = self.exchanges.pop(name, None)
        if exchange is not None:
            match_unbind(self.t.names, <const u8*>PyBytes_AS_STRING(name), <u32>len(name), NULL, 0,
                         &exchange.t.dest)

    def touch(self) -> None:
        """An exchange or a permission has changed."""
        self.t.epoch += 1

    def counters(self) -> dict:
        """Messages of all channels since start, by name; one that is routed to several queues was
        published once."""
        cdef tally_t total = tally_of_vhost(&self.t)
        return tally_dict(&total)
