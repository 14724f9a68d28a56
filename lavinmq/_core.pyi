"""The door of the message path: what Python sees of `cext/core.pyx`.

Frames in, segments, frames out happens behind these classes; Python makes and removes the objects,
decides what clients may do and answers rare methods. All of it belongs to the loop's thread; no
method blocks, unless it says so. Sizes are bytes, times are seconds, names and keys are the bytes
that stand on the wire. An argument of a wrong type is a TypeError, a number that does not fit its
C type an OverflowError; MemoryError is possible wherever something is made.
"""

import asyncio
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Self, final, type_check_only

UNLIMITED: Final[int]
"""No limit of length or bytes."""
OVERFLOW: Final[dict[str, int]]
"""What a full queue does, by the value of `x-overflow`."""
DIRECT: Final[int]
"""Kind of an Exchange: the routing key equals the binding key."""
FANOUT: Final[int]
"""Kind: every binding matches."""
TOPIC: Final[int]
"""Kind: words with `*` and `#`."""
HEADERS: Final[int]
"""Kind: the arguments of the binding are compared with the headers of the message."""
HASH: Final[int]
"""Kind: one binding takes the message, by consistent hashing; binding keys are weights."""
FILTERS: Final[int]
"""Kind: filters of MQTT with `+` and `#`; only those who speak MQTT publish to it."""

def kinds() -> dict[str, int]:
    """The kinds of an Exchange by name, as cext/match.pxd says what each one matches."""

HASH_PROPERTIES: Final[dict[str, int]]
"""What HASH can hash instead of the routing key or a header, by the name of the property."""

DURATION_BOUNDS: Final[tuple[float, ...]]
"""Upper bounds in seconds of the buckets into which durations are counted."""

STATE_HEADER: Final[int]
"""State of a Link: the 8-byte protocol header is awaited."""
STATE_HANDSHAKE: Final[int]
"""State: only methods of the connection class up to open-ok are legal."""
STATE_OPEN: Final[int]
"""State: everything is legal."""
STATE_CLOSING: Final[int]
"""State: connection.close was said; everything but close and close-ok is discarded."""
STATE_CLOSED: Final[int]
"""State: the link has let go of everything. Final."""

ASK_KIND_PUBLISH: Final[int]
"""Kind of a question of a Link: exchange and routing key of a message."""
ASK_KIND_COPIES: Final[int]
"""Kind: the same exchange and the keys in CC and BCC, where the first one was answered by key."""
ASK_KIND_LETTER: Final[int]
"""Kind: the exchange that a message names for its dead letter, and its key if it names one."""
ASK_KIND_LETTER_KEY: Final[int]
"""Kind: a message names the key of its dead letter and no exchange; the question has neither."""

@type_check_only
class Tls(typing.Protocol):
    """TLS of a Link: a session of `lavinmq._tls`."""

    @property
    def failure(self) -> str | None:
        """Why it has failed, empty for its orderly end; None while it lives."""

    def wire(self) -> object:
        """A capsule of what a wire reads and writes by; this outlives it."""

@type_check_only
class Session(typing.Protocol):
    """Who decides for a Link: it calls these, one at a time, and carries on when they return.

    A call may close the link or change its state; frames behind the event are walked afterwards,
    under the new state. What a call raises ends up in the event loop's exception handler, and the
    rest of that read is lost: calls do not raise.
    """

    def on_header(self, header: bytes, /) -> None:
        """The first 8 bytes of the connection; fewer when they are no protocol header already."""

    def on_method(self, channel: int, payload: bytes, /) -> None:
        """A method that the link leaves to Python, on a channel that need not be open.

        Args: payload: class id, method id and arguments; at least 4 bytes.
        """

    def on_route_miss(self, channel: int, kind: int, name: bytes, keys: list[bytes], /) -> None:
        """A publish asks for something that the link does not know to be allowed.

        Args: kind: one of ASK_KIND_PUBLISH, ASK_KIND_COPIES, ASK_KIND_LETTER, ASK_KIND_LETTER_KEY;
            name: of an exchange, at most 255 bytes; keys: routing keys of messages for it, with
            ASK_KIND_LETTER one at most.

        The publish is tried again when this returns. So answer with `Link.learn`, or with
        `Link.allow` where keys matter, or close the channel or the connection; otherwise the
        question is asked for ever.
        """

    def on_held(self, channel: int, /) -> None:
        """A publish comes while publishers are held. It is tried again when this returns: so answer
        with `Link.hold`, or close the channel or the connection."""

    def on_released(self) -> None:
        """The disk has room again; the link that was held goes on when this returns."""

    def on_error(
        self, kind: int, channel: int, method: int, a: int, b: int, text: bytes, /
    ) -> None:
        """A frame broke a rule.

        Args: kind: row of the tables in amqp/walk_errors.py, `walk_error` in cext/amqp/amqp.pyx;
            method: class id << 16 | method id, 0 for frames without one; a, b, text: what the row
            mentions.
        """

    def on_illegal_frame(self) -> None:
        """A frame that has no place in the handshake."""

    def on_timeout(self, why: str, /) -> None:
        """`set_timeout` has run out, or the peer has missed its heartbeats."""

    def on_unreadable(self) -> None:
        """The body of a message, whose beginning is sent, cannot be read: nothing follows it."""

    def on_consumer_timeout(self, channel: int, /) -> None:
        """A delivery on the channel is unacked for longer than its queue allows: close it."""

    def on_large_header(self, channel: int, /) -> None:
        """The channel was to get a message whose header is larger than the client's frames: close
        it. Comes within about a second; nothing of the message was sent."""

    def on_stream_end(self, channel: int, tag: bytes, /) -> None:
        """The consumer of a stream has been sent all that it asked for: cancel it."""

    def on_lost(self, why: str, /) -> None:
        """The socket is gone: call `Link.close`. `why` is empty when the peer closed it."""

def accept(fd: int) -> tuple[int, tuple[str, int], tuple[str, int]] | None:
    """The next connection of a listening socket that does not block.

    Returns: its descriptor, which does not block either, and host and port of the peer and of our
        own end, ("", 0) of a unix socket; None: there is none now, or it is gone already.
    Raises: OSError.
    """

def shown(host: str, port: int) -> str:
    """An address for names and logs."""

@final
class Endpoints:
    """The two ends of a connection. Never changed."""

    def __init__(
        self,
        peer_host: str,
        peer_port: int,
        host: str,
        port: int,
        is_loopback: bool,
        tls: Any = None,
    ) -> None: ...
    @property
    def peer_host(self) -> str:
        """IP address of the client, an IPv4 one never inside IPv6."""

    @property
    def peer_port(self) -> int: ...
    @property
    def host(self) -> str:
        """The address of ours that it has come to."""

    @property
    def port(self) -> int: ...
    @property
    def is_loopback(self) -> bool:
        """Whether the peer is on this machine."""

    @property
    def tls(self) -> Any:
        """What TLS was agreed on, a `TlsInfo` of `lavinmq.listeners.endpoints`, or None."""

    @property
    def is_verified(self) -> bool:
        """Whether the client's certificate names a user."""

    @property
    def peer(self) -> str:
        """The address of the client."""

    @property
    def name(self) -> str:
        """What the connection is called."""

    def with_tls(self, tls: Any) -> Endpoints:
        """The same ends, with TLS between them."""

    def afar(self) -> Endpoints:
        """The same ends, whose peer does not count as one on this machine."""

def map_large_blocks() -> None:
    """Have the C library map memory blocks of 128 KiB and more one by one, for this whole process:
    cut from the heap, as it prefers after a while, what they leave is not given back."""

