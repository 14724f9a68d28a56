"""Who may look at what the broker has written: nobody but its owner, and its group if told so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BrokerFactory
from tests.support.managed import Managed, managed

QUEUES: list[tuple[str, dict[str, Any]]] = [
    ("plain", {}),
    ("priority", {"x-max-priority": 3}),
    ("limited", {"x-delivery-limit": 5}),
    ("unique", {"x-message-deduplication": True, "x-cache-size": 100}),
    ("stream", {"x-queue-type": "stream"}),
]


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Files get just the modes that the broker asks for."""
    old = os.umask(0)
    try:
        yield
    finally:
        os.umask(old)


def use(broker: Managed) -> None:
    """Have files of all kinds written."""
    channel = broker.connect().channel()
    channel.basic_qos(prefetch_count=10)
    for name, arguments in QUEUES:
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.basic_publish("", name, bytes(100_000))
    channel.queue_declare("transient", exclusive=True)
    channel.basic_publish("", "transient", bytes(100_000))
    for name, _ in QUEUES[:3]:
        method, _, _ = channel.basic_get(name)
        channel.basic_nack(method.delivery_tag)
        method, _, _ = channel.basic_get(name)
        channel.basic_ack(method.delivery_tag)
    api = broker.api
    for path, body in (
        ("policies/%2F/p", {"pattern": "x", "definition": {}}),
        ("parameters/c/%2F/p", {"value": 1}),
        ("users/u", {"password_hash": "", "tags": ""}),
        ("user-limits/u/max-channels", {"value": 1}),
        ("vhosts/v", {}),
        ("queues/%2F/plain/pause", {}),
        ("queues/%2F/stream/stream/consumers/c", {"offset": 1}),
        ("queues/%2F/stream/stream/consumers/d", {"offset": 1}),
    ):
        assert api("PUT", f"/api/{path}", body).status in (201, 204)
    assert api("DELETE", "/api/queues/%2F/stream/stream/consumers/d").status == 204


def open_to_others(directory: Path) -> list[str]:
    return [
        f"{path}: {path.stat().st_mode:o}"
        for path in (directory, *directory.rglob("*"))
        if path.stat().st_mode & 0o027
    ]


def test_nothing_in_the_data_directory_is_for_others(tmp_path: Path, no_umask: None) -> None:
    with managed(data_dir=tmp_path / "data", max_deleted_definitions=0) as broker:
        use(broker)
        assert len(list((tmp_path / "data").rglob("*"))) > 30
        assert open_to_others(tmp_path / "data") == []
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    with managed(data_dir=tmp_path / "data"):
        assert open_to_others(tmp_path / "data") == []


def test_the_group_may_look_if_the_operator_says_so(broker_factory: BrokerFactory) -> None:
    env = {"LAVINMQ_MAIN_DATA_DIR_ACCESS": "group"}
    broker = broker_factory(env=env)

    assert broker.data_dir.stat().st_mode & 0o777 == 0o750
