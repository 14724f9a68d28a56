"""What a hostile client can make long: a function for each case, by name in the table `CASES`.

A case prepares all it needs, then attacks within `broker.watched()`, and leaves the block when the
broker has dealt with the attack. It may be refused: that is an answer, too. Sizes are those at
which an earlier build held everybody up, so that rows can be compared. A new case is a new function
in the tuple at the end of its file.
"""

from collections.abc import Callable

from perf.hostile_cases import (
    arrivals,
    large,
    management,
    messages,
    mqtt,
    routing,
    rules,
    streams,
    tls,
    topology,
)
from perf.hostile_cases.peer import Broker

__all__ = ["CASES", "Broker"]

_FILES = (routing, messages, large, rules, topology, streams, management, arrivals, tls, mqtt)
CASES: dict[str, Callable[[Broker], None]] = {
    case.__name__: case for file in _FILES for case in file.CASES
}