@final
class Entry:
    """A name in a directory, as `os.DirEntry` as far as a queue needs it."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int:
        """Bytes of what it leads to; that of `.queue` came with the list. Raises: OSError."""

    def is_file(self) -> bool:
        """Whether it leads to a regular file. Raises: OSError."""

    def is_dir(self) -> bool:
        """Whether it leads to a directory. Raises: OSError."""

def entries_in(path: str) -> dict[str, Entry] | None:
    """The entries of a directory by name; None: there is no such directory. Raises: OSError."""

@final
class Listing:
    """The entries of directories that are all in one, and have names as those of queues have.

    Args: directory: that they are in; names: in the order in which they will be wanted.
    Raises: OSError when it cannot be opened; ValueError for other names.
    """

    def __init__(self, directory: str, names: list[str]) -> None: ...
    def work(self) -> None:
        """Look at what nobody has looked at yet, until all is or `stop` was called. In a thread."""

    def stop(self) -> None:
        """No more is wanted: threads end soon."""

    def entries(self, at: int) -> dict[str, Entry] | None:
        """The entries of a directory by name, once; None: it is not there. Waits for a thread that
        is about to look at it, looks itself when there is none. Raises: OSError."""

def sync_file_system(path: str) -> None:
    """Have all that was written to the file system of a directory on disk. Raises: OSError."""

CHANGE_KINDS: Final[dict[str, int]]
"""What can happen to a file of the data directory, as `cext/types.pxd` has it."""

def observe(loop: Loop, root: str, note: int, owner: int = 0) -> None:
    """Have each change of a file below `root` noted, once it was made; until the loop has gone.

    Args:
        root: the data directory, as its queues' directories begin.
        note: address of a C function, 0: nobody observes any more. It gets `owner`, the position
            (counted from 1), the kind, path and target below `root`, a descriptor from which the
            bytes can be read or -1, those bytes or NULL, start and end. It is called by any thread,
            holding the GIL or not, and must neither wait nor call the broker. Of two notes the one
            whose change has to be made again first has the lower position.
        owner: what it gets.
    """

def observe_copies(loop: Loop, root: str, note: int, copies: int) -> None:
    """The same for copies of all files that acknowledgements wait for, beside who observes.

    Args: note: as that of `observe`, it gets `copies`: address of a struct copies_t.
    """

def whole_end(fd: int, size: int) -> int:
    """Where a copy of a file `msgs.N` of so many bytes ends, when that would cut its last record:
    at the end of the one before, also when a broker writes to it. Raises: OSError."""

class Journal:
    """Keeps notes of all changes of files below a root, from now on until it is closed.

    There may be three at once: for a backup, and for two nodes that join. Args: root: as that of
    `observe`; most: bytes of notes that it may hold. Raises: RuntimeError when there are more.
    """

    def __init__(self, loop: Loop, root: str, most: int) -> None: ...
    def take(self) -> bytes:
        """All notes that there are, in order, and forget them. On the loop's thread: of all changes
        that it has made. Each is kind:u8 n:u16 n_target:u16 start:i64 end:i64, a path of n bytes
        and a target."""

    @property
    def is_overrun(self) -> bool:
        """Whether there were more notes than it may hold: some are missing."""

    def close(self) -> None:
        """Note nothing more."""

def note_change(
    loop: Loop, kind: int, path: str, target: str, fd: int, start: int, end: int
) -> None:
    """Note a change that was just made, for who observes: `files/changes.py` does. From any
    thread."""

def touch_files(loop: Loop, root: str, fd: int) -> None:
    """Have changes below `root` written to a file that take something back: what is cut, made a
    hole, written over, renamed or removed. Not what is appended, made, or written over filling.

    Args: root: as that of `observe`; fd: opened with O_APPEND, stays the caller's, and open as long
    as the loop lives or until this is called with -1. Notes have the form of a `Journal`'s. One
    that is patched at each turn of the loop is noted once, as a whole, until `look_at_touches`.
    """

def look_at_touches(loop: Loop) -> bool:
    """Say that the notes are about to be read: what is written over from now on is noted anew.
    Returns: whether all could be written so far. From any thread."""

def watch_sums(loop: Loop, path: str) -> None:
    """Say that a file is about to be read for `know_sums`: it is refused if the file is changed
    meanwhile. One at a time. From any thread. Args: path: below that of `touch_files`."""

def know_sums(loop: Loop, path: str, covered: int, sums: bytes, unknown: Iterable[int]) -> bool:
    """Have what is read of a segment compared with its sums, from now on: those of its first
    `covered` bytes, a CRC-32 for each 64 KiB, 4 bytes each, little-endian. From any thread.

    Args: path: the file that is watched; unknown: blocks that have none. Returns: whether they were
    taken. What the broker changes by itself is known (`touch_files`).
    """

def forget_sums(loop: Loop, path: str) -> None:
    """Compare what is read of a file no more. From any thread."""

def take_spoiled(loop: Loop) -> list[str]:
    """Paths of files of which something else was read than was written, since the last call: none
    of it was given to anybody. From any thread."""

def await_peers(loop: Loop, has_peers: bool) -> None:
    """Say whether other nodes have what is spoiled here. Then a queue does not go on behind it, and
    cannot be read (EBADMSG); else it is given up, as other damage."""

def make_hole(fd: int, start: int, end: int) -> None:
    """Give bytes of a file back to the disk; its size stays. Raises: OSError: the file system
    cannot."""

class Loop:
    """What all links and queues of an event loop share: buffers, tick lists, confirms to send.

    Its tick runs at the end of each iteration in which something happened: queues deliver and are
    written, publishes are confirmed, links send. Waiting for the disk happens in one thread of its
    own. Source: docs/architecture.md.

    Args:
        events: the running event loop.
        data_dir: an existing directory; its file system is what gets synced.
        sync: whether confirms wait for the disk.
        on_fatal: called with a path and an errno, once, when a sync failed. Nothing is confirmed
            from then on; the broker has to stop.
        on_news: called when a store has lost records, could not be read or written, or can be
            again; the queues say which.

    Raises: OSError when the directory cannot be opened.
    """

    events: asyncio.AbstractEventLoop
    """The running event loop."""
    n_snapshots: int
    """How many snapshots hold files, which are copied: while there are any no compaction may begin,
    and filling is cut before data is written, so that a note says where the data ended."""
    n_compactions: int
    """Those that have begun and not ended."""

    def __init__(
        self,
        events: asyncio.AbstractEventLoop,
        data_dir: str,
        sync: bool,
        on_fatal: Callable[[str, int], object],
        on_news: Callable[[], object],
    ) -> None: ...
    @property
    def sync(self) -> bool:
        """Whether confirms and definitions wait for the disk."""

    @sync.setter
    def sync(self, value: bool) -> None: ...
    @property
    def is_reading(self) -> bool:
        """Whether the files are another's to change: whatever would change one here fails with
        EROFS. Streams are read by `view_segments` and its like then."""

    @is_reading.setter
    def is_reading(self, value: bool) -> None: ...
    @property
    def n_kept_out(self) -> int:
        """How many changes of files were refused for that."""

    @property
    def is_stamping(self) -> bool:
        """Whether a publish without a timestamp gets the time at which it came."""

    @is_stamping.setter
    def is_stamping(self, value: bool) -> None: ...
    @property
    def overdue_interval_s(self) -> float:
        """Seconds between two looks at a connection for deliveries held for longer than allowed."""

    @overdue_interval_s.setter
    def overdue_interval_s(self, value: float) -> None: ...
    @property
    def overdue_looks(self) -> int:
        """How often a connection was looked at for that since start."""

    @property
    def watch_changes(self) -> int:
        """How often the kernel was told to look for something else since start."""

    def on_found(self) -> None:
        """Tell links what the kernel has found of their sockets; for the event loop."""

    @property
    def is_low(self) -> bool:
        """Whether the file system is short of space; to be set by who watches it."""

    @is_low.setter
    def is_low(self, value: bool) -> None: ...
    @property
    def is_held(self) -> bool:
        """Whether publishers are held: the disk is low, or had no room for a queue."""

    @property
    def breaks(self) -> int:
        """Queues closed since start because they could not be written."""

    @property
    def large_bytes(self) -> int:
        """Memory in messages too large for pooled blocks: coming in, going out, in transactions."""

    def sync_times(self) -> tuple[list[int], float]:
        """Durations of all syncs: how many fell between two of DURATION_BOUNDS, the last number is
        of those above all; and their sum in seconds."""

    def confirm_times(self) -> tuple[list[int], float]:
        """The same from the read that brought the oldest publish of an ack to the ack: one duration
        for each ack, which may confirm many."""

    @property
    def clock_offset_ms(self) -> int:
        """Milliseconds added to the clock: tests let time pass with it."""

    @clock_offset_ms.setter
    def clock_offset_ms(self, value: int) -> None: ...
    @property
    def portion_units(self) -> int:
        """Units of work, of about 10 ns, after which a portion is over; 0: it ends by the clock.
        For tests: 1 has everything long stopped as often as can be."""

    @portion_units.setter
    def portion_units(self, value: int) -> None: ...
    def sync_one_by_one(self) -> None:
        """Never sync a whole file system in the place of files: parts of the data directory are on
        others. Before anything is loaded."""

    def set_max_files(self, n: int) -> None:
        """Bound the descriptors that queues keep open between their uses."""

    def set_max_large(self, n: int) -> None:
        """Bound `large_bytes`; a message that would exceed it is refused, or waits in its queue."""

    def set_max_copies(self, n: int) -> None:
        """Bound the keys in CC and BCC of one message; one with more is refused."""

    @property
    def dedup_bytes(self) -> int:
        """Memory of all caches of keys of duplicates."""

    @property
    def history_bytes(self) -> int:
        """Memory of all messages that exchanges keep."""

    def set_max_history(self, n: int) -> None:
        """Bound `history_bytes`, 256 MiB unless told: an exchange lets go of its oldest messages
        then, and one that has none keeps none."""

    def set_max_dedup(self, n: int) -> None:
        """Bound `dedup_bytes`, 256 MiB unless told: a cache that finds no more memory renews its
        oldest keys. The first 128 of each are granted in any case."""

    def retry(self) -> None:
        """Try again to write the queues that found no room; a timer of the loop calls it."""

    def index(self) -> None:
        """Look for deadlines in what was there at the start. The loop calls it by itself."""

    def expire(self) -> None:
        """Expire the messages whose time is over. The loop calls it by itself."""

    def tick(self) -> None:
        """Deliver, write, confirm and send what has gathered; the event loop calls it."""

    def when_returned(self, callback: Callable[[], None]) -> None:
        """Call back when no delivery of a channel that has gone is on its way back to its queue: at
        once, or later."""

    def after_sync(
        self, callback: Callable[[], object], refused: Callable[[], object] | None = None
    ) -> None:
        """Call back on the loop once what a commit published to durable queues is on disk.

        Args: refused: is called instead when too few copies are there and `is_below` is set: nobody
            knows whether it is kept. None: `callback` waits until there are enough.
        """

    is_below: bool
    """Whether those who publish are told at once, instead of waiting, that too few copies are
    there: confirms are negative, `after_sync` refuses. Set by who counts the copies."""

    @property
    def sync_age(self) -> float:
        """Seconds for which the disk has been working on a sync; 0: it is not."""

    def wait_for_copies(self, fd: int) -> None:
        """Look again for what copies have to have (`observe_copies`) whenever an eventfd is
        written. The descriptor is duplicated. Raises: OSError."""

    def when_copied(self, callback: Callable[[], object]) -> None:
        """Call `callback()` on the loop once all that was changed in files so far is where it has
        to be; at once when there are no copies to wait for."""

    def sync_file(self, fd: int, callback: Callable[[], object]) -> None:
        """Call `callback()` on the loop once what was written to `fd` so far is on disk.

        The descriptor is duplicated and may be closed. A file that cannot be synced is fatal, and
        the callback is then never called.
        """

    def local_channels(self) -> list[LocalChannel]:
        """Those that have taken messages and are not closed."""

    def check_links(self) -> bool:
        """Send heartbeats that are due, report links that are silent or late and channels that
        hold a delivery for longer than its queue allows, a portion of them.

        To be called eight times a second; true when there are more, which are to be asked for at
        once. Source: docs/protocol.md.
        """

    def turn(self) -> None:
        """Hear the links that wait for their turn, have the tick, and go on with long work, all in
        one portion of time. Called by the event loop."""

    def wake_patient(self) -> None:
        """Use credit that came back in small amounts. Called by the event loop."""

    def release_crowd(self) -> None:
        """Let links that waited for consumers read on; a timer of the loop calls it."""

    def release_held(self) -> None:
        """Let links that waited for the disk go on, if there is room now."""

    def work(self) -> None:
        """What the thread runs: one sync per wake-up, until it is told to stop. Blocks."""

    def on_lingered(self) -> None:
        """A sync has waited long enough for more publishes; the event loop calls it."""

    def on_copied(self) -> None:
        """Copies may have what they have to; the event loop calls it."""

    def on_synced(self) -> None:
        """The thread has finished a sync; the event loop calls it."""

    def finish(self) -> None:
        """Sync what waits for it, and wait for that; then delete what was moved where it was.

        Nothing is confirmed from then on. For an orderly stop, before `stop`. Raises: OSError.
        """

    def try_parked(self) -> None:
        """Send on what could not be moved before; the event loop calls it."""

    def stop(self) -> None:
        """End the thread and close all descriptors; blocks while a sync lasts. Idempotent.

        Nothing is delivered, confirmed or synced from then on; callbacks that wait are not called.
        """

KEYS_MAX: Final[int]
"""Most keys that a DedupCache remembers."""
HISTORY_MAX: Final[int]
"""Most messages that an exchange keeps."""
KEYS_UNREADABLE: Final[int]
"""Answer of `DedupCache.load`: no file of this format."""
KEYS_OF_OTHER_BOOT: Final[int]
"""Answer of `DedupCache.load`: the machine has stopped without the broker since."""

class DedupCache:
    """The keys that one exchange or queue has seen; the oldest make way for new ones.

    The caller of `seen`, `remember` and `flush` is the message path, but in tests.

    Args:
        loop: whose tick writes the file; None in tests.
        header: the header whose value is the key.
        size: keys to remember; more than KEYS_MAX are not.
        ttl_ms: how long a key counts whose message does not say; -1 for ever.
        path: of its file, less than 4080 bytes; None when the keys go with the broker.
        boot: a number that no other boot of the machine has, not 0.
    Raises: ValueError when the path is too long.
    """

    def __init__(
        self, loop: Loop | None, header: bytes, size: int, ttl_ms: int, path: str | None, boot: int
    ) -> None: ...
    def __len__(self) -> int:
        """Keys remembered, expired ones among them."""

    def load(self, data: bytes) -> int:
        """Take over the keys of a file; to be called once, before anything else.

        Returns: how many slots were damaged, or KEYS_UNREADABLE or KEYS_OF_OTHER_BOOT: none is
            taken over then.
        Raises: OSError when the broker before was killed, and what it left cannot be synced: none
            is taken over then.
        Source: docs/formats.md.
        """

    @property
    def damaged(self) -> int:
        """What `load` returns, once `load_some` has come to the end."""

    def is_sync_wanted(self, data: bytes) -> bool:
        """Whether all that was found at the start has to be on disk before keys of a file count:
        the broker before was killed."""

    def load_begin(self, data: bytes) -> None:
        """Begin to take over the keys of a file, as `load` does, but without a sync."""

    def load_some(self) -> bool:
        """Take over some of them. Returns: whether there are more."""

    def seen(self, headers: bytes, now_ms: int) -> bool:
        """Whether a message with these headers (content of a field table) is a duplicate.

        Raises: ValueError when they are no field table.
        """

    def remember(self, headers: bytes, now_ms: int, is_stored: bool = True) -> None:
        """Such a message was taken; `is_stored`, by a durable queue. Raises: ValueError."""

    def flush(self) -> None:
        """Write new keys to the file. Raises: OSError; they stay new."""

    def forget_new(self) -> None:
        """Forget what was remembered since the last flush."""

    def close(self) -> None:
        """Write and sync the file, mark it as complete, forget all. Raises: OSError."""

    def release(self) -> None:
        """Forget all, and leave the file as it is. Idempotent."""

    def take_news(self) -> int | None:
        """errno of the last write when it differs from that at the last call, 0 = it went well."""

class RetainedStore(RetainedSink):
    """The retained messages of a virtual host: topics and places in memory, the rest in files.

    A put is written at the end of the turn. What cannot be written is taken back, and channels that
    wait for the disk are refused.

    Args:
        loop: whose tick writes the files.
        directory: the virtual host's, less than 4030 bytes.
        file_size: bytes at which a file is finished.
    Raises: ValueError when the path is too long.
    Source: docs/formats.md, decision 0087.
    """

    def __init__(self, loop: Loop, directory: str, file_size: int = ...) -> None: ...
    def __len__(self) -> int:
        """Messages, expired ones among them that nobody has looked for yet."""

    @property
    def memory(self) -> int:
        """Bytes of memory."""

    @property
    def file_bytes(self) -> int:
        """Bytes of all files."""

    @property
    def lost(self) -> int:
        """Messages that could not be read when they were wanted."""

    def load(self) -> list[str]:
        """Read the files; to be called once, before anything else. Blocks.

        Returns: what was damaged, for the log.
        Raises: OSError; ValueError for a file of a later version: the store must not be used then.
        """

    def import_original(self) -> list[str]:
        """Take over what LavinMQ's directory of retained messages has, unless that was done and it
        has not been open in LavinMQ since. Behind `load`. Blocks.

        Returns: what could not be read, for the log. Raises: OSError.
        """

    def put(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        properties: bytes,
        at_ms: int,
        expires_ms: int = 0,
    ) -> None:
        """Keep a message in the place of what its topic had.

        Args: properties: a property block of MQTT 5 without its length; at_ms, expires_ms: Unix
            milliseconds, 0: never.
        Raises: OSError: refused, EFBIG above 8 MiB; ValueError for a topic or a QoS that is none.
        """

    def remove(self, topic: bytes) -> bool:
        """Forget the message of a topic. Returns: whether there was one. Raises: OSError."""

    def walk(self, filter: bytes) -> RetainedWalk:
        """Look for the messages that a valid filter matches. Raises: ValueError when it is empty or
        has more than 65 535 bytes."""

    @property
    def mark(self) -> tuple[int, int]:
        """What there is now, for `give`: the number of puts, and Unix milliseconds of this turn."""

    def give(
        self, filter: bytes, queue: Queue, granted: int, subscription_id: int = 0,
        mark: tuple[int, int] | None = None,
    ) -> RetainedGift:  # fmt: skip
        """Begin to give what a valid filter matches to a session, because it has subscribed.

        Args: queue: the session's; granted: QoS of the subscription; mark: of the time when it
            subscribed, None: now. What has come since then is not given. Raises: ValueError.
        """

    def flush(self) -> None:
        """Write what was put since the last turn. Raises: OSError; it is taken back then."""

    @property
    def is_due(self) -> bool:
        """Whether most of the files is what does not count, and `clean_some` is to be called."""

    def clean_some(self) -> bool:
        """Clean the oldest file for a portion; it goes once what counts of it is on disk elsewhere.

        Returns: whether there is more. Raises: OSError; the file stays.
        """

    def cleaned(self, floor: int) -> None:
        """What counts of the files below a number is on disk elsewhere. Called by the loop."""

    def superseded(self, floor: int) -> None:
        """That the files below a number do not count is on disk, too. Called by the loop."""

    def expire_some(self) -> bool:
        """Forget expired messages for a portion. Returns: whether there is more to look at."""

    def take_news(self) -> int | None:
        """errno of the last write when it differs from that at the last call, 0 = it went well."""

    def close(self) -> None:
        """Write and sync what there is, let go of all. Raises: OSError. Idempotent."""

    def release(self) -> None:
        """Let go of all without writing: the files go. Idempotent."""

@final
class RetainedWalk:
    """The messages that a filter matches, in the order of their topics' bytes, each once."""

    def __init__(self, store: RetainedStore, filter: bytes) -> None: ...
    @property
    def is_over(self) -> bool:
        """Whether there are no more."""

    def some(self, n: int) -> list[tuple[bytes, bytes, int, bytes, int, int]]:
        """The next ones, up to n; fewer, or none, when the portion is over.

        Returns: topic, payload, QoS, properties, when it came, when it expires, as in `put`.
        """

    def stop(self) -> None:
        """No more are wanted. Idempotent."""

