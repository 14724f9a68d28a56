"""What this broker is called at its upstreams: the name of its host when that was first needed.

It stays in `federation.json` of the data directory: a host that is renamed, or another one with the
same data, goes on with the queues in which its messages wait. Source: docs/federation.md.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lavinmq.errors import DefinitionsError
from lavinmq.policy.parameters import Parameter, ParameterStore
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.broker import Broker

FILE: Final = "federation.json"
NAME: Final = "name"
ID: Final = "id"
_log = log.get("lmq.federation")


def of(broker: Broker) -> tuple[str, str]:
    """The name, and one that no other broker has; both are kept from now on."""
    store = ParameterStore(Path(broker.config.data_dir) / FILE, True, broker.disk)
    store.load()
    found = [_kept(store, NAME) or broker.node_name, _kept(store, ID) or secrets.token_hex(8)]
    if [_kept(store, key) for key in (NAME, ID)] != found:
        try:
            store.put(Parameter(None, NAME, found[0]), Parameter(None, ID, found[1]))
        except DefinitionsError as error:
            _log.warning("the name for upstreams cannot be kept: %s", error)
    return found[0], found[1]


def _kept(store: ParameterStore, key: str) -> str:
    parameter = store.get(None, key)
    value = parameter.value if parameter is not None else None
    return value if isinstance(value, str) else ""
