# Endpoints: who is at both ends of a connection, as names, lists and logs show them.
#
# There is one for each connection, for as long as it lives: as an object of Python with a number
# for each port it would take three times as much memory. Made by lavinmq/listeners/endpoints.py.


def shown(str host not None, int port) -> str:
    """An address for names and logs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# What it has does not lead back to it.
@cython.no_gc
@cython.final
cdef class Endpoints:
    """The two ends of a connection; hosts are IP addresses, an IPv4 one never inside IPv6. Never
    changed.

    Args: `is_loopback`, whether the peer is on this machine; `tls`, what was agreed on, or None.
    """
    cdef readonly str peer_host
    cdef readonly str host
    cdef readonly object tls
    cdef readonly u16 peer_port
    cdef readonly u16 port
    cdef readonly flag_t is_loopback

    def __cinit__(self, str peer_host not None, u16 peer_port, str host not None, u16 port,
                  bint is_loopback, tls=None):
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.host = host
        self.port = port
        self.is_loopback = is_loopback
        self.tls = tls

    @property
    def is_verified(self) -> bool:
        """Whether the client's certificate names a user."""
        return self.tls is not None and self.tls.login is not None

    @property
    def peer(self) -> str:
        """The address of the client."""
        return shown(self.peer_host, self.peer_port)

    @property
    def name(self) -> str:
        """What the connection is called."""
        return f"{shown(self.peer_host, self.peer_port)} -> {shown(self.host, self.port)}"

    def with_tls(self, tls) -> Endpoints:
        """The same ends, with TLS between them."""
        return Endpoints(self.peer_host, self.peer_port, self.host, self.port, self.is_loopback,
                         tls)

    def afar(self) -> Endpoints:
        """The same ends, whose peer does not count as one on this machine."""
        return Endpoints(self.peer_host, self.peer_port, self.host, self.port, False, self.tls)