RETAINED_OVER: Final[int]
"""Answer of `RetainedGift.some`: the session has all of them, or is gone."""
RETAINED_MORE: Final[int]
"""Answer: there are more, for the next turn."""
RETAINED_WAIT: Final[int]
"""Answer: its client is slow, and its queue long; try again some milliseconds later."""

@final
class RetainedGift:
    """Retained messages on their way to a session, flagged as such; expired ones are left out."""

    def __init__(
        self, store: RetainedStore, filter: bytes, queue: Queue, granted: int, subscription_id: int
    ) -> None: ...
    def some(self) -> int:
        """Give as many as a portion allows. Returns: RETAINED_OVER, _MORE or _WAIT."""

    def stop(self) -> None:
        """No more are wanted. Idempotent."""

SESSION_CHANGES: Final[dict[str, int]]
"""What a packet id of a session does, by name: RECEIVED, RELEASED (the client's, of QoS 2); SENT,
REC, DONE (ours: sent, its PUBREC has come, free)."""

class SessionLog(SessionSink):
    """What sessions of MQTT keep beside their queues and bindings, in files.

    A change is written at the end of the turn. What cannot be written stays and is tried again;
    channels that wait for the disk are refused until then.

    Args:
        loop: whose tick writes the files.
        directory: the virtual host's, less than 4030 bytes.
        file_size: bytes at which a file is finished.
    Raises: ValueError when the path is too long. A method with a client id raises KeyError when it
        has no session, and ValueError when the log is closed.
    Source: docs/formats.md, decision 0086.
    """

    def __init__(self, loop: Loop, directory: str, file_size: int = ...) -> None: ...
    def __len__(self) -> int:
        """Sessions."""

    def __contains__(self, client_id: bytes, /) -> bool:
        """Whether a client has a session."""

    @property
    def memory(self) -> int:
        """Bytes of memory."""

    @property
    def file_bytes(self) -> int:
        """Bytes of all files."""

    def load(self) -> list[str]:
        """Read the files; to be called once, before anything else. Blocks.

        Returns: what was damaged, for the log.
        Raises: OSError; ValueError for a file of a later version: the log must not be used then.
        """

    @property
    def is_in_doubt(self) -> bool:
        """Whether `settle` has something to look at: messages of QoS 2 came shortly before the
        end."""

    def settle(
        self, queues: list[Queue], retained: RetainedStore | None
    ) -> list[tuple[bytes, int]]:
        """Forget the received ids of messages that a loss of power has kept from the disk. To be
        called once, behind `load`; `secure` before anything is published.

        Args: queues: all durable ones of the virtual host, loaded; retained: loaded, or None.
        Returns: client and id of each.
        Raises: OSError when there is no memory.
        """

    def secure(self) -> None:
        """Have all that was noted on disk before this returns: at a start, before messages come to
        places that it speaks of. Blocks. Raises: OSError; what was noted stays to be written.
        """

    def client_ids(self, at: int, n: int) -> tuple[list[bytes], int]:
        """Up to n clients that have sessions, from a place on, 0 at first.

        Returns: them, and the next place; -1: there are no more.
        """

    def times(self, client_id: bytes) -> tuple[int, int]:
        """Seconds that the session outlives its client (2**32-1: for ever), and when that went,
        Unix milliseconds; 0: it is there."""

    def set_times(self, client_id: bytes, expiry_s: int, left_ms: int) -> None:
        """Keep both. Raises: OSError."""

    def facts(self, client_id: bytes) -> dict[bytes, bytes]:
        """All that is kept of a session by `set_fact`."""

    def fact(self, client_id: bytes, key: bytes) -> bytes | None:
        """What is kept under a key."""

    def set_fact(self, client_id: bytes, key: bytes, value: bytes | None) -> None:
        """Keep a value under a key, or nothing any more.

        Raises: OSError, EFBIG above 4 MiB for a session; ValueError.
        """

    def packets(self, client_id: bytes) -> tuple[list[int], list[tuple[int, int, int]], list[int]]:
        """Packet ids in use: those received; id, segment and position of those sent, but for those
        of `taken`; those released, whose PUBCOMP is awaited."""

    def taken(self, client_id: bytes) -> list[tuple[int, int, int, int, int, int, int, int]]:
        """Messages of shared subscriptions that were being sent with QoS 2: the packet id; segment
        and position in the queue of the session, 0 = it was not moved there; key of the queue where
        it was, its mark, segment and position there; the identifier of the subscription."""

    def key(self, queue: Queue) -> int:
        """What stands for a queue in `taken`."""

    def note(self, client_id: bytes, change: int, id: int, seg: int = 0, pos: int = 0) -> None:
        """Keep a change of a packet id. Args: change: of SESSION_CHANGES; seg, pos: where the
        message is that was sent; of a received one the turn, and bits of its places, 0 = none.
        Raises: OSError, ValueError."""

    def make(self, client_id: bytes) -> None:
        """A session begins, with nothing of an earlier one of this client. Raises: OSError."""

    def end(self, client_id: bytes) -> None:
        """A session has ended. Raises: OSError."""

    def flush(self) -> None:
        """Write what was noted since the last turn. Raises: OSError; it stays."""

    def synced(self, callback: Callable[[], object]) -> None:
        """Call `callback()` on the loop once all that was noted so far is on disk; as long as that
        cannot be written it is not called."""

    def on_synced(self) -> None:
        """A sync has ended. Called by the loop."""

    def retry(self) -> None:
        """Write what had not to be written at once, and what could not be. To be called once a
        second."""

    @property
    def is_due(self) -> bool:
        """Whether most of the files is what does not count, and `compact_some` is to be called."""

    def compact_some(self) -> bool:
        """Write sessions anew for a portion; once all are on disk the older files go.

        Returns: whether there is more. Raises: OSError; the older files stay.
        """

    def compacted(self, floor: int) -> None:
        """What counts of the files below a number is on disk elsewhere. Called by the loop."""

    def superseded(self, floor: int) -> None:
        """That the files below a number do not count is on disk, too. Called by the loop."""

    def take_news(self) -> int | None:
        """errno of the last write when it differs from that at the last call, 0 = it went well."""

    def close(self) -> None:
        """Write and sync what there is, let go of all. Raises: OSError. Idempotent."""

    def release(self) -> None:
        """Let go of all without writing: the files go. Idempotent."""

