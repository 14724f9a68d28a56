"""A follower's connection to its leader, in a thread: greets, joins, and follows until it ends.

The thread sleeps in the kernel nearly all the time; the node hears of what happens by `on_event`,
on its loop. Source: docs/clustering.md.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lavinmq._cluster import BlockReceiver, Follower, Ring
from lavinmq.cluster import frames, speech
from lavinmq.cluster.certificates import NoTlsError
from lavinmq.cluster.frames import Connection, Link, PeerError
from lavinmq.cluster.history import History
from lavinmq.cluster.joining import (
    Copy,
    StageFailed,
    SyncFailed,
    finish,
    remove_stage,
    staging,
)
from lavinmq.cluster.spool import Spool
from lavinmq.files.standing import Standing
from lavinmq.integrity.damage import MOST
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.cluster.certificates import Certificates
    from lavinmq.integrity.keeper import Integrity

CONNECT_S: Final = 3.0
JOIN_S: Final = 60.0
FIRST_PAUSE_S: Final = 0.02
AGAIN_S: Final = 0.3
STAGE_S: Final = 10.0
"""The longest pause of a node whose disk has no place for what comes when it joins. Each attempt
has the leader take a snapshot."""
FULL_S: Final = 1.0
"""After which a node looks whether its disk has room again."""
SPOOL: Final = ".joining.changes"
PORT: Final = 5679
SCHEMES: Final = ("tcp", "tls")
"""Of an advertised URI. Which one it is says nothing: the settings say whether nodes speak TLS."""
_log = log.get("lmq.cluster")


def address_of(uri: str) -> tuple[str, int]:
    """Host and port of an advertised URI. Raises: ValueError."""
    with suppress(ValueError):  # says which part of it is none, not what is wanted
        parts = urlsplit(uri if "//" in uri else f"tcp://{uri}")
        if parts.scheme in SCHEMES and parts.hostname:
            return parts.hostname, parts.port or PORT
    raise ValueError(f"{uri!r} is no tcp://host:port, nor tls://host:port")


class Following:
    """Follows one leader until it is stopped.

    Args: certificates: by which the leader has to speak TLS, None: it speaks without; key: by
        which etcd knows who leads at that address, empty: nobody does; asked by the thread;
        on_dead: is told, by `call`, of which key there is no process; on_disk: that nobody knows
        what is on the disk; has_readers: the leader is to say what all nodes have.
    """

    def __init__(
        self, uri: str, me: str, secret: bytes, ring: Ring, root: str, standing: Standing,
        history: History, *, certificates: Certificates | None, call: Callable[..., object],
        key: Callable[[], str], on_dead: Callable[[str], object], on_disk: Callable[[str], object],
        integrity: Integrity | None = None, has_readers: bool = False,
    ) -> None:  # fmt: skip
        self.uri = uri
        self.history = history
        self.is_joined = False
        """Whether it has all that its leader had when it came."""
        self.error = ""
        """Why it does not follow, for people; empty: it does."""
        self.follower: Follower | None = None
        """While it follows, or comes near."""
        self._is_clear = False
        """Whether it speaks without TLS, although it has certificates."""
        self._address = address_of(uri)
        self._me = me
        self._secret = secret
        self._ring = ring
        self._root = root
        self._standing = standing
        self._certificates = certificates
        self._call = call
        self._key = key
        self._on_dead = on_dead
        self._on_disk = on_disk
        self._integrity = integrity
        self._has_readers = has_readers
        self._greeted_at = 0.0
        """Before it has said last how its files stand."""
        self._is_over = threading.Event()
        self._socket: socket.socket | None = None
        self._replaying: Spool | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    @property
    def is_encrypted(self) -> bool:
        """Whether it speaks with the leader, or tries to, by TLS."""
        return self._certificates is not None and not self._is_clear

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for that: nothing is changed any more."""
        self._is_over.set()
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            if self._replaying is not None:
                self._replaying.abort()
        self._thread.join()

    def again(self) -> None:
        """Begin anew: how the files stand has changed. From any thread."""
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def beat(self) -> None:
        """Have the leader hear that this node is there, whatever its disk does. From any thread."""
        follower = self.follower
        if follower is not None:
            follower.beat()

    def _run(self) -> None:
        pause_s = stage_s = FIRST_PAUSE_S
        while not self._is_over.is_set():
            was_clear = self._is_clear
            key = self._key()  # before: who leads listens, and another one may lead meanwhile
            try:
                self._once()
                pause_s = stage_s = FIRST_PAUSE_S
                continue  # it followed: at once again, to learn whether there is still somebody
            except ConnectionRefusedError as error:
                self._say(str(error.strerror))
                self._call(self._on_dead, key)
            except SyncFailed as error:
                self._failed("disk", error.strerror or str(error))
            except StageFailed as error:
                self._say(f"what comes finds no place on the disk: {error.strerror}")
                remove_stage(self._root)  # others have the room meanwhile
                stage_s = min(2 * stage_s, STAGE_S)
                self._is_over.wait(stage_s)
                continue
            except (OSError, PeerError) as error:
                self._say(frames.words(error))
                if isinstance(error, NoTlsError) and self._may_be_clear():
                    self._is_clear = True  # once: TLS comes first each time
                    continue
            except RuntimeError as error:  # no thread can be started that it needs
                self._say(str(error))
            except Exception as error:  # noqa: BLE001 - another attempt may succeed
                _log.exception("a mistake of the node's own")
                self._say(f"a mistake of its own: {error}")
            finally:
                self._is_clear = self._is_clear and not was_clear
            self._is_over.wait(pause_s)
            pause_s = min(2 * pause_s, AGAIN_S)

    def _say(self, why: str) -> None:
        if why != self.error and not self._is_over.is_set():
            _log.warning("does not follow %s: %s", self.uri, why)
        self.error = why

    def _once(self) -> None:
        """Connect, and follow until the connection ends. Raises: OSError, PeerError."""
        finish(self._root, self._standing, self._integrity, self._ring.replaced)
        sock = socket.create_connection(self._address, CONNECT_S)
        with sock:
            with self._lock:
                if self._is_over.is_set():
                    return
                self._socket = sock
            try:
                with self._connection(sock) as connection:
                    self._speak(connection)
            finally:
                with self._lock:
                    self._socket = None

    def _connection(self, sock: socket.socket) -> Link:
        """What is said goes by this. Raises: OSError, PeerError."""
        frames.tune(sock)
        if self._certificates is None or self._is_clear:
            return sock
        return self._certificates.connect(sock, self._address[0])

    def _may_be_clear(self) -> bool:
        return self._certificates is not None and self._certificates.is_optional

    def _speak(self, sock: Link) -> None:
        self._greeted_at = time.time()
        frames.greet_leader(sock, self._secret)
        frames.send(sock, {
            "id": self._me, **speech.spoken(), "epoch": self.history.at(self._ring.head),
            "position": self._ring.head, "whole": self._standing.is_good,
            "damaged": self._n_damaged(), "at_least": self._standing.at_least,
            "readers": self._has_readers, "beats": True,
        })  # fmt: skip
        sock.settimeout(JOIN_S)
        answer = frames.receive(sock)
        # One that says nothing of itself speaks number 1, and is refused by that.
        in_blocks = speech.agreed({"version": "", **answer}) >= speech.BLOCKS
        if answer.get("join") is True:
            self._join(sock, in_blocks=in_blocks)
            return  # and from there it goes on
        history = History.of_json(answer.get("history"))
        _log.info("follows %s from position %d", self.uri, self._ring.head)
        if self._is_clear:
            _log.warning("follows %s without TLS, which is optional here", self.uri)
        sock.settimeout(None)
        self._follow(sock, history, in_blocks=in_blocks, beats=answer.get("beats") is True)

    def _n_damaged(self) -> int:
        """How many files are known to be damaged, if all others are whole; else 0."""
        integrity = self._integrity
        if integrity is None or not self._standing.is_whole or not self._standing.is_damaged:
            return 0
        n = len(integrity.damages)
        return n if n < MOST else 0  # what is more is not remembered

    def _join(self, link: Link, *, in_blocks: bool) -> None:
        """Have the files be those of the leader, and what it has changed meanwhile."""
        began = time.monotonic()
        sock: Connection = BlockReceiver(link) if in_blocks else link
        ticket = frames.receive(sock)
        # One that is not whole may hold what it reads in memory only: its last sync has failed.
        copy = Copy(self._root, self._integrity, trusts=self._standing.is_whole)
        spool = self._spool(frames.text(ticket, "ticket"), in_blocks=in_blocks)
        try:
            answer = self._copy(sock, copy, began)
            self._replay(spool, answer)
        finally:
            spool.release()

    def _spool(self, ticket: str, *, in_blocks: bool) -> Spool:
        """Have what is changed from now on come into a file. Raises: OSError, StageFailed,
        PeerError."""
        sock = socket.create_connection(self._address, CONNECT_S)
        try:
            connection = self._connection(sock)
            frames.greet_leader(connection, self._secret)
            frames.send(connection, {"id": self._me, "spool": ticket})
            connection.settimeout(None)
            source: Connection = BlockReceiver(connection) if in_blocks else connection
            with staging():
                return Spool(source, os.path.join(self._root, SPOOL))
        except BaseException:
            sock.close()
            raise

    def _replay(self, spool: Spool, answer: dict[str, Any]) -> None:
        """Make again what has been changed meanwhile. Raises: OSError, PeerError."""
        history = History.of_json(answer.get("history"))
        self._ring.reset(frames.number(answer, "position"))
        follower = self.follower = self._follower()
        try:
            with self._lock:
                self._replaying = None if self._is_over.is_set() else spool
            kind, why = "lost", "it ends"
            if self._replaying is not None:
                kind, why = spool.replay(follower, frames.number(answer, "until"))
            if kind == "there":
                try:
                    follower.sync()
                except OSError as error:  # a sync that has failed cannot be tried again
                    kind, why = "disk", error.strerror or str(error)
                else:
                    self.history = history
        finally:
            with self._lock:
                self._replaying = None
            self._close(follower)
        if kind != "there" and spool.failure is not None:
            raise StageFailed(spool.failure.errno, spool.failure.strerror)
        if kind != "there":
            self._failed(kind, why)

    def _follower(self) -> Follower:
        fd = -1 if self._integrity is None else self._integrity.touches_fd
        return Follower(self._ring, self._root, fd)

    def _close(self, follower: Follower) -> None:
        self.follower = None
        if follower.is_incomplete and self._integrity is not None:
            self._integrity.missed()
        follower.close()

    def _copy(self, sock: Connection, copy: Copy, began: float) -> dict[str, Any]:
        """Have the files be those that the leader had. Returns: what it says then."""
        since = self._greeted_at
        n_bytes = copy.take(sock)
        if frames.receive(sock).get("place") is not True:
            raise PeerError("it does not say what is to be done with its files")
        self._note(is_whole=False)
        self.history = History()
        self._ring.replaced()
        try:
            copy.place()
        finally:
            self._ring.replaced()  # meanwhile somebody may have read
        integrity = self._integrity
        self._standing.is_damaged = False  # before: what is found from here on says so itself
        if integrity is not None and not integrity.repaired(since):
            self._standing.is_damaged = True
        self._note(is_whole=True)
        remove_stage(self._root)
        frames.send(sock, {"placed": True})
        answer = frames.receive(sock)
        _log.info(
            "has the files of %s: %d were the same as before, %d were compared, %d bytes came, in"
            " %.1f s", self.uri, copy.n_same, copy.n_compared, n_bytes, time.monotonic() - began,
        )  # fmt: skip
        return answer

    def _note(self, *, is_whole: bool) -> None:
        """Note how the files stand. Raises: SyncFailed."""
        try:
            self._standing.note(is_whole=is_whole)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from None

    def _follow(self, sock: Link, history: History, *, in_blocks: bool, beats: bool) -> None:
        """Follow until the connection ends. Raises: OSError, PeerError."""
        follower = self.follower = self._follower()
        try:
            self.history = history
            self.error = ""
            self.is_joined = True
            kind, why = follower.run(sock, in_blocks=in_blocks, beats=beats)
            if kind in ("lost", "full", "garbled"):
                follower.sync()
        except OSError as error:
            kind, why = "disk", error.strerror or str(error)
        finally:
            self._close(follower)
        self._failed(kind, why)

    def _failed(self, kind: str, why: str) -> None:
        """It has ended, as `Follower.run` says. Raises: PeerError, but for a lost connection."""
        if kind == "disk":
            self._say(why)
            self._is_over.set()
            self.history = History()
            remove_stage(self._root)  # what is in it may not be on disk either
            with suppress(OSError):
                self._standing.note(is_whole=False)
            self._call(self._on_disk, why)
        elif kind == "refused":
            self._standing.note(is_whole=False)
            self.history = History()
            raise PeerError(why)
        elif kind == "full":
            self._is_over.wait(FULL_S)
            raise PeerError(why)
        elif kind == "garbled":
            raise PeerError(why)
        else:
            self._say(why)
