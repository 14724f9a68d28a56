"""How a node's files become those of its leader, while that serves: a comparison, and what differs.

The leader gives a snapshot. For each of its files the follower says how much it has of it and the
SHA-256 of that; when the leader's file begins with the same, only the rest is sent. A file that the
leader knows to be as it was when the follower had everything is not read at all; one that the
follower knows to be damaged comes as a whole. What comes is put beside the files, in `.joining`;
only when all of it is there, on disk, are they replaced, which may be begun again after a loss of
power. Both halves stand here, so that they can be read together. Blocking sockets, in threads.
Source: docs/clustering.md.

    leader   {"files": [[path, size], ...]}, [path, size, true] of one that is the same:
                                                   some at a time, {"files": []} behind the last
    follower {"have": [n, sha256 of the first n bytes]}    for each of these; [size, "same"]
    leader   {"from": byte or -1, "size": bytes} and the bytes behind `from`, for each
    leader   {"directories": [path, ...]}          some at a time, {"directories": []}
    follower {"staged": true}
    leader   {"place": true}
    follower {"placed": true}
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import orjson

from lavinmq import _core
from lavinmq.cluster.frames import Connection, PeerError, items, number, receive, send, some
from lavinmq.files.gradual import LITTLE, Gradual, on_disk
from lavinmq.files.snapshot import OWN, Snapshot
from lavinmq.files.standing import Standing
from lavinmq.integrity.guard import Guard
from lavinmq.integrity.sums import BLOCK
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.integrity.keeper import Integrity

STAGE: Final = ".joining"
PLAN: Final = "plan"
"""In the stage: what is to be done with the files in it. It comes last."""
FILES_AT_ONCE: Final = 64
BYTES_AT_ONCE: Final = 256 << 20
"""The follower reads so much before it takes the first of them, while the leader waits."""
SAME: Final = "same"
PATHS_AT_ONCE: Final = 1000
PIECE: Final = 1 << 20
MAX_PATH: Final = 4095
_log = log.get("lmq.cluster")
NOT_SENT: Final = OWN | {"schema_version"}


class StageFailed(OSError):
    """What comes finds no place on this node's disk."""


class SyncFailed(OSError):
    """Nobody knows what is on the disk: to try again would not tell."""


@contextmanager
def staging() -> Iterator[None]:
    """What is done in the stage. Raises: StageFailed; SyncFailed, as it is."""
    try:
        yield
    except SyncFailed:
        raise
    except OSError as error:
        raise StageFailed(error.errno, error.strerror) from None


class _Staging:
    """A file of the stage while it comes: all of it is written, however little the disk takes at
    once. Its methods raise StageFailed, SyncFailed."""

    def __init__(self, path: str) -> None:
        with staging():
            self._file = open(path, "xb")  # noqa: SIM115 - closed by `__exit__`
        self._gradual = Gradual(self._file, _sync_file)

    def __enter__(self) -> _Staging:
        return self

    def __exit__(self, *_: object) -> None:
        with staging():
            self._file.close()

    def write(self, data: bytes) -> None:
        """Write what comes next."""
        with staging():
            self._gradual.write(data)

    def end(self) -> None:
        """All of it has come."""
        with staging():
            self._gradual.end()


def _sync_file(file: BinaryIO) -> None:
    """As `on_disk`. Raises: SyncFailed."""
    try:
        on_disk(file)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, file.name) from None


def _sync(root: str) -> None:
    """Have all on disk. Raises: SyncFailed."""
    try:
        _core.sync_file_system(root)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, root) from None


# ---- the leader's half


class Offered(NamedTuple):
    """A file of the leader's. Args: link: where its bytes are; is_same: a follower that had
    everything once has it as it is."""

    path: str
    link: str
    size: int
    is_same: bool


