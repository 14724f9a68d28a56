"""The kernel's table of descriptors has room before there are threads that wait while it grows."""

import resource
from pathlib import Path

from lavinmq.process.descriptors import TABLE
from tests.support.broker import Broker


def test_a_broker_has_a_wide_table_of_descriptors_at_the_start(broker: Broker) -> None:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    size = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("FDSize"))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = TABLE if hard == resource.RLIM_INFINITY else min(TABLE, hard)
    assert size >= allowed
