"""What this broker is called at its upstreams: the name of its host when that was first needed.

It stays in `federation.json` of the data directory: a host that is renamed, or another one with the
same data, goes on with the queues in which its messages wait. Source: docs/federation.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from lavinmq.errors import DefinitionsError
from lavinmq.policy.parameters import Parameter, ParameterStore
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.broker import Broker

FILE: Final = "federation.json"
NAME: Final = "name"
_log = log.get("lmq.federation")


def of(broker: Broker) -> str:
    """The name, kept from now on."""
    store = ParameterStore(Path(broker.config.data_dir) / FILE, True, broker.disk)
    store.load()
    found = store.get(None, NAME)
    if found is not None and isinstance(found.value, str):
        return found.value
    try:
        store.put(Parameter(None, NAME, broker.node_name))
    except DefinitionsError as error:
        _log.warning("the name for upstreams cannot be kept: %s", error)
    return broker.node_name