def offer(
    sock: Connection, snapshot: Snapshot, is_same: Callable[[str], bool],
    integrity: Integrity | None = None,
) -> int:  # fmt: skip
    """Send what a follower has not got.

    Args: is_same: whether a file has not been changed since the follower had everything;
    integrity: the sums of the leader's files.
    Returns: bytes sent. Raises: OSError, PeerError; DamagedError: what would be sent is not what
    was stored.
    """
    n_bytes = 0
    for files in _portions(snapshot, is_same):
        send(sock, {"files": [
            [each.path, each.size, True] if each.is_same else [each.path, each.size]
            for each in files
        ]})  # fmt: skip
        for each in files:
            n_bytes += _offer_file(sock, each, receive(sock).get("have"), integrity)
    send(sock, {"files": []})
    for paths in _batches(snapshot.directories(), PATHS_AT_ONCE):
        send(sock, {"directories": paths})
    send(sock, {"directories": []})
    return n_bytes


def staged(sock: Connection) -> None:
    """Wait until the follower has all of it on disk. Raises: OSError, PeerError."""
    if receive(sock).get("staged") is not True:
        raise PeerError("it does not say that it has all")


def _portions(snapshot: Snapshot, is_same: Callable[[str], bool]) -> Iterator[list[Offered]]:
    """Files that are offered together."""
    files: list[Offered] = []
    n_bytes = 0
    for path, held in snapshot.files():
        if path in NOT_SENT:
            continue
        one = Offered(path, held.link, max(snapshot.size_of(path), 0), is_same(path))
        n_read = 0 if one.is_same else one.size
        if files and (len(files) == FILES_AT_ONCE or n_bytes + n_read > BYTES_AT_ONCE):
            yield files
            files, n_bytes = [], 0
        files.append(one)
        n_bytes += n_read
    if files:
        yield files


def _offer_file(sock: Connection, offered: Offered, have: Any, integrity: Integrity | None) -> int:
    size = offered.size
    if not (isinstance(have, list) and len(have) == 2 and isinstance(have[0], int)
            and isinstance(have[1], str) and 0 <= have[0] <= size):  # fmt: skip
        raise PeerError("it tells of a file what makes no sense")
    n, digest = have
    if digest == SAME:
        if not offered.is_same or n != size:
            raise PeerError("it takes a file for the same that nobody said to be")
        send(sock, {"from": -1, "size": 0})
        return 0
    with open(offered.link, "rb", buffering=0) as file:
        guard = Guard(integrity, offered.path)
        begin = n if _digest(file.fileno(), n, guard.look) == digest else 0
        if begin == size and digest:
            send(sock, {"from": -1, "size": 0})
            return 0
        send(sock, {"from": begin, "size": size - begin})
        at = begin
        if not begin and n:
            guard = Guard(integrity, offered.path)  # it is read once more
        while at < size:
            # Up to the end of a block: it is looked at before it goes.
            piece = os.pread(file.fileno(), min(PIECE - at % BLOCK, size - at), at)
            # It has been cut since: the change that says so comes later, and cuts the copy.
            piece = piece or bytes(min(PIECE, size - at))
            guard.look(piece)
            sock.sendall(piece)
            at += len(piece)
        return size - begin


def _batches(values: Iterable[Any], n: int) -> Iterator[list[Any]]:
    left = iter(values)
    while batch := list(islice(left, n)):
        yield batch


def _digest(fd: int, n: int, look: Callable[[bytes], object] = len) -> str:
    """The SHA-256 of the first n bytes; of a file that is shorter, of what there is. Args: look:
    sees all of them."""
    digest, at = hashlib.sha256(), 0
    while at < n:
        piece = os.pread(fd, min(PIECE, n - at), at)
        if not piece:
            break
        look(piece)
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()


# ---- the follower's half


class Staged(NamedTuple):
    """What is to be done with one file. Args: name: in the stage, of what comes at `begin`; empty:
    nothing comes. size: that it has in the end."""

    path: str
    name: str
    begin: int
    size: int


