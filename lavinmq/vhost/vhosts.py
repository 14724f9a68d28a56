"""All virtual hosts of the broker by name: loaded at the start, created and deleted while it runs.

One whose files could not be loaded is not in here, but its entry in `vhosts.json` stays, and so do
its files. On the loop thread.
Source: docs/protocol.md, docs/http-api.md, docs/formats.md.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from lavinmq.auth.users import UserStore
from lavinmq.errors import DefinitionsError, ReplyCode
from lavinmq.files import vhosts as vhosts_file
from lavinmq.files.deleted import DOOMED
from lavinmq.files.directories import hashed, remove_tree, set_aside
from lavinmq.files.saving import Disk, SavedFile, gathered
from lavinmq.files.vhosts import VHostDef
from lavinmq.process import log
from lavinmq.process.portions import Portions
from lavinmq.vhost import files as vhost_files
from lavinmq.vhost.vhost import VHost

MAX_NAME: Final = 255
"""Bytes of a name: it has to fit into connection.open."""

_log = log.get("lmq.vhost_store")


class VHosts(Mapping[str, VHost]):
    """The virtual hosts that can be used.

    Args:
        data_dir: where their directories and `vhosts.json` are.
        users: who lose and get permissions.
        make: makes a virtual host of a name, without opening it.
        call_soon: of the event loop.
        disk: see `files/saving.py`.
    """

    def __init__(
        self, data_dir: Path, users: UserStore, make: Callable[[str], VHost],
        call_soon: Callable[..., Any], disk: Disk | None = None,
    ) -> None:  # fmt: skip
        self._data_dir = data_dir
        self._users = users
        self._make = make
        self._call_soon = call_soon
        self._portions = Portions(call_soon)
        self._open: dict[str, VHost] = {}
        self._stored: dict[str, VHostDef] = {}
        self.ready: dict[str, VHost] = {}
        """Those of which all was read ahead that can be, until `load`."""
        self._past: Counter[str] = Counter()
        self._disk = disk or Disk()
        self._file = SavedFile(data_dir / vhosts_file.FILE_NAME, self._disk)
        self._changing = asyncio.Lock()  # one at a time: each waits for the disk several times

    def __getitem__(self, name: str) -> VHost:
        return self._open[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def stored(self, name: str) -> VHostDef | None:
        """What is said about a virtual host; also of one that could not be loaded."""
        return self._stored.get(name)

    def closed(self) -> list[str]:
        """The names of those that could not be loaded."""
        return [name for name in self._stored if name not in self._open]

    def messages(self) -> Counter[str]:
        """Messages since the start of all of them, those that were deleted included, by the names
        of `_core.Vhost.counters`."""
        total = Counter(self._past)
        for vhost in self._open.values():
            total.update(vhost.core.counters())
        return total

    def load(self, create_default: bool = True) -> None:
        """Open all, and remove what is left of deleted ones. Raises: DefinitionsError.

        Args: create_default: whether a new data directory gets a `/`.
        """
        stored = vhosts_file.load(self._data_dir, create_default, self._disk)
        self._stored = {each.name: each for each in stored}
        ready, self.ready = self.ready, {}
        for name in self._stored:
            vhost = ready.pop(name, None) or self._make(name)
            if vhost.ahead is not None and not _stands_ready(vhost):
                vhost.abandon()
                vhost = self._make(name)
            try:
                vhost.open()
            except (OSError, DefinitionsError) as error:
                _log.error("vhost %r is closed, its files are left alone: %s", name, error)
                vhost.abandon()
                continue
            self._open[name] = vhost
        for vhost in ready.values():
            vhost.abandon()
        for path in self._data_dir.glob("[0-9a-f]" * 40 + DOOMED + "*"):
            self._remove(path)

    def make(self, name: str) -> VHost:
        """One that is not open, and not known yet."""
        return self._make(name)

    def add_view(self, name: str) -> VHost:
        """One whose files somebody else writes: it is open, and has what `show` gives it."""
        vhost = self._open[name] = self._make(name)
        return vhost

    def drop_view(self, name: str) -> None:
        """End what such a one has, and its connections."""
        vhost = self._open.pop(name)
        for connection in list(vhost.connections):
            connection.expel(ReplyCode.CONNECTION_FORCED, "VHost deleted")
        vhost.abandon()

    async def create(
        self, name: str, creator: str | None = None, description: str | None = None,
        tags: Iterable[str] | None = None,
    ) -> bool:  # fmt: skip
        """Create a virtual host, or change description and tags of an existing one. It is there
        when it is on disk.

        Args: creator: the user who gets all rights; None: the default user. One that is unknown
            gets nothing. description, tags: None: as they are, or none.
        Returns: whether it is new.
        Raises: ValueError for a name that cannot be one, or of a virtual host whose files could not
            be loaded; DefinitionsError, OSError when the disk refuses.
        """
        check_name(name)
        async with self._changing:
            described = self.described(name, description, tags)
            if name in self._stored:
                if name not in self._open:
                    raise ValueError(f"vhost {name!r} exists, its files could not be loaded")
                if described != self._stored[name]:
                    await self._save(self._stored | {name: described})
                return False
            await self._prepare_rights(name, creator)
            try:
                await self._open_new(described)
            except (OSError, DefinitionsError):
                await self._forget_rights(name)
                raise
            return True

    async def _prepare_rights(self, name: str, creator: str | None) -> None:
        """Before it is there, as rights in one that is not mean nothing: nobody has those from an
        earlier one any more, if a crash or the disk kept them, and whoever makes it has all.
        Raises: DefinitionsError; nothing has changed then."""
        are_changed = self._users.forget_vhost(name)
        creator = self._users.default_user if creator is None else creator
        if self._users.get(creator) is not None:
            self._users.grant(creator, name)
            are_changed = True
        if are_changed:
            async with gathered():
                self._users.save()

    async def _forget_rights(self, name: str) -> None:
        """It is not there: nobody has rights in it. Those that stay if the disk refuses mean
        nothing, and go before there is another one of the name."""
        try:
            async with gathered():
                if self._users.forget_vhost(name):
                    self._users.save()
        except DefinitionsError as error:
            _log.error("rights in vhost %r, which is not there, are kept: %s", name, error)

    def described(self, name: str, description: str | None, tags: Iterable[str] | None) -> VHostDef:
        """What `create` would make of a virtual host."""
        old = self._stored.get(name, VHostDef(name))
        return VHostDef(
            name,
            old.description if description is None else description,
            old.tags if tags is None else tuple(tags),
        )

    async def delete(self, name: str) -> bool:
        """Delete a virtual host with all that is in it, its permissions and connections.

        Its files are removed later, in portions.
        Returns: whether there was one. Raises: DefinitionsError when the disk refuses: it is there.
        """
        async with self._changing:
            if name not in self._stored:
                return False
            await self._save({key: each for key, each in self._stored.items() if key != name})
            await self._forget(name)
            await self._forget_rights(name)
            return True

    async def _forget(self, name: str) -> None:
        """It is no more in the file: end all that is in it."""
        vhost = self._open.pop(name, None)  # nobody comes any more
        try:
            if vhost is not None:
                if vhost.on_links is not None:
                    vhost.on_links()
                await self._portions.done(vhost.deleting())
                self._past.update(vhost.core.counters())
                vhost.abandon()
                await self._disk.run(vhost.release)
                doomed, changes = vhost.doomed(), self._disk.changes
                await self._disk.run_in_order(partial(changes.rename, vhost.directory, doomed))
                self._remove(doomed)
            else:  # closed: whoever wants to can look at it
                directory = self._data_dir / hashed(name)
                await self._disk.run(partial(set_aside, directory, self._disk.changes))
        except OSError as error:
            _log.error("files of the deleted vhost %r stay: %s", name, error)

    async def _open_new(self, described: VHostDef) -> None:
        name = described.name
        left = await self._disk.run(
            partial(vhost_files.make_anew, self._data_dir, name, self._disk.changes)
        )
        if left is not None:
            _log.warning("files of an earlier vhost %r were left: now in %s", name, left)
        vhost = self._make(name)
        try:
            vhost.open()  # all is there, and on disk
            await self._save(self._stored | {name: described})
        except (OSError, DefinitionsError):
            vhost.abandon()
            await self._disk.run(partial(remove_tree, vhost.directory, self._disk.changes))
            raise
        self._open[name] = vhost

    async def _save(self, stored: dict[str, VHostDef]) -> None:
        """Raises: DefinitionsError; nothing has changed then."""
        await self._file.save(partial(vhosts_file.text, stored.values()))
        self._stored = stored

    def _remove(self, path: Path) -> None:
        """Remove a directory while clients are served."""
        self._disk.removals.add(partial(remove_tree, path, self._disk.changes), _removed)


def _removed(_: None, error: OSError | None) -> None:
    if error is not None:
        _log.error("files of a deleted vhost stay until the next start: %s", error)


def check_name(name: str) -> None:
    """Refuse what no virtual host can be called. Raises: ValueError."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise ValueError("the name of a vhost has to be UTF-8") from error
    if not size:
        raise ValueError("the name of a vhost has at least one character")
    if size > MAX_NAME:
        raise ValueError(f"Vhost name too long, can't exceed {MAX_NAME} characters")


def _stands_ready(vhost: VHost) -> bool:
    """Whether one that was read ahead can be opened as it is: it is read anew if not."""
    try:
        return vhost.stands_ready()
    except (OSError, DefinitionsError, ValueError) as error:
        _log.debug("virtual host %r does not stand ready: %s", vhost.name, error)
    except Exception:  # noqa: BLE001 - it is nothing but quicker
        _log.exception("a mistake of the node's own: virtual host %r is read anew", vhost.name)
    return False
