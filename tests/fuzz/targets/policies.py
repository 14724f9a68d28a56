"""Any bytes as policies.json: what can be read is the same after writing, all else is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lavinmq.errors import DefinitionsError
from lavinmq.fieldtable import EMPTY
from lavinmq.policy.features import queue_features
from lavinmq.policy.policies import PolicyStore
from tests.fuzz.targets import Target


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""
    path = directory / "policies.json"

    def loaded() -> PolicyStore:
        store = PolicyStore(path, "/")
        store.load()
        return store

    def read(data: bytes) -> None:
        for file in directory.iterdir():
            file.unlink()
        path.write_bytes(data)
        try:
            store = loaded()
        except DefinitionsError:
            assert path.read_bytes() == data
            return
        for policy in store.all():
            hash(queue_features(EMPTY, policy.usable, {}, (policy.name, None)))
        store.put()
        assert [each.to_json("/") for each in loaded().all()] == [
            each.to_json("/") for each in store.all()
        ]

    yield read