def siphash128(key: bytes, data: bytes) -> bytes:
    """SipHash-2-4 with 16 bytes of output. For tests only.

    Raises: ValueError for a key that has not 16 bytes.
    """

class Queue:
    """The messages of one queue: segment files, what is unacked, and who can take one.

    To remove one: unbind it everywhere, cancel its consumers, `delete`, remove the directory.
    After `close` or `delete` it stays usable as an argument and holds nothing.

    Args:
        loop: the loop it belongs to.
        directory: absolute path of its files, at most 4000 bytes; made when first needed.
        segment_size: bytes at which a segment file is finished.
        durable: whether messages are written to their file at the end of each tick.
        name: for what tells of the death of its messages, at most 255 bytes.
        vhost: where its dead letters find their exchange; without one they are gone.
        max_priority: highest level of a priority queue; -1 for any other queue.
        is_stream: whether consuming leaves messages where they are.

    Raises: ValueError when the path or the name is too long.
    """

    @property
    def dedup(self) -> DedupCache | None:
        """What set_dedup got."""

    def __init__(
        self,
        loop: Loop,
        directory: str,
        segment_size: int,
        durable: bool,
        *,
        name: bytes = b"",
        vhost: Vhost | None = None,
        max_priority: int = -1,
        is_stream: bool = False,
    ) -> None: ...
    @property
    def is_followed(self) -> bool:
        """Whether `follow` has given it a sample."""

    def follow(self, sample: Sample | None) -> None:
        """Have messages that arrive pass a sample, as long as it wants any; None ends that."""

    def set_dedup(self, cache: DedupCache) -> None:
        """Drop duplicates from now on; the cache stays the caller's to close."""

    def set_features(
        self,
        *,
        max_length: int = ...,
        max_bytes: int = ...,
        overflow: int = ...,
        ttl_ms: int = -1,
        delivery_limit: int = -1,
        target: bytes | None = None,
        target_key: bytes | None = None,
    ) -> None:
        """Replace what the queue does beyond handing out messages in order; acts at once.

        Args:
            max_length: ready messages; max_bytes: bytes of their records; UNLIMITED = no limit.
            overflow: a value of OVERFLOW.
            ttl_ms: time to live of each message, -1 = none.
            delivery_limit: deliveries after the first one, -1 = any number.
            target: exchange of dead letters; target_key: their routing key, None = their own.
        Source: docs/protocol.md.
        """
    def set_stream_limits(
        self, *, max_length: int = ..., max_bytes: int = ..., max_age_ms: int = -1
    ) -> None:
        """Replace what a stream keeps, and remove the oldest segments that are beyond it: some at
        once, others in the next turns of the loop.

        Args: max_length: messages; max_bytes: of their records; max_age_ms: -1 = none. Raises:
            TypeError when it is no stream.
        """

    @property
    def first_offset(self) -> int:
        """Of a stream: the lowest offset that can be read, or `next_offset` when it is empty."""

    @property
    def next_offset(self) -> int:
        """Of a stream: the offset of the next message."""

    @property
    def damaged_offsets(self) -> tuple[int, int]:
        """Of a stream that was loaded: the offset behind the first damage in a segment whose
        messages had to be counted, and the offset from which on messages may have had others
        before; (0, 0): there is no such damage."""

    @property
    def synced(self) -> tuple[int, int, int]:
        """Of a stream: offset, segment and position behind the last message that is on disk; that
        is written, when nothing waits for the disk."""

    def ask_sync(self, callback: Callable[[], object]) -> bool:
        """Of a stream: have what it holds brought to the disk, or a part of it when that is much.

        Returns: whether `callback()` follows; there is nothing to sync else, or it cannot be now.
        Raises: OSError.
        """

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """Of a stream: number and first offset of each part of its life between two ends without
        order, by rising number; the last one is now. Assigned after loading, before `open`."""

    @epochs.setter
    def epochs(self, value: list[tuple[int, int]]) -> None: ...
    @property
    def n_offsets(self) -> int:
        """Of a stream: how many stored offsets there are at most."""

    def stored_offset(self, tag: bytes) -> int:
        """Of a stream: where the consumer of a tag goes on reading, 0 = nothing is stored."""

    def newest_offsets(self, n: int) -> list[bytes]:
        """Of a stream: the tags of `n` stored offsets at most, the newest commit comes first."""

    @property
    def created(self) -> str:
        """Of a stream: what tells it from others of its name, empty when that is not known."""

    @created.setter
    def created(self, value: str) -> None:
        """At most 47 bytes of ASCII; `load` finds it as the name of the file `created.<value>`."""

    @property
    def span(self) -> tuple[int, int, int]:
        """Of a stream: segments, when the oldest message was stored, the latest such time in the
        newest segment with messages; Unix milliseconds, 0 when it is empty."""

    def segments(
        self, after: int = 0, most: int = 0xFFFFFFFF
    ) -> list[tuple[int, int, int, int, int, int]]:
        """Of a stream: id, messages, bytes, first offset, first and last time of its segments.

        Times are Unix milliseconds, 0 while it is empty. The newest segment is written to.

        Args: after: an id, only those above it; most: how many.
        """

    def offset_at(self, at_ms: int, offset: int = 0) -> tuple[int, bool]:
        """Of a stream: the offset of the first message stored at that time (Unix ms) or later, or
        `next_offset` when there is none; and whether that is the result: else call again with the
        offset, after others have had their turn. Raises: OSError.
        """

    def store_offset(self, tag: bytes, offset: int) -> bool:
        """Of a stream: have a consumer tag go on reading at an offset, or forget it with 0.

        What is forgotten is gone from the disk when the file has been written anew.
        Returns: False, and does nothing, while a consumer of that tag is there.
        Raises: ValueError when it is no stream, closed, or the tag is none.
        """

    @property
    def is_offsets_due(self) -> bool:
        """Of a stream: whether the file of its offsets should be written anew, and nobody does."""

    def begin_offsets(self) -> bytes:
        """Of a stream whose offsets are due: what to write to `consumer_offsets.tmp` beside the
        file, to sync, and to hand over by `end_offsets`. Raises: ValueError when they are not due.
        """

    def end_offsets(self, written: int) -> None:
        """That file, of so many bytes, is on disk: it takes the place of the old one, with what has
        been stored since. Negative: it could not be written. Raises: OSError.
        """

    def finish_segments(self) -> bool:
        """Of a stream: begin to cut the filling of finished segments, which is done after a sync.

        Returns: whether there were any.
        """

    def end_segment(self, seg_id: int) -> None:
        """The sync that `finish_segments` has asked for is done."""

    def load(
        self,
        entries: dict[str, Entry] | None = None,
        *,
        is_synced: bool = False,
        is_held: bool = False,
    ) -> list[str]:
        """Read the segments that the directory holds; to be called once, before anything else.

        Args: entries: of the directory; None: nobody has looked yet. What is removed is taken out.
            is_synced: of a stream, whether an orderly stop has brought its files to the disk;
            is_held: whether it stays closed until `open`.
        Returns: a line for each left-over or wrong file that was put right.
        Raises: OSError, or ValueError for what is no segment of this schema version below 4 GiB;
            both name the file. The queue `is_closed` from then on, its files are untouched.
        Source: docs/formats.md.
        """

    def open(self) -> None:
        """Serve what was loaded and held."""

    def forget(self) -> None:
        """Let go of what `load` has read, as if nobody had; files stay. Of a queue that is not
        served yet."""

    def restart(self, *, is_held: bool = False) -> list[str]:
        """All of a `Restart` at once. Returns: its notes. Raises: what it raises."""

    def take_damage(self) -> list[tuple[str, int, int]]:
        """Path, first and last position + 1 of damages in segments found since the last call."""

    def compact(self, done: Callable[[], object] | None = None) -> bool:
        """Begin to give back the disk space of deleted messages in a finished segment that other
        messages keep. Returns: whether there is one to do; the rest follows in portions and after
        syncs, and `done` is called when it is over.
        Source: docs/formats.md."""

    def reach(self) -> bool:
        """Go to the next message, past what is deleted in front of it, for as long as others can
        wait. Returns: False when it takes another turn of the loop: call again then."""

    def release_some(self) -> bool:
        """Release what waits in a delayed exchange's queue now, whenever it is due, for a few
        milliseconds. Returns: whether to call again; for want of memory or descriptors some may
        stay."""

    def pending(self, n: int) -> list[tuple[int, bytes, int]]:
        """(Unix ms when due, routing key, bytes of the record) of the n messages of a delayed
        exchange's queue that are released next, in that order. For people: sorts them all."""

    def close(self) -> None:
        """Write everything out, sync it, let go of files and memory. Idempotent; blocks.

        Deliveries still unacked stay messages. Raises: OSError naming the directory.
        """

    @property
    def directory(self) -> str:
        """The path of its files."""

    @property
    def n_segments(self) -> int:
        """Segments of all its stores, each of which has up to three files."""

    def delete(self) -> bool:
        """Forget all messages, let go of files and memory; the directory is left. Idempotent.

        Returns: whether there can be files in it.
        """

    def purge(self) -> int:
        """Delete the ready messages in one go; `Purge` does the same while others are served.

        Returns: how many there were.
        """

    @property
    def ready(self) -> int:
        """Messages that can be delivered, or are `parked`, or large and on their way elsewhere."""

    @property
    def ready_bytes(self) -> int:
        """Bytes of their records: properties, names and bodies."""

    @property
    def unacked(self) -> int:
        """Messages delivered and not settled."""

    @property
    def unacked_bytes(self) -> int:
        """Bytes of their records."""

    @property
    def consumers(self) -> int:
        """Consumers registered on it."""

    @property
    def lost(self) -> int:
        """Records that could not be read and were given up, since start."""

    @property
    def read_error(self) -> int:
        """errno of the last read that failed, 0 = none. The message stays; it is tried again."""

    @property
    def write_error(self) -> int:
        """errno of the last write, 0 = it went well."""

    @property
    def failed_file(self) -> str:
        """Path of the file that the last failed write was for; empty when there was none."""

    @property
    def is_stuck(self) -> bool:
        """The disk has no room for it: its messages wait in memory, and are written later."""

    @property
    def is_closed(self) -> bool:
        """The files could not be read or written: publishes are refused, gets are empty."""

    @property
    def is_paused(self) -> bool:
        """Nothing is delivered and gets are empty; publishes are accepted."""

    @is_paused.setter
    def is_paused(self, value: bool) -> None: ...
    @property
    def consumer_timeout_ms(self) -> int:
        """How long a delivery may stay unacked before its channel is closed, 0 = for ever."""

    @consumer_timeout_ms.setter
    def consumer_timeout_ms(self, value: int) -> None: ...
    @property
    def missed(self) -> int:
        """Publishes while it was closed, of which nobody was told."""

    @property
    def parked(self) -> int:
        """Messages that are to go to other queues, one of which could not be written; they are
        tried again twice a second, and count as ready."""

    @property
    def refuser(self) -> bytes:
        """The name of a queue that has not taken what is parked; empty when there is none."""

    @property
    def returned(self) -> int:
        """Messages since start that a `Move` had moved, and that are ready again, because the
        other queue could not be written."""

    def take_missed(self) -> int:
        """`missed`, which begins anew."""

    def take_broken(self) -> bool:
        """Whether a failed write has closed it since the last call."""

    def counters(self) -> dict[str, int]:
        """Messages since start: publish, deliver, deliver_no_ack, get, get_no_ack, deliver_get (the
        sum of these four), ack, redeliver, reject, dedup (duplicates that were not stored)."""

