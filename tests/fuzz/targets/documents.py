"""Any bytes as a document of definitions: refused as a whole, or imported so that what is exported
afterwards asks for nothing new."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lavinmq
from lavinmq.broker import Broker
from lavinmq.definitions_json import export
from lavinmq.definitions_json.document import OWN_VERSION, Document
from lavinmq.definitions_json.entry import DefinitionsRefused
from lavinmq.definitions_json.plan import Plan
from lavinmq.files.saving import gathered
from lavinmq.http.encoding import encode
from tests.fuzz.targets import Target
from tests.support.inside import Inside


def finished(steps: Iterator[None]) -> None:
    """Go all the way."""
    for _ in steps:
        pass


def exported(broker: Broker) -> dict[str, list[Any]]:
    """All definitions of a broker."""
    document = defaultdict(list)
    for section, row in export.rows(broker):
        document[section].append(row)
    return document


def planned(broker: Broker, content: bytes) -> Plan:
    """What importing a document means. Raises: DefinitionsRefused."""
    document = Document()
    finished(document.read(content))
    plan = Plan(broker, document, "guest")
    finished(plan.check())
    return plan


async def imported(broker: Broker, content: bytes) -> None:
    """Import a document and look whether it is there; then take it away again."""
    before = encode(exported(broker))
    try:
        plan = planned(broker, content)
    except DefinitionsRefused:
        assert encode(exported(broker)) == before, "a refused document has changed something"
        return
    assert encode(exported(broker)) == before, "a check has changed something"
    async with gathered():  # or a virtual host is deleted while its files are written
        for step in plan.apply():
            if step is not None:
                await step
    again = planned(broker, encode({OWN_VERSION: lavinmq.__version__, **exported(broker)}))
    assert (again.changes, again.skipped) == ([], [])
    for name in list(broker.vhosts):
        await broker.vhosts.delete(name)
    broker.accounts.delete_users(*(user.name for user in broker.users.all()))
    broker.accounts.put_user("guest", password_hash="")


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""
    with lavinmq.run(data_dir=directory / "data", sync=False, amqp_port=-1) as running:
        inside = Inside(running)
        yield lambda data: inside.call(imported, inside.inner, data)
