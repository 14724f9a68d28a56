"""All virtual hosts of the broker by name: loaded at the start, created and deleted while it runs.

One whose files could not be loaded is not in here, but its entry in `vhosts.json` stays, and so do
its files. On the loop thread.
Source: AMQP reference, section 21; HTTP reference, section 8.10; storage reference, section 1.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from lavinmq import log, vhosts_file
from lavinmq.auth.users import UserStore
from lavinmq.directories import hashed, removal, remove_tree, set_aside
from lavinmq.errors import DefinitionsError, ReplyCode
from lavinmq.portions import in_portions
from lavinmq.vhost import DOOMED, VHost
from lavinmq.vhosts_file import VHostDef

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
    """

    def __init__(
        self, data_dir: Path, users: UserStore, make: Callable[[str], VHost],
        call_soon: Callable[..., Any],
    ) -> None:  # fmt: skip
        self._data_dir = data_dir
        self._users = users
        self._make = make
        self._call_soon = call_soon
        self._open: dict[str, VHost] = {}
        self._stored: dict[str, VHostDef] = {}

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

    def load(self, create_default: bool = True) -> None:
        """Open all, and remove what is left of deleted ones. Raises: DefinitionsError.

        Args: create_default: whether a new data directory gets a `/`.
        """
        stored = vhosts_file.load(self._data_dir, create_default)
        self._stored = {each.name: each for each in stored}
        for name in self._stored:
            vhost = self._make(name)
            try:
                vhost.open()
            except (OSError, DefinitionsError) as error:
                _log.error("vhost %r is closed, its files are left alone: %s", name, error)
                vhost.abandon()
                continue
            self._open[name] = vhost
        for path in self._data_dir.glob("[0-9a-f]" * 40 + DOOMED + "*"):
            self._remove(path)

    def create(
        self, name: str, creator: str | None = None, description: str | None = None,
        tags: Iterable[str] | None = None,
    ) -> bool:  # fmt: skip
        """Create a virtual host, or change description and tags of an existing one.

        Args: creator: the user who gets all rights; None: the default user. One that is unknown
            gets nothing. description, tags: None: as they are, or none.
        Returns: whether it is new.
        Raises: ValueError for a name that cannot be one, or of a virtual host whose files could not
            be loaded; DefinitionsError, OSError when the disk refuses.
        """
        check_name(name)
        described = self.described(name, description, tags)
        if name in self._stored:
            if name not in self._open:
                raise ValueError(f"vhost {name!r} exists, its files could not be loaded")
            if described != self._stored[name]:
                self._save(self._stored | {name: described})
            return False
        self._open_new(described)
        creator = self._users.default_user if creator is None else creator
        if self._users.get(creator) is not None:
            self._users.grant(creator, name)
            self._users.save()
        return True

    def described(self, name: str, description: str | None, tags: Iterable[str] | None) -> VHostDef:
        """What `create` would make of a virtual host."""
        old = self._stored.get(name, VHostDef(name))
        return VHostDef(
            name,
            old.description if description is None else description,
            old.tags if tags is None else tuple(tags),
        )

    def delete(self, name: str) -> bool:
        """Delete a virtual host with all that is in it, its permissions and connections.

        Its files are removed later, in portions.
        Returns: whether there was one. Raises: DefinitionsError when the disk refuses.
        """
        if name not in self._stored:
            return False
        self._save({key: stored for key, stored in self._stored.items() if key != name})
        vhost = self._open.pop(name, None)
        try:
            if vhost is not None:
                for connection in list(vhost.connections):
                    connection.close(ReplyCode.CONNECTION_FORCED, "VHost deleted")
                self._remove(vhost.delete())
            else:
                set_aside(self._data_dir / hashed(name))  # closed: whoever wants to can look at it
        except OSError as error:
            _log.error("files of the deleted vhost %r stay: %s", name, error)
        self._users.forget_vhost(name)
        self._users.save()
        return True

    def _open_new(self, described: VHostDef) -> None:
        name = described.name
        left = set_aside(self._data_dir / hashed(name))
        if left is not None:
            _log.warning("files of an earlier vhost %r were left: now in %s", name, left)
        vhost = self._make(name)
        try:
            vhost.open()
            self._save(self._stored | {name: described})
        except (OSError, DefinitionsError):
            vhost.abandon()
            remove_tree(vhost.directory)
            raise
        self._open[name] = vhost

    def _save(self, stored: dict[str, VHostDef]) -> None:
        vhosts_file.save(self._data_dir, stored.values())
        self._stored = stored

    def _remove(self, path: Path) -> None:
        """Remove a directory while clients are served."""
        self._call_soon(in_portions, self._call_soon, _removal(path))


def _removal(path: Path) -> Iterator[None]:
    try:
        yield from removal(path)
    except OSError as error:
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