class Vhost:
    """The exchanges of one virtual host, and its epoch: what links know of them holds until it
    moves."""

    def add(self, name: bytes, exchange: Exchange) -> None:
        """Have dead letters find an exchange by its name."""

    def remove(self, name: bytes) -> None:
        """The exchange of that name is gone."""

    def touch(self) -> None:
        """An exchange or a permission has changed: links ask again before they publish."""

    def counters(self) -> dict[str, int]:
        """Messages of all its channels since start, those that have gone included: the names of
        `Link.channel_counters`. A message routed to several queues was published once."""

class Subscription:
    """What a session asks for with a filter: the destination of a binding to FILTERS.

    Args:
        queue: of the session, or of a shared subscription.
        qos: the highest that it gets.
        no_local: it gets nothing that the link of the same session has published.
        retain_as_published: RETAIN stays as it was published.
        subscription_id: 0 for none.
        is_apart: it gets nothing that comes over the bridge of the exchange.
    Raises: ValueError for numbers that are none of these.
    """

    def __init__(
        self,
        queue: Queue,
        qos: int,
        no_local: bool = False,
        retain_as_published: bool = False,
        subscription_id: int = 0,
        is_apart: bool = False,
    ) -> None: ...

class Exchange:
    """The compiled bindings of one exchange, and its counters.

    Args:
        kind: a value of kinds().
        seed: of its hash tables, and of what is random; its low 64 bits count, and they should be
            random.
        default_any: HEADERS only: whether a binding without `x-match` means "any".
        is_jump: HASH only: jump hashing instead of a ring.
        hash_header, hash_property: HASH only: the header to hash instead of the routing key, or a
            value of HASH_PROPERTIES.
    """

    is_internal: bool
    """Whether clients may not publish to it; to be set before it is used."""

    @property
    def dedup(self) -> DedupCache | None:
        """What set_dedup got."""

    def __init__(
        self, kind: int, seed: int, default_any: bool = False, is_jump: bool = False,
        hash_header: bytes | None = None, hash_property: int = 0,
    ) -> None: ...  # fmt: skip
    def bind(
        self, key: bytes, arguments: bytes, destination: Queue | Exchange | Subscription
    ) -> None:
        """Add a binding; one that is there already stays one. For random and modulus it is the same
        as any other to that destination: count them. For FILTERS the destination is a Subscription,
        which is copied; it takes the place of what its queue has bound with the same filter.

        Args: arguments: content of a field table without its length; b"" unless HEADERS or HASH;
            for HASH behind the name of the destination as a short string.
        Raises: ValueError with a text for clients for an `x-match` that is neither "all" nor "any",
            for a malformed table, for HASH for a key that is no weight, or weights too large, and
            for FILTERS for what is no filter, or one with wildcards and more than 200 levels.
        """

    def unbind(
        self, key: bytes, arguments: bytes, destination: Queue | Exchange | Subscription
    ) -> None:
        """Remove the binding with these very bytes; one that is not there is no error. For FILTERS
        the destination is the queue, or any Subscription of it.

        Raises: ValueError for HASH for a key that is no weight.
        """

    def set_delayed(self, name: bytes, delayed: Queue | None) -> None:
        """Have messages with a header `x-delay` wait in a queue until they are due, and be routed
        then as if they were published to this exchange, whose name is given. None ends that.
        The vhost's epoch must move."""

    def end_delay(self) -> None:
        """Have nothing wait from now on; the queue goes on releasing what does, until
        `set_delayed`. The vhost's epoch must move."""

    def set_history(self, history: Queue, most: int) -> None:
        """Keep the newest `most` messages, HISTORY_MAX at most, for `Replay`; once, before it is
        used. The queue is for nothing else: nothing is stored in it."""

    @property
    def is_followed(self) -> bool:
        """Whether `follow` has given it a sample."""

    def follow(self, followed: Queue | None, sample: Sample | None) -> None:
        """Have messages pass a sample, as long as it wants any, by way of a queue that is for
        nothing else; None twice ends that. The vhost must be touched afterwards."""

    @property
    def n_kept(self) -> int:
        """Messages that are kept for who is bound later."""

    def set_alternate(self, alternate: Exchange | None) -> None:
        """Where messages go that match nothing. The vhost must be touched afterwards."""

    def set_bridge(self, name: bytes, peer: Exchange | None, vhost: Vhost) -> None:
        """Share topics with an exchange of AMQP of that name, where '/' and '.' are exchanged in
        them; None ends that. What is published there reaches subscriptions here, and the other
        way what clients of MQTT publish who may. Raises: ValueError: this one is not of FILTERS."""

    def counters(self) -> dict[str, int]:
        """Messages since start: publish_in, publish_out (one per queue), unroutable, dedup
        (duplicates that were not routed)."""

    def set_dedup(self, cache: DedupCache) -> None:
        """Do not route duplicates from now on; the cache stays the caller's to close."""

class Consumer:
    """A registered consumer; made by `Link.add_consumer`."""

    @property
    def tag(self) -> bytes:
        """Its consumer tag."""

    @property
    def unacked(self) -> int:
        """Deliveries of this consumer that are not settled; 0 once it is cancelled."""

    @property
    def prefetch(self) -> int:
        """How many deliveries it may hold, 0 = any number."""

    def read_stream(
        self, start: str | int | tuple[int], *, is_tracked: bool = False,
        uses_stored: bool = False, conditions: list[tuple[Any, ...]] | None = None,
        is_any: bool = False, takes_unfiltered: bool = False, end: int = 0,
        tells_time: bool = False, tells_epoch: bool = False,
    ) -> None:  # fmt: skip
        """Say how a consumer of a stream reads; to be called before `start`.

        Args:
            start: "first", "last" (the newest segment), "next", an offset (a negative one: so many
                messages before the end), or a time in Unix milliseconds as a tuple of one.
            is_tracked: whether what it acknowledges is kept under its tag.
            uses_stored: whether what is kept under its tag counts more than `start`.
            conditions: what a message has to fulfil; see `arguments/stream.py`.
            is_any: whether one of them is enough.
            takes_unfiltered: whether messages without a filter value are wanted anyway.
            end: the first offset that is not wanted, 0 = there is none; `Session.on_stream_end`
                follows the last delivery.
            tells_time: whether deliveries have the header x-stream-timestamp.
            tells_epoch: whether they have the header x-stream-epoch.

        Raises: ValueError when its queue is no stream, or it was told before.
        """

    def start(self) -> None:
        """Let deliveries begin: consume-ok has been written, and it is this one's turn."""

    def cancel(self) -> None:
        """End it. Its deliveries stay unacked on the channel. Idempotent."""

