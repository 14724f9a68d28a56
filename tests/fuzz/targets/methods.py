"""Any bytes as the payload of a method frame: refused as documented, or the same when written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lavinmq.amqp import methods
from tests.fuzz.targets import Target


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""

    def read(payload: bytes) -> None:
        try:
            method = methods.decode(payload)
        except (methods.UnknownMethod, methods.MalformedMethod) as error:
            assert str(error)
            return
        again = methods.decode(methods.encode(method))
        assert again == method
        assert methods.encode(again) == methods.encode(method)

    yield read
