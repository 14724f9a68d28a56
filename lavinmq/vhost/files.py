"""Makes the files of a new virtual host, synced, so that opening it waits for no disk.

Called in a thread, by `vhosts.py`. Source: docs/formats.md.
"""

from pathlib import Path

from lavinmq.errors import DefinitionsError
from lavinmq.files.changes import Changes
from lavinmq.files.definitions import DefinitionsFile, ExchangeDef
from lavinmq.files.directories import (
    TRANSIENT,
    hashed,
    make_directory,
    remove_tree,
    set_aside,
    write_text,
)
from lavinmq.files.whole import sync_directory
from lavinmq.vhost.declarations import BUILT_IN


def make_anew(data_dir: Path, name: str, changes: Changes) -> Path | None:
    """Make the directory with what every virtual host has in it.

    Returns: where files are now that were left by an earlier one, if there were any.
    Raises: OSError, DefinitionsError.
    """
    directory = data_dir / hashed(name)
    left = set_aside(directory, changes)
    try:
        make_directory(directory, changes)
        write_text(directory / ".vhost", name, changes)
        _define(directory / "definitions.amqp", changes)
        changes.make_directory(directory / TRANSIENT)
        sync_directory(directory)
    except OSError as error:
        remove_tree(directory, changes)
        raise DefinitionsError(f"{directory}: {error.strerror}") from error
    except DefinitionsError:
        remove_tree(directory, changes)
        raise
    return left


def _define(path: Path, changes: Changes) -> None:
    file = DefinitionsFile(path, changes)
    file.load()
    try:
        for exchange, kind in BUILT_IN:
            file.append_declare_exchange(ExchangeDef(exchange, kind))
        file.sync()
    finally:
        file.close()