@final
class Protocol:
    """What the peer of a link speaks. One for each protocol; others cannot be made in Python."""

AMQP: Final[Protocol]
"""AMQP 0-9-1."""
MQTT: Final[Protocol]
"""MQTT 3.1, 3.1.1 and 5, for MqttLink."""

class Wire:
    """The socket half of a connection: reads, sends, keeps what is left of a frame, takes turns.

    It knows no protocol; Link, the session half, says what is in the bytes.

    Args:
        loop: the loop it belongs to.
        fd: a connected, non-blocking socket; it stays the caller's to close, after `close`, unless
            it calls `own`.
        protocol: what its peer speaks.
    """

    session: Session
    """Who decides; to be set before `start`."""
    connected_at_ms: Final[int]
    """When it was made, in Unix milliseconds."""

    def __init__(self, loop: Loop, fd: int, protocol: Protocol) -> None: ...
    def own(self) -> None:
        """The descriptor is its own from now on: `cut` and `close` close it."""

    def end_output(self) -> None:
        """Nothing more is sent: the peer sees the end of what was. Raises: OSError."""

    def start(self, timeout_s: float) -> None:
        """Begin to read; `set_timeout(timeout_s)` guards the handshake."""

    def set_timeout(self, timeout_s: float) -> None:
        """Call `session.on_timeout` in so many seconds, to about one; 0 = never.

        Each call replaces the one before.
        """

    def close(self) -> None:
        """Stop, requeue what is unacked, drop unsent output, free everything. Idempotent."""

    @property
    def state(self) -> int:
        """One of STATE_HEADER, STATE_HANDSHAKE, STATE_OPEN, STATE_CLOSING, STATE_CLOSED."""

    @state.setter
    def state(self, value: int) -> None: ...
    @property
    def received_bytes(self) -> int:
        """Bytes read from the socket."""

    @property
    def sent_bytes(self) -> int:
        """Bytes that the kernel has taken."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes of output that the kernel has not taken yet."""

    def pause(self) -> None:
        """Keep frames unwalked, and stop reading, until `resume`."""

    def resume(self) -> None:
        """Walk what was kept, and read on; does nothing unless paused."""

    def hold(self) -> None:
        """Keep frames unwalked until the disk has room; the answer to `Session.on_held`."""

    def drain(self) -> None:
        """Read and walk what the kernel has received already; stops when the link is not open.

        To be called before the link is closed on purpose.
        """

    def write(self, data: bytes) -> None:
        """Append whole frames to the output; they leave in order, at the end of the iteration.

        Dropped when the link is closed or there is no memory for them.
        """

    def flush(self) -> None:
        """Send now what is there, as far as the kernel takes it."""

    def on_more(self) -> None:
        """Read what TLS holds already. Called by the event loop."""

    def on_readable(self) -> None:
        """Read once and walk the frames; the event loop calls it."""

    def on_writable(self) -> None:
        """The kernel has room again: send on; the event loop calls it."""

    def cut(self) -> None:
        """Let go of the socket: nothing is read, sent or delivered any more. `close` follows."""

class Link(Wire):
    """One connection: reads and walks frames, keeps its channels, writes and sends frames.

    publish, ack, nack, reject and deliveries happen inside; all else is a call to the session.
    Methods that take a channel `id` raise KeyError when it is not open, unless they say otherwise.
    Source: docs/protocol.md.

    Args:
        loop: the loop it belongs to.
        fd: a connected, non-blocking socket; it stays the caller's to close, after `close`.
        protocol: what its peer speaks.
    """

    def __init__(self, loop: Loop, fd: int, protocol: Protocol) -> None: ...
    def use_tls(self, tls: Tls) -> None:
        """Read and write by way of `tls`, whose handshake is over; before `start`."""

    @property
    def is_paused(self) -> bool:
        """Whether it waits for `resume`."""

    def set_limits(self, frame_max: int, max_message_size: int, heartbeat_s: float) -> None:
        """Set what was negotiated; until then frames are small and messages impossible.

        Args: frame_max: bytes, not 0; max_message_size: bytes of a body; heartbeat_s: 0 = none.
        """

    def set_vhost(self, vhost: Vhost) -> None:
        """Whose epoch guards `learn`; to be called before STATE_OPEN."""

    def set_user(self, name: bytes, is_impersonator: bool) -> None:
        """The login that a message's user-id must equal, unless it may publish as anybody."""

    def learn(self, name: bytes, exchange: Exchange) -> None:
        """This connection may publish to the exchange, with any routing key, until the vhost's
        epoch moves.

        Raises: ValueError for a name above 255 bytes.
        """

    def allow(self, kind: int, name: bytes, keys: list[bytes], exchange: Exchange | None) -> None:
        """The answer yes to one question of `Session.on_route_miss`, until the vhost's epoch moves.

        Args: keys: as asked; empty with ASK_KIND_LETTER: the exchange may be named with any key;
            exchange: None while there is none of that name.
        Raises: ValueError for no question.
        """

    def open_channel(self, id: int, prefetch: int) -> None:
        """Open a channel.

        Args: id: 1 to 65535; prefetch: limit of each consumer to come, 0 = none.
        Raises: ValueError when the id is out of range or open.
        """

    def close_channel(self, id: int, is_awaiting_close_ok: bool) -> None:
        """Requeue the channel's unacked deliveries and free it.

        When close-ok is awaited the id stays taken and frames on it are discarded, until the second
        call. Cancel its consumers before.
        """

    def set_prefetch(self, id: int, count: int, is_global: bool) -> None:
        """basic.qos: unacked messages per consumer, or shared by the channel; 0 = no limit."""

    def prefetch(self, id: int) -> tuple[int, int]:
        """Limits of unacked messages: of each consumer to come, and shared; 0 = none."""

    def select_confirms(self, id: int) -> None:
        """confirm.select: publishes are numbered and confirmed from now on."""

    def stop_deliveries(self) -> None:
        """Deliver nothing more on any channel."""

    def set_flow(self, id: int, active: bool) -> None:
        """channel.flow from the client: pause or resume deliveries to its consumers."""

    def select_transactions(self, id: int) -> None:
        """tx.select: publishes and settlements on the channel are kept from now on."""

    def commit(self, id: int) -> tuple[int, bytes, list[bytes]] | bool | None:
        """tx.commit: carry out what is kept; None when done, see `Loop.after_sync` for the disk.

        Returns True when it goes on in the next turn of the loop: then call again, and `pause`
        meanwhile. Returns False when it goes on once all that it has stored is on disk
        (`Loop.after_sync`): the same; when a queue breaks before that, call `rollback`. Returns a
        question instead, as `Session.on_route_miss` gets it, having changed nothing, when that must
        be answered first: then call again. Raises: ValueError, having changed nothing, when a
        message has no string where its exchange hashes on a header, or when a closed queue or a
        full one would refuse one. QueueClosedError: a queue has broken by it; a part of what it
        publishes may be lost, and nothing is settled.
        """

    @property
    def is_committing(self) -> bool:
        """Whether a commit is being carried out, which has to come to its end."""

    @property
    def is_awaiting_publishes(self) -> bool:
        """Whether a commit settles nothing yet because what it publishes is not on disk."""

    def rollback(self, id: int) -> None:
        """tx.rollback: forget what is kept; settled deliveries are unacked again."""

    def set_reply_address(self, id: int, address: bytes) -> None:
        """What `reply_to` becomes on this channel when it names the pseudo-queue of direct replies.

        Args: address: at most 63 bytes; empty when nobody consumes replies (such a publish is 406).
        """

    def recover(self, id: int, requeue: bool) -> None:
        """basic.recover: requeue what is unacked, or deliver it again to its consumers."""

    def unacked(self, id: int) -> int:
        """Deliveries on the channel that are not settled."""

    def channel_counters(self, id: int) -> dict[str, int]:
        """Messages on the channel since it was opened: publish, confirm, deliver, deliver_no_ack,
        get, get_no_ack, deliver_get (the sum of these four), ack, reject, redeliver (counted as
        deliver or get, too), return_unroutable."""

    def add_consumer(
        self, id: int, queue: Queue, tag: bytes, no_ack: bool, priority: int = 0
    ) -> Consumer:
        """Register a consumer; it gets nothing before its `start`.

        Args: priority: 32 bits, signed; messages go to the highest that can take them.
        Raises: ValueError for a tag above 255 bytes.
        """

    def get(self, id: int, queue: Queue, no_ack: bool) -> bool:
        """basic.get: write get-ok with the next message. Returns: False when there is none."""

    def unacked_of(
        self, id: int, queue: Queue, after: int, most: int
    ) -> list[tuple[int, bytes | None, int]]:
        """Deliveries of a queue that the channel has not settled, by rising tag.

        Args: after: only those with higher tags; most: and no more than so many.
        Returns: delivery tag, consumer tag (None for basic.get) and age in whole seconds of each.
        """

class QueueClosedError(Exception):
    """A publish or a commit was refused, or lost: a queue cannot be written."""

