# Protocol: the class that holds a table of what is spoken on links.


@cython.final
cdef class Protocol:
    """What the peer of a link speaks, for `Link`. One for each protocol, and made here only."""
    cdef protocol_t t