class Copy:
    """A follower's files on their way to those of its leader.

    Args: integrity: knows which of them are damaged; trusts: whether what is read of the files is
        on the disk; else all of them come anew.
    """

    def __init__(
        self, root: str, integrity: Integrity | None = None, *, trusts: bool = True
    ) -> None:
        self._root = root
        self._integrity = integrity
        self._trusts = trusts
        self._stage = os.path.join(root, STAGE)
        self._files: list[Staged] = []
        self._directories: list[str] = []
        self.n_same = self.n_compared = 0
        """Files of the leader's that it had as they were, and others that it had."""

    def take(self, sock: Connection) -> int:
        """Put all that differs into the stage. Returns: bytes that came. Raises: OSError,
        StageFailed, SyncFailed, PeerError; the files are as they were."""
        remove_stage(self._root)
        with staging():
            os.mkdir(self._stage, 0o700)
        n_bytes = 0
        while files := items(receive(sock), "files"):
            wanted = list(map(_offered, files))
            for path, size, is_same in wanted:
                send(sock, {"have": self._have(path, size, is_same)})
            for path, size, _ in wanted:
                n_bytes += self._take_file(sock, path, size)
        while paths := items(receive(sock), "directories"):
            self._directories += map(_path, paths)
        plan = {"files": [list(each) for each in self._files], "directories": self._directories}
        with _Staging(os.path.join(self._stage, PLAN)) as file:
            file.write(orjson.dumps(plan))
        _sync(self._root)
        send(sock, {"staged": True})
        return n_bytes

    @classmethod
    def begun(cls, root: str, integrity: Integrity | None = None) -> Copy | None:
        """What was to be placed when the process ended, None if it has not come as a whole.
        Raises: OSError."""
        copy = cls(root, integrity)
        try:
            with open(os.path.join(copy._stage, PLAN), "rb") as file:
                plan = orjson.loads(file.read())
            copy._files = [Staged(*each) for each in plan["files"]]
            copy._directories = plan["directories"]
        except (FileNotFoundError, orjson.JSONDecodeError, TypeError, KeyError):
            return None
        return copy

    def _have(self, path: str, size: int, is_same: bool) -> list[Any]:
        """How much there is of a file of the leader's, and its digest."""
        if not self._trusts or (self._integrity is not None and path in self._integrity.damages):
            return [0, ""]
        place = os.path.join(self._root, path)
        try:
            fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return [0, ""]
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                return [0, ""]
            if is_same and found.st_size == size:
                self.n_same += 1
                return [size, SAME]
            self.n_compared += 1
            n = min(found.st_size, size)
            return [n, _digest(fd, n)]
        except OSError:
            return [0, ""]  # it cannot be read: it is replaced
        finally:
            os.close(fd)

    def _take_file(self, sock: Connection, path: str, size: int) -> int:
        head = receive(sock)
        if head.get("from") == -1:
            self._files.append(Staged(path, "", size, size))
            return 0
        begin, n = number(head, "from"), number(head, "size")
        if begin + n != size:
            raise PeerError(f"{path} has another size than it was said to have")
        name = str(len(self._files))
        with _Staging(os.path.join(self._stage, name)) as file:
            left = n
            while left:
                piece = some(sock, left)
                file.write(piece)
                left -= len(piece)
            file.end()
        self._files.append(Staged(path, name, begin, size))
        return n

    def place(self) -> None:
        """Make the files those of the leader. It may be done again from the beginning, as long as
        the stage is there. Raises: OSError, SyncFailed: they are between two states."""
        wanted = {each.path for each in self._files}
        directories = {*self._directories, *filter(None, map(os.path.dirname, wanted))}
        self._clear("", wanted, directories)
        for path in sorted(directories):
            with suppress(FileExistsError):
                os.mkdir(os.path.join(self._root, path), 0o750)
        for each in self._files:
            self._place(each)
        _sync(self._root)

    def _clear(self, path: str, wanted: set[str], directories: set[str]) -> None:
        """Remove what the leader does not have."""
        with os.scandir(os.path.join(self._root, path)) as entries:
            for entry in list(entries):
                below = f"{path}/{entry.name}" if path else entry.name
                if not path and (entry.name.startswith(".") or entry.name in NOT_SENT):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if below in directories:
                        self._clear(below, wanted, directories)
                    else:
                        self._touch(below, is_directory=True)
                        shutil.rmtree(entry.path)
                elif below not in wanted:
                    self._touch(below)
                    os.unlink(entry.path)

    def _place(self, staged: Staged) -> None:
        place = os.path.join(self._root, staged.path)
        source = os.path.join(self._stage, staged.name)
        is_changed = bool(staged.name) or os.stat(place).st_size != staged.size
        if is_changed:
            self._touch(staged.path)
        self._put(staged, source, place)
        if is_changed:
            self._touch(staged.path)  # in between it may have been looked at

    @staticmethod
    def _put(staged: Staged, source: str, place: str) -> None:
        if staged.name and staged.begin == 0:
            with suppress(FileNotFoundError):  # it is there already
                os.chmod(source, 0o640)
                os.replace(source, place)
            return
        with open(place, "r+b") as file:  # all of it, however little the disk takes at once
            if staged.name:
                file.seek(staged.begin)
                with open(source, "rb", buffering=0) as come:
                    while piece := come.read(PIECE):
                        file.write(piece)
            file.truncate(staged.size)
            if staged.size - staged.begin >= LITTLE:
                _sync_file(file)

    def _touch(self, path: str, *, is_directory: bool = False) -> None:
        """Have the sums forgotten of what is about to be replaced."""
        if self._integrity is not None:
            self._integrity.touch(path, is_directory=is_directory)


