"""What readers of a follower see: its streams, as they were at one position of the log of changes.

The position is one up to which the disks of all nodes in sync have everything, so nothing that was
shown is taken back by a change of the leader. Files are further than that already: the log says up
to where they may be read. A stream is found in its directory at any time, and shown once the view
has come to where the log was then. On the loop's thread; what may be long goes in portions.
Source: docs/clustering.md, decision 0121.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lavinmq import _core
from lavinmq.arguments.stream import is_stream
from lavinmq.auth import scram_file, topics, users
from lavinmq.errors import DefinitionsError
from lavinmq.files import definitions, stream_epochs, stream_files, vhosts
from lavinmq.files.changes import Change
from lavinmq.files.directories import hashed
from lavinmq.process import log
from lavinmq.process.portions import PORTION_S, others_first

if TYPE_CHECKING:
    from lavinmq._cluster import Ring
    from lavinmq.broker import Broker
    from lavinmq.files.definitions import QueueDef
    from lavinmq.files.stream_files import StreamFiles
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost

CHANGES_AT_ONCE: Final = 1000
USERS: Final = (users.FILE_NAME, topics.FILE_NAME, scram_file.FILE_NAME, "user_limits.json")
USERS_S: Final = 1.0
"""Between two times that the files of users are read: a leader may change them very often."""
_log = log.get("lmq.reads")


class _Stream:
    """A stream, from the look into its directory on. Args: ready_at: position of the log at which
    all that was found is in the log, too."""

    def __init__(self, vhost: VHost, stored: QueueDef, found: StreamFiles, ready_at: int) -> None:
        self.vhost = vhost
        self.stored = stored
        self.ready_at = ready_at
        self.is_shown = False
        self.ends = dict(found.sizes)
        """By number of a segment: up to where it may be read."""
        self.ahead = dict(found.ahead)
        """The same of files that are to be segments."""
        self.firsts = dict([found.first] if found.first is not None else [])
        """By number of a segment: the offset of its first message."""
        self.gone = 0
        """The last segment that has gone after its time."""
        self.error = ""
        """Why it stands still, as was said."""
        self.queue: Queue = vhost.new_view(stored)
        core = self.queue.core
        core.created, core.epochs, core.is_paused = found.created, found.epochs, found.is_paused
        _core.view_segments(core, found.sealed)

    def reach(self) -> bool:
        """Have what may be read be readable, or a part of it. Returns: whether that is all there is
        to do now. Raises: OSError."""
        core = self.queue.core
        for number in sorted({*self.ends, *self.firsts}):
            if number in self.firsts:
                _core.view_begin(core, number, self.firsts.pop(number))
            if number in self.ends:
                try:
                    if not _core.view_reached(core, number, self.ends[number]):
                        return False
                except FileNotFoundError:
                    # It has gone after its time, before it was counted. A name tells where the next
                    # one begins, and the log of that name.
                    if number + 1 not in self.firsts:
                        break
                del self.ends[number]
        if self.gone:
            _core.view_forgotten(core, self.gone)
            self.gone = 0
        return True


class View:
    """The streams of one broker that writes nothing.

    Args: broker: whose loop `is_reading`; ring: has the log; root: the data directory; at: position
        of the log of which all is in the files.
    """

    def __init__(self, broker: Broker, ring: Ring, root: str, at: int) -> None:
        self.at = at
        self._broker = broker
        self._ring = ring
        self._root = root
        self._streams: dict[tuple[str, str], _Stream] = {}
        """By the names of the directories of virtual host and stream."""
        self._vhosts: dict[str, VHost] = {}
        self._wanted: dict[tuple[str, str], tuple[VHost, QueueDef]] = {}
        """Streams whose directories are to be looked into."""
        self._unread_streams: dict[tuple[str, str], str] = {}
        """Those whose directory cannot be read, and why, as was said."""
        self._behind: dict[tuple[str, str], None] = {}
        """Streams with something to do, in the order of their turns."""
        self._unread: set[str] = set()
        """Virtual hosts, by their directories, whose definitions have changed."""
        self._are_users_due = self._are_vhosts_due = True
        self._users_at = -USERS_S

    @property
    def is_whole(self) -> bool:
        """Whether all that was there is shown."""
        return bool(self._vhosts) and not (
            self._are_vhosts_due or self._unread
            or any(not each.is_shown for each in self._streams.values())
        )  # fmt: skip

    async def step(self, common: int) -> None:
        """Have readers see all up to a position, which is not below that of before, and what was
        changed meanwhile. Raises: LookupError: the log has not all; OSError, DefinitionsError."""
        await self._walk(common)
        if self._are_users_due and time.monotonic() - self._users_at >= USERS_S:
            await self._read_users()
        if self._are_vhosts_due:
            await self._read_vhosts()
        unread, self._unread = self._unread, set()
        for directory in unread:
            await self._read_definitions(directory)
        for key in list(self._wanted):
            await self._look(key)
        await self._reach()

    # --- the log ------------------------------------------------------------------------------

    async def _walk(self, common: int) -> None:
        while self.at < common:
            self.at, changes = self._ring.changes(self.at, common, CHANGES_AT_ONCE)
            for kind, path, target, end, position in changes:
                self._changed(kind, os.fsdecode(path), end, position)
                if target:
                    self._changed(kind, os.fsdecode(target), end, position)
            await others_first()

    def _changed(self, kind: int, path: str, end: int, position: int) -> None:
        """One change of a file, or of a name that it has got or lost."""
        match path.split("/"):
            case [name]:
                self._are_users_due |= name in USERS
                self._are_vhosts_due |= name == vhosts.FILE_NAME
            case [directory, name] if directory in self._vhosts:
                key = directory, name
                if name == "definitions.amqp":
                    self._unread.add(directory)
                elif name == "limits.json":
                    self._vhosts[directory].rules.limits.load()
                elif key in self._streams:  # the directory itself: another stream has the name
                    self._again(key)
            case [directory, name, file] if (directory, name) in self._streams:
                self._changed_in(kind, (directory, name), file, end, position)
            case _:
                pass

    def _changed_in(
        self, kind: int, key: tuple[str, str], file: str, end: int, position: int
    ) -> None:
        """The same in the directory of a stream."""
        stream = self._streams[key]
        self._behind[key] = None
        if match := stream_files.SEGMENT.fullmatch(file):
            self._changed_segment(kind, key, int(match[1]), end, position)
        elif match := stream_files.AHEAD.fullmatch(file):
            if kind == Change.APPEND:
                stream.ahead[int(match[1])] = end
            elif kind == Change.REMOVE:
                stream.ahead.pop(int(match[1]), None)
        elif match := stream_files.MARKER.fullmatch(file):
            if kind == Change.MAKE:
                stream.firsts[int(match[1])] = int(match[2])
        elif file == stream_epochs.FILE:
            stream.queue.core.epochs = stream_epochs.load(self._path(key))
        elif file == stream_files.PAUSED:
            stream.queue.core.is_paused = kind == Change.MAKE

    def _changed_segment(
        self, kind: int, key: tuple[str, str], number: int, end: int, position: int
    ) -> None:
        """The same of a file with messages."""
        stream = self._streams[key]
        if kind == Change.APPEND:
            stream.ends[number] = max(end, stream.ends.get(number, 0))
        elif kind == Change.RENAME and number in stream.ahead:
            stream.ends[number] = max(stream.ahead.pop(number), stream.ends.get(number, 0))
        elif kind == Change.TRUNCATE:
            self._cut(key, number, end, position)
        elif kind == Change.REMOVE:
            stream.gone = max(stream.gone, number)
            stream.ends.pop(number, None)

    def _cut(self, key: tuple[str, str], number: int, end: int, position: int) -> None:
        """A segment ends there now. What was shown is never cut; if it was, look again."""
        stream = self._streams[key]
        shown = stream.queue.core.segments(number - 1, 1)
        is_seen = bool(shown) and shown[0][0] == number and shown[0][2] > end
        if is_seen and position > stream.ready_at:  # else it was cut before it became what was seen
            _log.error("%s/msgs.%010d was cut to %d bytes below what was read of it",
                       self._path(key), number, end)  # fmt: skip
            self._again(key)
        elif number in stream.ends:
            stream.ends[number] = min(end, stream.ends[number])

    # --- what there is ------------------------------------------------------------------------

    def _path(self, key: tuple[str, str]) -> str:
        return f"{self._root}/{key[0]}/{key[1]}"

    async def _read_users(self) -> None:
        """Who may read what. Raises: DefinitionsError."""
        self._users_at, self._are_users_due = time.monotonic(), False
        broker = self._broker
        run = broker.events.run_in_executor
        found = await run(None, broker.users.read_anew)
        await run(None, broker.user_limits.load)
        broker.users.follow(found)
        broker.revocation.look_again()

    async def _read_vhosts(self) -> None:
        """Raises: DefinitionsError."""
        self._are_vhosts_due = False
        read = await self._broker.events.run_in_executor(None, vhosts.read, Path(self._root))
        names = {hashed(each.name): each.name for each in read}
        for directory in set(self._vhosts) - set(names):
            for key in [each for each in self._streams if each[0] == directory]:
                self._drop(key)
            for key in [each for each in self._wanted if each[0] == directory]:
                del self._wanted[key]
            self._broker.vhosts.drop_view(self._vhosts.pop(directory).name)
        for directory in set(names) - set(self._vhosts):
            vhost = self._vhosts[directory] = self._broker.vhosts.add_view(names[directory])
            vhost.rules.limits.load()
            self._unread.add(directory)

    async def _read_definitions(self, directory: str) -> None:
        """Learn which streams a virtual host has. Raises: DefinitionsError."""
        vhost = self._vhosts.get(directory)
        if vhost is None:
            return
        path = Path(self._root, directory, "definitions.amqp")
        try:
            found = await self._broker.events.run_in_executor(None, definitions.read, path)
        except DefinitionsError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            self._unread.add(directory)  # the virtual host is about to come, or to go
            return
        there = {
            (directory, hashed(each.name)): each
            for each in found.queues if is_stream(each.arguments)
        }  # fmt: skip
        for key in [each for each in self._streams if each[0] == directory]:
            if key not in there or self._streams[key].stored != there[key]:
                self._drop(key)
        for key in [each for each in self._wanted if each[0] == directory]:
            del self._wanted[key]
        for key, stored in there.items():
            if key not in self._streams:
                self._wanted[key] = vhost, stored

    async def _look(self, key: tuple[str, str]) -> None:
        """Look into the directory of a stream, if it has one. What cannot be read costs the readers
        of no other stream anything."""
        vhost, stored = self._wanted[key]
        look = partial(stream_files.look, self._path(key))
        try:
            found = await self._broker.events.run_in_executor(None, look)
        except OSError as error:
            if self._unread_streams.get(key) != str(error):
                _log.error("stream %r is not served: %s", stored.name, error)
            self._unread_streams[key] = str(error)
            return
        if found is None:
            return
        del self._wanted[key]
        self._unread_streams.pop(key, None)
        self._streams[key] = _Stream(vhost, stored, found, self._ring.head)
        self._behind[key] = None

    def _again(self, key: tuple[str, str]) -> None:
        """Have a stream found anew."""
        stream = self._streams[key]
        self._drop(key)
        self._wanted[key] = stream.vhost, stream.stored

    def _drop(self, key: tuple[str, str]) -> None:
        stream = self._streams.pop(key)
        self._behind.pop(key, None)
        stream.vhost.hide(stream.queue)

    # --- what may be read ---------------------------------------------------------------------

    async def _reach(self) -> None:
        """Give all streams what they may have, each a portion in its turn. Raises: OSError."""
        waiting = []
        while self._behind:
            until = time.perf_counter() + PORTION_S
            while self._behind and time.perf_counter() < until:
                key = next(iter(self._behind))
                del self._behind[key]
                stream = self._streams[key]
                if self.at < stream.ready_at:
                    waiting.append(key)
                elif not self._reached(key, stream):
                    self._behind[key] = None
            await others_first()
        self._behind.update(dict.fromkeys(waiting))

    def _reached(self, key: tuple[str, str], stream: _Stream) -> bool:
        """Whether a stream has what it may have."""
        try:
            if not stream.reach():
                return False
        except OSError as error:
            if stream.error != str(error):
                _log.error("stream %r stands still: %s", stream.queue.name, error)
            stream.error = str(error)
            return True
        if stream.ends and not stream.is_shown:
            self._again(key)  # retention was faster
        elif not stream.is_shown:
            stream.is_shown = True
            stream.vhost.show(stream.queue)
        return True
