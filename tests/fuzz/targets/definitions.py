"""Any bytes as definitions.amqp: refused, or read, appended to and compacted without a change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from lavinmq.errors import DefinitionsError
from lavinmq.files.definitions import Definitions, DefinitionsFile, QueueDef
from tests.fuzz.targets import Target


def loaded(path: Path) -> Definitions:
    """Read a file that must be readable; queues by name, compaction puts sessions behind others."""
    with closing(DefinitionsFile(path)) as file:
        definitions = file.load()
    definitions.queues.sort(key=lambda queue: queue.name)
    return definitions


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""
    path = directory / "definitions.amqp"

    def read(data: bytes) -> None:
        for old in directory.iterdir():
            old.unlink()  # copies of damaged files are kept beside them
        path.write_bytes(data)
        with closing(DefinitionsFile(path)) as file:
            try:
                definitions = file.load()
            except DefinitionsError:
                return
            definitions.queues.sort(key=lambda queue: queue.name)
            assert loaded(path) == definitions, "the second reading differs"
            file.append_declare_queue(QueueDef("fuzz-appended"))
            appended = loaded(path)
            assert "fuzz-appended" in [queue.name for queue in appended.queues]
            file.compact(appended)
        assert loaded(path) == appended, "compaction has changed something"

    yield read