def remove_stage(root: str) -> None:
    """Remove what a join has left that did not come to its end."""
    shutil.rmtree(os.path.join(root, STAGE), ignore_errors=True)


def finish(
    root: str, standing: Standing, integrity: Integrity | None = None,
    on_replaced: Callable[[], object] = bool,
) -> None:  # fmt: skip
    """Go on with what an end of the process, or an error, came between; if that is not possible,
    the files stay between two states, and the next join replaces them. Raises: OSError.

    Args: on_replaced: is called before files are replaced, and afterwards.
    """
    begun = None if standing.is_whole else Copy.begun(root, integrity)
    if begun is not None:
        on_replaced()
        try:
            begun.place()
        except OSError as error:
            _log.error("the files are not whole: %s: %s", error.filename, error.strerror)
        else:
            on_replaced()
            standing.note(is_whole=True)
    remove_stage(root)


def _offered(value: Any) -> tuple[str, int, bool]:
    """Path, size, and whether it is the same. Raises: PeerError."""
    if not (isinstance(value, list) and len(value) in (2, 3) and isinstance(value[1], int)
            and value[1] >= 0):  # fmt: skip
        raise PeerError("a file without a size")
    return _path(value[0]), value[1], value[2:] == [True]


def _path(value: Any) -> str:
    """A path below the data directory that is no node's own. Raises: PeerError."""
    if not isinstance(value, str) or not value or len(value.encode(errors="replace")) > MAX_PATH:
        raise PeerError("a path that is none")
    parts = value.split("/")
    if (
        value.startswith(".") or parts[0] in NOT_SENT or "\0" in value
        or any(part in ("", ".", "..") for part in parts)
    ):  # fmt: skip
        raise PeerError(f"a path that leads elsewhere: {value[:200]!r}")
    return value


def placed(sock: Connection) -> None:
    """The leader's last step: have the files replaced. Raises: OSError, PeerError."""
    send(sock, {"place": True})
    if receive(sock).get("placed") is not True:
        raise PeerError("it does not say that its files are replaced")
