"""Changes of files from the leader of a cluster to its followers; compiled from `cext/cluster/`.

Bytes move here without Python and without the GIL; who leads, who may follow and who has to have
what is decided in `lavinmq/cluster/`. Source: docs/clustering.md.
"""

from __future__ import annotations

import socket
from typing import Literal, Self

from lavinmq import _tls

def sync_file_systems(fds: list[int]) -> None:
    """Have all on disk that was written to the file systems of these descriptors, also what could
    not be written since they were opened is told. Raises: OSError."""

class Ring:
    """The last changes of a node's files, as they go from node to node.

    Args: size: bytes, a power of two, 4 MiB or more; position: of the next change. A position is
    the number of bytes of changes since the beginning of the cluster.
    Raises: ValueError, OSError.
    """

    def __init__(self, size: int, position: int = 0) -> None: ...
    @property
    def first(self) -> int:
        """From this position on it has all."""

    @property
    def head(self) -> int:
        """The position behind the last change."""

    def reset(self, position: int) -> None:
        """Forget all, and begin at a position. Raises: RuntimeError while it is used."""

    @property
    def n_resets(self) -> int:
        """How often that has happened, or files have become others past all changes."""

    def replaced(self) -> None:
        """Files are about to become others, or have, but not by changes: what is known of them
        counts no more, and `n_resets` rises. From any thread."""

    def is_same(self, path: str, since: int) -> bool:
        """Whether followers have changed nothing behind a position at a place: the directory of a
        queue with all that is in it, or what is beside those directories or above them, by its path
        below the data directory. Where that is not known any more it is not the same. From any
        thread."""

    def changes(
        self, since: int, until: int, most: int
    ) -> tuple[int, list[tuple[int, bytes, bytes, int, int]]]:
        """What was changed between two positions behind which entries begin, which a follower may
        go on from meanwhile.

        Args: most: how many changes at once.
        Returns: the position behind the last one; of each: kind, path, target, where it ends in the
        file, the position behind it.
        Raises: LookupError: they are not all there.
        """

class Feed:
    """Hears of each change of a leader's files, and knows which followers have how much of it.

    Args: ring: is the feed's from now on: it goes on at its head. Raises: RuntimeError, OSError.
    """

    ring: Ring

    def __init__(self, ring: Ring) -> None: ...
    @property
    def note(self) -> int:
        """Address of the function for `_core.observe_copies`."""

    @property
    def address(self) -> int:
        """What that function gets, and how the loop asks for copies."""

    def fileno(self) -> int:
        """An eventfd, written when what the loop waits for may be there."""

    @property
    def head(self) -> int:
        """The position behind the last change."""

    @property
    def first(self) -> int:
        """From this position on it has all."""

    @property
    def changed(self) -> int:
        """The position behind the last change, marks do not count."""

    def tell(self, position: int) -> None:
        """Have followers hear by the next marks that the disks of all nodes in sync, this one
        included, have all up to a position."""

    @property
    def error(self) -> int:
        """The errno when a change could not be read: nothing is acknowledged any more."""

    @property
    def n_copies(self) -> int:
        """How many nodes acknowledgements wait for by now, this one included."""

    def require(self, least: int, n_missing: int) -> None:
        """Set how many copies there have to be, and how many that are in sync are not there: while
        there are any of those, nothing is acknowledged."""

    def is_same(self, path: bytes, since: int) -> bool:
        """Whether nothing has changed a file, or a directory that leads to it, behind a position.
        False also when nobody knows that any more.

        Args: path: below the data directory; since: of a state whose changes are a beginning of
            ours.
        """

    def mark(self) -> int:
        """Ask the followers for all that was changed so far. Returns: the position behind it."""

    def has(self, position: int) -> bool:
        """Whether what was changed up to a position is where it has to be."""

class _Connection:
    """A connection to another node, used as a socket is; of one thread at a time."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def fileno(self) -> int:
        """The socket's descriptor."""

    def settimeout(self, seconds: float | None) -> None:
        """Have `recv` and `sendall` end after so many seconds; None: wait."""

    def shutdown(self, how: int) -> None:
        """Shut the socket down, as any thread may, and end what waits for it. Raises: OSError."""

    def close(self) -> None:
        """Close the connection. Idempotent."""

class Channel(_Connection):
    """A connection with TLS.

    Args: sock: connected; it is this one's from now on; session: TLS over it, whose handshake is
    over, with a scratch of its own: it is this one's, too.
    """

    session: _tls.Session

    def __init__(self, sock: socket.socket, session: _tls.Session) -> None: ...
    def recv(self, n: int) -> bytes:
        """Up to n bytes, b"" at the end. Raises: OSError, in the words of OpenSSL."""

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it. Raises: OSError, in the words of OpenSSL."""

    def close(self) -> None:
        """Say goodbye, as far as the kernel takes it, and close. Idempotent."""

class BlockSender(_Connection):
    """The end from which a stream goes in blocks; the other way everything goes as it is.

    Args: sock: it is this one's from now on; compression: as `Peer` takes it.
    """

    n_sent: int
    """Bytes of the stream that were sent."""

    def __init__(self, sock: socket.socket | Channel, compression: str) -> None: ...
    def recv(self, n: int) -> bytes:
        """Up to n bytes, b"" at the end. Raises: OSError."""

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it, in blocks. Raises: OSError."""

    @property
    def n_wire(self) -> int:
        """Bytes that went over the wire for them."""

