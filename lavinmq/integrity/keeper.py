"""Keeps sums of a running broker's files, or of a node's: a thread that goes over them slowly.

The broker tells it nothing: its changes are noted where they are made. It tells others of damage.
Source: docs/integrity.md.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lavinmq import _core
from lavinmq.integrity.damage import Damage, Damages
from lavinmq.integrity.life import Life
from lavinmq.integrity.readers import Readers
from lavinmq.integrity.scrub import Scrub, Stopped
from lavinmq.integrity.shelves import FILES, HOME, Shelves
from lavinmq.integrity.sums import FileSums
from lavinmq.integrity.touches import Touches
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.config.values import Config
    from lavinmq.files.datadir import DataDir

FIRST_S: Final = 30.0
"""At least so long after the start the first pass begins: a start has other things to do."""
TICK_S: Final = 2.0
REST_S: Final = 0.02
"""The shortest pause, and what it is for."""
WAIT_S: Final = 60.0
"""For which what is suspected is waited for."""
HURRIED_BYTES: Final = 1 << 20
_log = log.get("lmq.integrity")


class Lock(NamedTuple):
    """Times of the lock file: as it was found, and as this process has left it. Empty when the
    directory is not locked: then nobody can tell who has had it in between."""

    found: bytes = b""
    now: bytes = b""


class _Wanted(Exception):
    """Somebody waits for a pass: a slow one makes way."""


def _nothing(*_: Any) -> None:
    """What nobody wants to hear of."""


class Integrity:
    """The sums of one data directory, which this process has.

    Args: rate: bytes to read in a second; pause_s: from the end of a pass to the next one; lazy:
    without sums from before nothing is made before the first pass; is_alone: no other node has the
    files.
    Raises: OSError.
    """

    def __init__(
        self, root: str, lock: Lock, *, rate: int, pause_s: float, lazy: bool,
        is_alone: bool = False,
    ) -> None:  # fmt: skip
        self._root = root
        self._is_alone = is_alone
        self._lock = lock
        self._rate = rate
        self._pause_s = pause_s
        self.on_damage: Callable[[Damage], object] = _nothing
        """Is told of each file, once. In the thread."""
        self.on_sync_failed: Callable[[str, int], object] = _nothing
        """Is told of a file of which nobody knows what is on disk, and why. In the thread."""
        self.on_looked: Callable[[], object] = _nothing
        """Is told when files were looked at of which a broker has read something else than it had
        written. In the thread."""
        self.damages = Damages(root)
        self.last_pass_at = 0.0
        """Unix time at which the last whole pass ended; 0: none has."""
        self._readers = Readers(root, takes_older=is_alone)
        self._newcomers: list[_core.Loop] = []
        self._greeted: list[_core.Loop] = []
        """Of brokers that wait until they know the sums that there are."""
        self._scrub: Scrub | None = None
        self._life: Life | None = None
        self._touches: Touches | None = None
        self._shelves = Shelves(root)
        self._is_over = threading.Event()
        self._wake = threading.Event()
        self._looking = threading.Lock()
        """Held by who looks at the files before the thread runs."""
        self._asked = threading.Condition()
        self._n_wanted = self._n_done = 0
        """Passes that somebody waits for."""
        self._suspects: list[str] = []
        self._is_hurried = self._has_missed = False
        self._debt_s = 0.0
        self._n_since_rest = 0
        self._signed_at = 0.0
        self._thread: threading.Thread | None = None
        if not lazy or os.path.isdir(os.path.join(root, HOME)):
            self._begin()

    @classmethod
    def of(cls, config: Config, data_dir: DataDir, *, lazy: bool) -> Integrity | None:
        """The sums of a data directory that is open, if the operator wants any. A disk that has no
        room for them keeps nobody from starting."""
        if not config.scrub_rate:
            return None
        lock = Lock(data_dir.found_time, data_dir.lock_time)
        try:
            return cls(config.data_dir, lock, rate=config.scrub_rate,
                       pause_s=config.scrub_interval, lazy=lazy,
                       is_alone=not config.clustering_enabled)  # fmt: skip
        except OSError as error:
            _log.error("no sums are made: %s", error)
            return None

    def _begin(self) -> None:
        """Have a place for sums, and hear of changes from now on."""
        home = os.path.join(self._root, HOME)
        os.makedirs(home, 0o700, exist_ok=True)
        life = self._life = Life.begin(self._root, *self._lock)
        if life.number == 1:  # nobody knows whose sums these are
            shutil.rmtree(os.path.join(home, FILES), ignore_errors=True)
        touches = self._touches = Touches(self._root, self._shelves, life.notes)
        self._scrub = Scrub(
            self._root, self._shelves, touches, life, self.damages, on_damage=self._damaged,
            on_sync_failed=self._sync_failed, look=self._look, readers=self._readers,
            takes_older=self._is_alone,
        )  # fmt: skip
        if life.number == 1:
            touches.skip()
        self._scrub.take_in()  # what the life before has left
        touches.restart()
        life.notes = 0
        life.note()
        if life.number == 1:
            self._scrub.has_looked()
        for loop in self._readers.loops:
            _core.touch_files(loop, self._root, touches.fd)

    # ---- whose changes are noted

    def observe(self, loop: _core.Loop) -> None:
        """Have the changes noted that a broker makes, and what it reads compared."""
        self._readers.add(loop)
        if self._touches is not None:
            _core.touch_files(loop, self._root, self._touches.fd)

    @property
    def observed(self) -> tuple[_core.Loop, ...]:
        """The brokers whose changes are noted."""
        return self._readers.loops

    def leave(self, loop: _core.Loop) -> None:
        """A broker changes and reads nothing any more. Idempotent."""
        self._readers.remove(loop)
        self._greeted = [each for each in self._greeted if each is not loop]
        _core.touch_files(loop, self._root, -1)
        self._have_greeted([loop])

    def before_reading(self) -> None:
        """A broker is about to read: have it know the sums that there are. Blocking."""
        if self._touches is None:
            return  # there are none
        with self._asked:
            loops = self._readers.loops
            self._newcomers += [
                each for each in loops if each not in self._newcomers and each not in self._greeted
            ]
            if self._thread is not None:
                self._wake.set()
                self._asked.wait_for(
                    lambda: self._is_over.is_set()
                    or not any(each in self._newcomers for each in loops), WAIT_S,
                )  # fmt: skip
                return
        self._greet()

    def _greet(self) -> None:
        """Give brokers that begin all sums. Others may come meanwhile."""
        with self._asked:
            newcomers = list(self._newcomers)
        try:
            for loop in newcomers:
                assert self._life is not None
                self._readers.load(loop, self._shelves, self._life)
        except OSError as error:
            _log.warning("some of what is read is not compared with its sums: %s", error)
        self._have_greeted(newcomers)

    def _have_greeted(self, loops: list[_core.Loop]) -> None:
        """These wait no more."""
        with self._asked:
            self._newcomers = [each for each in self._newcomers if each not in loops]
            self._greeted = [*self._greeted, *loops]
            self._asked.notify_all()

    @property
    def touches_fd(self) -> int:
        """Where a follower notes its changes; -1: nowhere."""
        return -1 if self._touches is None else self._touches.fd

    def touch(self, path: str, *, is_directory: bool = False) -> None:
        """A file, or a directory as a whole, is about to be replaced or removed. From any thread.
        Raises: OSError."""
        if self._touches is not None:
            self._touches.touch(path, is_directory=is_directory)

    def _look(self) -> bool:
        is_complete = not self._has_missed
        self._has_missed = False
        spoiled = self._readers.spoiled()
        with self._asked:
            self._suspects += [path for path in spoiled if path not in self._suspects]
        for loop in self._readers.loops:
            if not _core.look_at_touches(loop) and self._touches is not None:
                is_complete = False
                _core.touch_files(loop, self._root, self._touches.fd)
        return is_complete

    # ---- what is asked of it

    def first_look(self, *, is_shallow: bool = False) -> None:
        """Compare what was changed since the last life has looked, and all but messages, before
        anybody reads or changes anything. Not while the thread runs.

        Args: is_shallow: only what a broker reads as a whole, not the files of queues.
        Raises: OSError.
        """
        scrub = self._scrub
        if scrub is None or self._life is None or self._life.number == 1:
            return
        with self._looking, suppress(Stopped):
            self._go_on()
            scrub.run(self._go_on, is_deep=False, is_shallow=is_shallow)
            scrub.settle(is_waited_for=True)
            if not is_shallow:
                scrub.has_looked()

    def _go_on(self, _: int = 0) -> None:
        """Raises: Stopped."""
        if self._is_over.is_set():
            raise Stopped

    @property
    def is_running(self) -> bool:
        """Whether the thread goes over the files."""
        return self._thread is not None

    def verify(self) -> int:
        """Have all files read now. Returns: the number of that pass; `status` says when it is
        done. From any thread."""
        with self._asked:
            self._n_wanted += 1
            self._wake.set()
            return self._n_wanted

    def missed(self) -> None:
        """Changes could not be noted. From any thread."""
        self._has_missed = True

    def is_damaged(self, path: str) -> bool:
        """Somebody has read from a file what its sums are not of: whether it is damaged, and not
        just changed. Blocks for a moment; in a thread of the caller's."""
        if self._thread is None:
            return path in self.damages
        with self._asked:
            self._suspects.append(path)
            self._wake.set()
            self._asked.wait_for(
                lambda: path not in self._suspects or self._is_over.is_set(), WAIT_S
            )
        return path in self.damages

    def sums_of(self, path: str) -> FileSums | None:
        """What is known of a file. From any thread."""
        return None if self._scrub is None else self._shelves.sums_of(path)

    def repaired(self, since: float) -> bool:
        """All files were replaced, or compared with good ones, since a time. Returns: whether
        nothing is damaged: nothing was found meanwhile. Raises: OSError."""
        mended = [each.path for each in self.damages.before(since)]
        for path in mended:
            self.touch(path)  # what nobody has sent is gone there, too
        self.damages.drop(*mended)
        return not len(self.damages)

    def status(self) -> dict[str, Any]:
        """What there is to say, as JSON."""
        scrub = self._scrub
        return {
            "damaged_files": [each.to_json() for each in self.damages.all()],
            "checked_bytes": 0 if scrub is None else scrub.n_bytes,
            "files": 0 if scrub is None else scrub.n_files,
            "last_pass_at": round(self.last_pass_at, 3),
            "verified": self._n_done,
        }

    # ---- the thread

    def start(self) -> None:
        """Begin to go over the files."""
        self._thread = threading.Thread(target=self._run, name="integrity", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._thread = None
            _log.warning("no sums are made: %s", error)

    def stop(self) -> None:
        """Have the thread end, and a first look. Neither starts again."""
        self._is_over.set()
        self._wake.set()
        with self._asked:
            self._asked.notify_all()
        with self._looking:
            pass  # nobody does any more
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def forget(self, path: str) -> None:
        """A file was made good. Not while the thread runs. Raises: OSError."""
        self.touch(path)
        if self._scrub is not None:
            self._scrub.take_in()
        self.damages.drop(path)

    def close(self, *, is_orderly: bool) -> None:
        """End. Args: is_orderly: nobody changes anything any more, and everything was noted."""
        self.stop()
        for loop in self._readers.loops:
            _core.touch_files(loop, self._root, -1)
        if self._touches is None or self._life is None or self._scrub is None:
            return
        try:
            self._scrub.take_in()
            self._shelves.flush()
            self._life.ended = is_orderly
            self._life.note()
        except OSError as error:
            _log.warning("sums could not be written: %s", error)
        self._touches.close()
        self._touches = None

    def _run(self) -> None:
        next_at = time.monotonic() + min(self._pause_s, FIRST_S)
        while not self._is_over.is_set():
            has_failed = True
            try:
                with suppress(Stopped, _Wanted):
                    if self._scrub is not None:
                        self._tick(self._scrub)
                    if self._n_wanted > self._n_done or time.monotonic() >= next_at:
                        self._pass()
                        next_at = time.monotonic() + self._pause_s
                has_failed = False
            except OSError as error:
                _log.warning("sums cannot be made: %s", error)
            except Exception:  # noqa: BLE001 - messages go on without sums
                _log.exception("a mistake in the thread of sums")
            if has_failed:
                next_at = time.monotonic() + self._pause_s
                self._done(self._n_wanted)
                self._have_greeted(list(self._newcomers))  # what they read is not compared
            if has_failed or (self._n_wanted == self._n_done and not self._suspects):
                self._wake.wait(TICK_S)
                self._wake.clear()

    def _tick(self, scrub: Scrub) -> None:
        self._sign()
        scrub.take_in()
        if self._newcomers:
            self._greet()
        with self._asked:
            suspects = list(self._suspects)
        for path in suspects:
            scrub.suspect(path)
        scrub.settle(is_waited_for=bool(suspects))
        if suspects:
            with self._asked:
                self._suspects = [each for each in self._suspects if each not in suspects]
                self._asked.notify_all()
            self.on_looked()

    def _pass(self) -> None:
        if self._scrub is None:
            self._begin()
        scrub = self._scrub
        assert scrub is not None
        wanted = self._n_wanted
        self._is_hurried = wanted > self._n_done
        try:
            scrub.run(self._pace, is_hurried=self._is_hurried)
            scrub.settle(is_waited_for=True)
        finally:
            self._is_hurried = False
        scrub.has_looked()
        self.last_pass_at = time.time()
        self._done(wanted)

    def _done(self, wanted: int) -> None:
        with self._asked:
            self._n_done = max(self._n_done, wanted)
            self._asked.notify_all()

    def _pace(self, n: int) -> None:
        """Read no more than the rate. Raises: Stopped; _Wanted."""
        self._go_on()
        if time.monotonic() - self._signed_at > TICK_S:
            self._sign()
        if self._newcomers:
            raise _Wanted
        if self._is_hurried:
            self._n_since_rest += n
            if self._n_since_rest > HURRIED_BYTES:
                self._n_since_rest = 0
                time.sleep(0)  # others may want the interpreter
            return
        if self._n_wanted > self._n_done or self._suspects:
            raise _Wanted
        self._debt_s += n / self._rate
        if self._debt_s > REST_S:
            self._wake.wait(self._debt_s)
            self._wake.clear()  # else there would be no pauses any more
            self._debt_s = 0.0

    def _sign(self) -> None:
        self._signed_at = time.monotonic()
        if self._life is not None:
            with suppress(OSError):
                self._life.sign()

    def _damaged(self, damage: Damage) -> None:
        self.on_damage(damage)

    def _sync_failed(self, path: str, error: int) -> None:
        self.on_sync_failed(path, error)