@final
class FarBody:
    """The body of a large message, or the beginning of it, which is read from its file by slices.
    Raises: OSError, when it cannot be."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> bytes: ...

@final
class TableText:
    """The JSON text of a field table, as an iterator of pieces that take some 0.1 ms each.

    Bytes are base64, timestamps RFC 3339, what is not finite is null; an entry that is there twice
    comes twice. Args: content: without its length. Raises: ValueError, where it is no table.
    """

    def __new__(cls, content: bytes) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> bytes: ...

class LocalChannel:
    """A channel without a connection, for management. `close` requeues what it has not settled.

    Args: vhost: whose exchanges it publishes to; user, is_impersonator: as of `Link.set_user`.
    """

    def __init__(self, loop: Loop, vhost: Vhost, user: bytes, is_impersonator: bool) -> None: ...
    def close(self) -> None:
        """Let go of all. Idempotent."""

    def publish(
        self,
        exchange: Exchange,
        name: bytes,
        key: bytes,
        props: bytes,
        body: bytes | bytearray,
        is_awaited: bool = True,
    ) -> tuple[int, bool, bool]:
        """Publish as a client would, to an exchange of that name.


        The caller knows that the user may, also to the exchange of a dead letter that the headers
        name, and that the disk has room.
        Args: name, key: at most 255 bytes; props: property flags and properties, wire order;
            is_awaited: whether the caller wants to know that it is safe.
        Returns: 0 or a row of the tables in amqp/walk_errors.py, nothing is published then; whether
            a queue took it and none that is full refused it; whether it has to be waited for by
            `Loop.after_sync`.
        Raises: ValueError when it is closed, or a name or the body (2 GiB) is too long;
            QueueClosedError when a queue that the message goes to is closed: no other has got it,
            unless that queue has broken by it.
        """

    def publish_some(
        self, exchange: Exchange, name: bytes, key: bytes, props: bytes, body: bytes | bytearray
    ) -> tuple[int, bool, bool] | None:
        """Publish in portions: None says that this one is over, and that the same call goes on.

        Until the last one nothing is sure; `close` ends it in between. All else as in `publish`.
        """

    def take(
        self, queue: Queue, most: int, truncate: int, is_look: bool
    ) -> tuple[int, bool, bytes, bytes, bytes, int, bytes | FarBody, int] | int | None:
        """Take the next message of a queue, paused or not; it is unacked then.

        Args: most: bytes that properties, names and the shown part of the body may have; truncate:
            bytes of the body that are shown; is_look: it is going to be requeued: does not count
            against a delivery limit.
        Returns: None when there is none, or the queue is a stream, closed or internal; the bytes
            needed when they are more than `most`, and nothing is taken then; else tag, whether
            redelivered, exchange, key, properties as for `publish`, bytes of the body, the shown
            ones, messages left.
        """

    def settle(self, tag: int, requeue: bool, is_ack: bool) -> None:
        """Acknowledge a message, put it back, or discard it. Raises: ValueError."""

    def unacked_of(
        self, queue: Queue, after: int, most: int
    ) -> list[tuple[int, bytes | None, int]]:
        """As `Link.unacked_of`."""

SEEN_MORE: Final[int]
"""Answer of `Browse.step`: the portion is over."""
SEEN_OVER: Final[int]
"""There are no more."""
SEEN_COLD: Final[int]
"""What comes next has to be read by a thread first, see `Browse.cold`."""
SEEN_WIDE: Final[int]
"""The next one takes more bytes than an answer may have: `Browse.needed`."""
SETTLED_GONE: Final[int]
"""Answer of `Chosen.settle`: the message is not there, or not ready, any more."""
SETTLED_DONE: Final[int]
SETTLED_LATER: Final[int]
"""The portion is over: call again with the same."""
SETTLED_COLD: Final[int]
"""As SEEN_COLD; then call again with the same."""
SETTLED_REFUSED: Final[int]
"""The other queue cannot take it."""

@final
class Wanted:
    """Which messages a Browse shows.

    Args: key, text: what the routing key and the body have to have in them; a body above 1 MiB is
        not looked into; header: one that has to be there; value: what it has to be, None: anything.
    """

    def __init__(
        self, key: bytes = b"", text: bytes = b"", header: bytes = b"", value: bytes | None = None
    ) -> None: ...

@final
class Sample:
    """Some of the messages that pass what is followed. Args: most_body: bytes of a body."""

    def __init__(self, most_body: int = 0) -> None: ...
    @property
    def seen(self) -> int:
        """Messages that have passed what is followed, since it is."""

    def take(self, n: int, room: int) -> list[tuple[int, bytes, bytes, bytes, int, bytes]]:
        """What was kept since the last time; from now on keep `n` messages of `room` bytes at most.
        Nothing is kept before the first call.

        Returns: when it passed in Unix milliseconds, exchange, routing key, properties, bytes of
        the body, the beginning of it.
        """

@final
class Browse:
    """A walk over what is ready in a queue, in the order of delivery; it changes nothing.

    Args: skip: messages that are passed over first; from_ms: those stored before are, too, Unix
        milliseconds, 0 = none; at: a place where another walk has stopped.
    """

    def __init__(
        self,
        queue: Queue,
        wanted: Wanted,
        skip: int = 0,
        from_ms: int = 0,
        at: tuple[int, bool, int, int] | None = None,
    ) -> None: ...
    scanned: int
    """Messages that were looked at, without those that were passed over."""
    needed: int
    """Bytes that the message needs for which there was no room."""
    def step(self, n: int, most: int, truncate: int) -> tuple[list[Any], int]:
        """Up to n messages more, for as long as others can wait.

        Args: most: bytes that they may have in all; truncate: bytes of a body that are shown.
        Returns: rows, and one of the SEEN_ constants. A row: (level, segment, position, digest), of
            a stream (offset, digest); whether redelivered; exchange; routing key; properties as for
            `LocalChannel.publish`; bytes of the body; the shown ones; when it was stored in Unix
            milliseconds; deliveries that count against a delivery limit.
        Raises: OSError.
        """

    def cold(self) -> tuple[int, int, int]:
        """A descriptor, which is the caller's, position and bytes to read. Raises: OSError."""

    def place(self) -> tuple[int, bool, int, int]:
        """Where it goes on, for another walk."""

    def rest(self) -> None:
        """Let go of memory and descriptors until the next step."""

class Chosen:
    """Messages that were seen are deleted, moved or copied, one after the other.

    Args: to: the queue that they go to, None: they are deleted; is_copy: they stay as well.
    """

    def __init__(self, queue: Queue, to: Queue | None = None, is_copy: bool = False) -> None: ...
    def settle(self, level: int, seg: int, pos: int, digest: int) -> int:
        """Do it with the one at that place; by rising level, segment, position is cheapest.

        Returns: one of the SETTLED_ constants. What was moved is safe after `Loop.after_sync`; what
            came back is counted by `Queue.returned`. Raises: OSError.
        """

    def copy(self, offset: int, digest: int) -> int:
        """Copy the message of a stream at that offset; by rising offsets.

        Returns: as `settle`, never SETTLED_COLD. Raises: OSError; TypeError unless it is a copy.
        """

    def cold(self) -> tuple[int, int, int]:
        """As `Browse.cold`."""

    def rest(self) -> None:
        """As `Browse.rest`."""

def read_stream(
    queue: Queue, offset: int, n: int, most: int, truncate: int
) -> tuple[list[tuple[int, bool, bytes, bytes, bytes, int, bytes | FarBody]], int, int]:
    """Read messages of a stream, for as long as others can wait (a quarter of a MiB, about).

    Args: offset: of the first one, or the next that is there; n: at most so many; most, truncate:
        as of `LocalChannel.take`, for all together.
    Returns: rows as of `LocalChannel.take` with offsets for tags; where to go on, `next_offset` at
        the end; the bytes that the message there needs when these are more than are left, else 0.
    Raises: OSError; TypeError when it is no stream.
    """

def raw_records(queue: Queue, offset: int, end: int) -> tuple[bytes, int, int, int, int]:
    """A block of the records of a stream, about 256 KiB; format: `cext/door/stream_raw.pyx`.

    Args: offset: of the first one, or the next that is there; end: below this offset.
    Returns: the block; where to go on; segment, position and bytes of the rest of the last record,
        which `raw_rest` gives, 0 bytes unless it is large. The block is empty at the end, and when
        others have to have their turn: then where to go on is `offset`.
    Raises: OSError; TypeError when it is no stream.
    """

def raw_rest(queue: Queue, seg_id: int, pos: int, n: int) -> bytes | None:
    """Up to n bytes of a segment, 256 KiB at most; None when it is gone. Raises: OSError."""

class StoredOffsets(Iterator[list[tuple[bytes, int]]]):
    """Of a stream: where consumers go on reading, tags and offsets, some at a time; the oldest
    commit comes first. What is committed meanwhile may come twice, the later counts."""

    def __init__(self, queue: Queue) -> None: ...
    def __next__(self) -> list[tuple[bytes, int]]: ...

def view_segments(queue: Queue, segments: list[tuple[int, int, int, int, int, int]]) -> None:
    """Take over finished segments of a stream on a loop that `is_reading`, by rising numbers: their
    number, bytes, messages, first offset (lower than the next one: that), first and last time.

    Raises: TypeError, ValueError, MemoryError.
    """

def view_begin(queue: Queue, segment: int, first: int) -> None:
    """A segment of such a stream begins with an offset, which is the next one or higher. Raises:
    TypeError, MemoryError."""

def view_reached(queue: Queue, segment: int, end: int) -> bool:
    """A segment, maybe a new one, may be read up to a position in its file.

    Returns: False when there is more to count: call again. What is no whole message is not shown,
    and neither is anything behind it. Raises: TypeError, OSError.
    """

def view_forgotten(queue: Queue, segment: int) -> None:
    """The segments of such a stream up to this one have gone after their time, but for the last.
    Raises: TypeError."""

def raw_end(offset: int) -> bytes:
    """The block without records that ends an answer, with the offset to go on with."""

class RetainedSink:
    """Who keeps retained messages on disk, for `MqttLink.mqtt_open`."""

class SessionSink:
    """Who keeps sessions on disk, for `MqttLink.mqtt_open`."""

