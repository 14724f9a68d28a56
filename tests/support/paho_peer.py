"""A client of paho-mqtt for tests that wait: it has a thread, and keeps what has come."""

from __future__ import annotations

import queue
import socket
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.other_end import wait_until_closed
from tests.support.patience import PATIENCE

TIMEOUT_S = 15.0 * PATIENCE


def properties(**values: Any) -> Properties:
    """The properties of a PUBLISH of version 5, by paho's names."""
    made = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(made, name, value)
    return made


class PahoPeer:
    """Connected from the beginning; a context manager that disconnects."""

    def __init__(
        self, port: int, version: int = paho.MQTTv311, client_id: str = "", *,
        user: str = "guest", password: str = "guest", **options: Any,
    ) -> None:  # fmt: skip
        self._messages: queue.Queue[Any] = queue.Queue()
        self._granted: queue.Queue[list[int]] = queue.Queue()
        self._connected: queue.Queue[Any] = queue.Queue()
        self.gone: queue.Queue[Any] = queue.Queue()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion(version), **options
        )
        self.client.username_pw_set(user, password)
        self.client.on_message = lambda client, _, message: self._messages.put(message)
        self.client.on_subscribe = lambda client, _, mid, codes, properties: self._granted.put(
            [each.value for each in codes]
        )
        self.client.on_connect = lambda client, _, flags, code, properties: self._connected.put(
            code
        )
        self.client.on_disconnect = lambda client, _, flags, code, properties: self.gone.put(code)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self.code = self._connected.get(timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Disconnect, and wait until the broker has noticed. Idempotent."""
        sock, ends = self.client.socket(), None
        if isinstance(sock, socket.socket):
            with suppress(OSError):  # it has gone already
                ends = sock.getsockname()[1], sock.getpeername()[1]
        self.client.disconnect()
        self.client.loop_stop()
        if ends is not None:
            wait_until_closed(*ends)

    def subscribe(self, *wishes: tuple[str, int]) -> list[int]:
        """Subscribe. Returns: the granted QoS of each, or why not."""
        self.client.subscribe(list(wishes))
        return self._granted.get(timeout=TIMEOUT_S)

    def publish(self, topic: str, payload: bytes, qos: int = 1, **options: Any) -> Any:
        """Publish, and wait until it is acknowledged."""
        info = self.client.publish(topic, payload, qos, **options)
        info.wait_for_publish(TIMEOUT_S)
        return info

    def message(self, timeout_s: float = TIMEOUT_S) -> Any:
        """The next message."""
        return self._messages.get(timeout=timeout_s)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come that was not taken."""
        return self._messages.empty()