class BlockReceiver(_Connection):
    """The end to which a stream comes in blocks. Args: sock: it is this one's from now on."""

    def __init__(self, sock: socket.socket | Channel) -> None: ...
    def recv(self, n: int) -> bytes:
        """Up to n bytes, b"" at the end. Raises: OSError; EBADMSG: a block makes no sense."""

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it. Raises: OSError."""

class Peer:
    """A follower that is connected to a leader.

    Args: sock: its connection, or the descriptor of a socket; it stays the caller's; position: up
    to which it has all; compression: it gets the stream in blocks, packed "off" (never), "auto"
    (while the link is slow) or "on"; None: it gets it as it is.
    Raises: LookupError when the ring has not what comes next; KeyError of another word; OSError.
    """

    def __init__(
        self,
        feed: Feed,
        sock: int | socket.socket | Channel,
        position: int,
        compression: str | None = None,
    ) -> None: ...
    def serve(self) -> str:
        """Send until it ends, and say why: empty when it was closed. In a thread of its own."""

    def stop(self) -> None:
        """Have `serve` end. Acknowledgements that wait for it go on waiting."""

    def close(self) -> None:
        """Nothing waits for it any more. When `serve` has ended."""

    @property
    def is_required(self) -> bool:
        """Whether acknowledgements wait for it."""

    @is_required.setter
    def is_required(self, value: bool) -> None: ...
    @property
    def sent(self) -> int:
        """Position up to which it was sent, or nearly so."""

    @property
    def n_sent(self) -> int:
        """Bytes of changes that it was sent, or nearly so."""

    @property
    def n_wire(self) -> int:
        """Bytes that went over the wire for them."""

    @property
    def n_packed(self) -> int:
        """How many of the former went packed."""

    @property
    def acked(self) -> int:
        """Position up to which it has all on disk."""

    @property
    def lag_s(self) -> float:
        """Seconds since it has told of something new on its disk, if it owes anything; else 0."""

    @property
    def silent_s(self) -> float:
        """Seconds since it has said anything."""

class Follower:
    """Makes the leader's changes again, below a data directory.

    Args: ring: keeps what comes, from its head on; touches: a descriptor to which changes are
    written that take something back, as by `_core.touch_files`, -1: nobody wants them.
    Raises: RuntimeError, OSError.
    """

    ring: Ring

    def __init__(self, ring: Ring, root: str, touches: int = -1) -> None: ...
    def run(
        self,
        sock: int | socket.socket | Channel,
        until: int = 0,
        is_lazy: bool = False,
        is_lenient: bool = False,
        in_blocks: bool = False,
        beats: bool = False,
    ) -> tuple[Literal["there", "lost", "full", "refused", "garbled", "disk"], str]:
        """Do what comes by a connection, or the descriptor of a socket, until it ends, and say why.
        In a thread of its own.

        Args: until: it ends there, once that is on disk; is_lazy: nobody waits for what is on disk;
        is_lenient: what was changed before that position may have been copied already; in_blocks:
        the stream comes so; beats: the leader wants to hear that this node is there (`beat`).
        Returns: "there": it may go on with the same connection; "lost": the connection; "full": the
        disk has no room for the next change; "refused": what came could not be done, the files are
        between two states; "garbled": a block makes no sense, of which nothing was done; "disk":
        nobody knows what is on it; each with a reason for people.
        """

    def beat(self) -> bool:
        """Say that this node is there, also while the thread that runs this waits for its disk.
        From another thread, and without waiting. Returns: whether it was said."""

    def sync(self) -> None:
        """Have all that was done on disk. Not while it runs. Raises: OSError."""

    def close(self) -> None:
        """Let go of the files, and of the ring. Not while it runs. Idempotent."""

    @property
    def is_incomplete(self) -> bool:
        """Whether a change could not be written to `touches`."""

    @property
    def applied(self) -> int:
        """Position up to which all was done."""

    @property
    def synced(self) -> int:
        """Position up to which all is on disk."""

    def sync_times(self) -> tuple[list[int], float]:
        """Durations of syncs that the leader has asked for, or that were due: as
        `_core.Loop.sync_times`. In any thread."""

    @property
    def common(self) -> int:
        """Position up to which the disks of all nodes in sync have all, as the leader has told by
        this connection; this node may have less. 0: it has not."""