class MqttLink(Link):
    """A connection that speaks MQTT.

    The first packet has to be CONNECT. Until `mqtt_open` only AUTH and DISCONNECT follow; from then
    on PUBLISH, its acknowledgements and PINGREQ are answered here. The session hears, besides
    `on_held`, `on_released`, `on_lost`, `on_timeout` and `on_unreadable` as of any Link:

    * `on_packet(kind: int, flags: int, body: bytes)`: CONNECT, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT
      or AUTH, without its fixed header. Who answers later calls `pause` and `resume`.
    * `on_packet_error(reason: int, text: str)`: a packet is refused, with a reason code of MQTT 5:
      tell the client, where the version has a word for it, and close.
    * `on_topic_miss(kind: int, topic: bytes)`: a publish to a topic that was not asked about; kind
      is 0. It is tried again when this returns: answer with `mqtt_allow`, or close.

    `set_limits` says for how long the client may be silent: here that is exact.
    """

    def mqtt_open(
        self,
        version: int,
        session: Queue,
        exchange: Exchange,
        *,
        receive_maximum: int = 65535,
        receive_maximum_in: int = 65535,
        alias_maximum_in: int = 0,
        alias_maximum_out: int = 0,
        maximum_packet_out: int = ...,
        maximum_packet_in: int = ...,
        checks_topics: bool = False,
        crosses: bool = False,
        is_persistent: bool = False,
        retained: RetainedSink | None = None,
        log: SessionSink | None = None,
    ) -> None:
        """Begin the session, behind CONNACK: publishes are taken and messages delivered.

        Args:
            version: 3, 4 or 5.
            session: its queue, of which this becomes a consumer.
            exchange: of FILTERS, to which the client publishes.
            receive_maximum: messages of QoS 1 and 2 that the client takes unacknowledged.
            receive_maximum_in: those that are taken of it; of version 5 one more is a mistake.
            alias_maximum_in, alias_maximum_out: topic aliases of the client, and for it.
            maximum_packet_out: bytes of a packet that the client takes; larger ones are dropped.
            maximum_packet_in: bytes behind the fixed header of a packet of the client.
            checks_topics: whether `on_topic_miss` is asked.
            crosses: whether publishes go over the bridge of the exchange; where `on_topic_miss` is
                asked its answer says so.
            is_persistent: whether the session outlives the connection.
            retained, log: who keeps retained messages and sessions, if anybody.
        Raises: ValueError for numbers that are none of these.
        """

    @property
    def is_asleep(self) -> bool:
        """Whether its client sends nothing and gets nothing: it has no channel then."""

    def mqtt_close(self) -> None:
        """End the session: what is unacknowledged goes back to its queue and keeps its packet ids.
        The rest of what the client sends is passed over."""

    def mqtt_allow(self, topic: bytes, is_allowed: bool, crosses: bool = False) -> None:
        """Answer `on_topic_miss`: yes holds until the vhost's epoch moves, and with `crosses` also
        for AMQP behind the bridge; no drops the message, and has it acknowledged, with 0x87 where
        there are reason codes."""

    def mqtt_cross(self, crosses: bool, checks_topics: bool) -> None:
        """Rights have changed: these are so from now on, see `mqtt_open`."""

    def mqtt_take(self, queue: Queue, tag: bytes, qos: int, subscription_id: int = 0) -> Consumer:
        """Become a consumer of a queue or a stream of AMQP under that tag; it has to be started.
        With QoS 0 nothing is acknowledged; not for streams. Its `cancel` ends that.
        Raises: ValueError for a tag of more than 250 bytes."""

    def mqtt_share(self, queue: Queue, qos: int, subscription_id: int = 0) -> Consumer:
        """Become a member of the shared subscription with this queue; it has started. Its `cancel`
        ends that."""

    def mqtt_counters(self) -> dict[str, int]:
        """Numbers of an open session: `publish` and `denied` of the connection, `dropped` of the
        session, and packet ids in use: `in_flight` of ours, `received` of the client's."""

def mqtt_connect(
    body: bytes,
) -> tuple[
    str | None,
    bytes | None,
    int,
    int,
    int,
    bytes | None,
    str | None,
    bytes | None,
    str | None,
    bytes | None,
    str | None,
    bytes | None,
]:
    """Read what is behind the fixed header of a CONNECT.

    Returns: what is wrong with it or None, and its fields: name and level of the protocol, flags,
        keep alive; properties, client identifier; properties, topic and payload of the will; user
        name, password. None: there is no such field; all behind the flags where something is wrong.
        The name is None as well where not even the level is there.
    """

class MqttPublish(Iterator[None]):
    """A message of the broker itself on its way to all that an exchange of FILTERS matches; each
    step is a portion. Args and errors as those of `mqtt_publish`."""

    def __new__(
        cls,
        loop: Loop,
        exchange: Exchange,
        topic: bytes,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: bytes = b"",
        expiry_s: int = -1,
        crosses: bool = False,
    ) -> Self: ...
    def __next__(self) -> None:
        """Go on for as long as others can wait."""

def mqtt_publish(
    loop: Loop,
    exchange: Exchange,
    topic: bytes,
    payload: bytes,
    qos: int,
    retain: bool,
    properties: bytes = b"",
    expiry_s: int = -1,
    crosses: bool = False,
) -> int:
    """Publish a message of the broker itself to an exchange of FILTERS, in one go.

    Args: properties: encoded as in MQTT 5, without their length, alias, expiry and subscription
        identifiers; expiry_s: -1 for none; crosses: also over its bridge.
    Returns: how many sessions and queues have got it. Who keeps retained messages is not told.
    Raises: ValueError for what is no topic or QoS.
    """

def mqtt_enqueue(
    queue: Queue,
    topic: bytes,
    payload: bytes,
    qos: int,
    retain: bool,
    properties: bytes = b"",
    expiry_s: int = -1,
    granted: int = 2,
    subscription_id: int = 0,
) -> bool:
    """Give one message to one session, with the lower QoS. Returns: whether it was taken, by the
    client or the queue. The rest as `mqtt_publish`."""

def mqtt_restore(
    queue: Queue, received: list[int], sent: list[tuple[int, int, int]], released: list[int]
) -> list[int]:
    """Have a session go on with packet ids from before a restart.

    Args: received: of messages of QoS 2 that came, and whose PUBREL is awaited; sent: with segment
        and position of the messages that were in flight, of those of QoS 2 with the highest bit
        of the segment set; released: whose PUBCOMP is awaited.
    Returns: those of messages of QoS 2 that are not in the files, or were another queue's: their
        PUBCOMP is awaited, too, which the log has to know before a message comes to their place.
    """

def mqtt_restore_taken(
    queue: Queue, exchange: Exchange, log: SessionLog,
    taken: list[tuple[int, int, int, int, int, int, int, int]], sources: dict[int, Queue],
) -> list[int]:  # fmt: skip
    """Have a session go on with messages of shared subscriptions that its client was being sent:
    they move to its queue, unless they have.

    Args: exchange: to which sessions are bound; log: that of the session; taken: as it says;
        sources: queues of shared subscriptions, by their keys.
    Returns: ids of messages that are nowhere, as of `mqtt_restore`.
    """

def mqtt_drop_taken(
    exchange: Exchange, log: SessionLog,
    taken: list[tuple[int, int, int, int, int, int, int, int]], sources: dict[int, Queue],
) -> bool:  # fmt: skip
    """Have messages of shared subscriptions end with a session that has, whose client was being
    sent them. Args: those of mqtt_restore_taken.

    Returns: whether any was there: files say that it is deleted, which a sync has to cover yet.
    """

def vanish(destination: Queue | Exchange | Subscription) -> None:
    """Have no routing take it any more, whatever is bound to it; then `Vhost.touch`."""

def is_gone(destination: Queue | Exchange | Subscription) -> bool:
    """Whether it has vanished."""

class Restart(Iterator[None]):
    """Reads the files of a closed queue again, a segment in each step; its consumers have gone.

    Acks of what it had delivered do nothing any more: those messages are ready again. The queue is
    served behind the last step, unless it `is_held` until `open`.
    Raises: ValueError when it is not closed, or no longer; what `load` raises: it is closed then.
    """

    notes: list[str]
    """A line for each thing put right so far."""

    def __init__(self, queue: Queue, *, is_held: bool = ...) -> None: ...
    def __next__(self) -> None: ...
    def offsets(self) -> bytes | None:
        """Of a stream that is held, once all is read: what the file of stored offsets is to hold
        before it is opened, to be written to `consumer_offsets.tmp` and synced; None: it does."""

    def take_offsets(self, written: int) -> None:
        """That file of so many bytes is on disk: it takes its place. Raises: OSError; ValueError
        when the queue was deleted or restarted meanwhile."""

class Purge(Iterator[int]):
    """The deletion of what is ready in a queue when it begins; what is published later stays.

    Each step does a portion of about a millisecond, and returns how many have gone so far. The
    queue's deletion ends it, too.

    Args:
        most: so many of the oldest only; a stream loses whole segments, all but the newest.
        portion_ns: time of a step.
    """

    purged: int
    """Messages that have gone so far."""

    def __init__(self, queue: Queue, most: int = ..., portion_ns: int = ...) -> None: ...
    def __next__(self) -> int: ...

class Replay(Iterator[int]):
    """What an exchange has kept goes to a destination that is being bound to it: each message is
    published once more, to that queue, or that exchange.

    Each step does a portion of about a millisecond, and returns how many have come so far. At the
    end nothing that was published is missing: the destination is to be bound at once. The deletion
    of either ends it, too.

    Args:
        portion_ns: time of a step, which publishes one message at least.
    """

    replayed: int
    """Messages that have come so far."""

    def __init__(
        self, source: Exchange, destination: Queue | Exchange, portion_ns: int = ...
    ) -> None: ...
    def __next__(self) -> int: ...
    def stop(self) -> None:
        """End it."""

class Mover:
    """What is ready in a queue goes on to the end of another, as the default exchange would publish
    it there, for as long as the queue has a consumer. In the old queue each goes when it is on disk
    in the new one; what the new one refuses stays.

    Args: left: how many are to go on; None: all that come.
    Raises: ValueError for a stream, a queue of MQTT or of a delayed exchange, or the same queue.
    """

    def __init__(self, source: Queue, to: Queue, left: int | None = None) -> None: ...
    def close(self) -> None:
        """Move nothing more. Idempotent."""

    def kick(self) -> None:
        """Try again what was refused."""

    @property
    def is_refused(self) -> bool:
        """Whether the other queue has not taken the last one."""

    @property
    def is_over(self) -> bool:
        """Whether all have gone that were to."""

    @property
    def is_cut(self) -> bool:
        """Whether one of the queues is gone or closed."""

    def counts(self) -> tuple[int, int, int]:
        """Messages that went, their bytes in segments, attempts that were refused."""

class Move:
    """Messages from the head of a queue go to the end of another, as the default exchange would
    publish them there. In the old queue each goes when it is on disk in the new one.

    A large message goes in portions. It is ready in the old queue until the last one.
    """

    def __init__(self, source: Queue, to: Queue) -> None: ...
    def some(self, n: int) -> int | None:
        """Move up to n messages.

        Returns: how many: fewer when there are no more, or the other is full and refuses publishes,
            or cannot be written; None when the portion is over before the next one has gone, or
            older ones are on their way back: to be called again. `Loop.after_sync` says when they
            are safe; those that are not are ready again then, and counted in `Queue.returned`.
        """
