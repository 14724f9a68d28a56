"""Advice: each piece where something is wrong, none where it is not, and who is told."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lavinmq.http import advice
from tests.support.certificates import Authority
from tests.support.managed import Managed, managed
from tests.support.waiting import wait_for

MIB = 1 << 20


@pytest.fixture
def broker() -> Iterator[Managed]:
    with managed() as broker:
        broker.sample()
        yield broker


def kinds(broker: Managed, api: Any = None) -> list[str]:
    return [each["kind"] for each in (api or broker.api).get("/api/advice")["advice"]]


def fill(broker: Managed, queue: str, n: int, **declared: Any) -> Any:
    """A queue with messages, and two samples: before and after. Returns: the channel."""
    channel = broker.connect().channel()
    channel.queue_declare(queue, durable=True, **declared)
    broker.sample()
    for _ in range(n):
        channel.basic_publish("", queue, b"x")
    inner = broker.inner.vhosts["/"].queues[queue]
    wait_for(lambda: inner.core.ready >= n, "the messages are there")
    broker.sample()
    return channel


def test_a_quiet_broker_gets_no_advice(broker: Managed) -> None:
    broker.connect().channel().queue_declare("quiet", durable=True)
    assert broker.api.get("/api/advice") == {"advice": [], "more": 0}


def test_a_queue_that_grows_without_consumers_is_told(broker: Managed) -> None:
    fill(broker, "left", advice.GROWING)
    (one,) = broker.api.get("/api/advice")["advice"]
    assert (one["kind"], one["level"], one["page"]) == ("growing_queue", "warning", "queue")
    assert (one["vhost"], one["name"]) == ("/", "left")
    assert "left" in one["text"] and "1000" in one["text"]


def test_a_short_queue_is_none(broker: Managed) -> None:
    fill(broker, "short", advice.GROWING - 1)
    assert kinds(broker) == []


def test_a_queue_with_a_consumer_grows_without_advice(broker: Managed) -> None:
    channel = fill(broker, "read", advice.GROWING + 10)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("read", lambda *_: None)
    assert kinds(broker) == []


def test_a_queue_whose_consumer_has_just_gone_is_none(broker: Managed) -> None:
    channel = fill(broker, "polled", advice.GROWING + 10)
    channel.basic_get("polled", auto_ack=True)
    broker.sample()
    assert kinds(broker) == []


@pytest.mark.parametrize("argument", ["x-max-length", "x-message-ttl", "x-expires"])
def test_a_queue_with_a_bound_is_none(broker: Managed, argument: str) -> None:
    fill(broker, "bound", advice.GROWING, arguments={argument: 1_000_000})
    assert kinds(broker) == []


def test_a_stream_keeps_its_messages_without_advice(broker: Managed) -> None:
    fill(broker, "stream", advice.GROWING, arguments={"x-queue-type": "stream"})
    assert kinds(broker) == []


def test_nothing_is_said_of_rates_that_were_not_watched(
    broker: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "young", advice.GROWING)
    monkeypatch.setattr(advice, "HISTORY_S", 10.0**9)
    assert kinds(broker) == []


@pytest.mark.parametrize("exchange", ["", "letters"])
def test_dead_letters_that_pile_up_are_told(broker: Managed, exchange: str) -> None:
    channel = broker.connect().channel()
    if exchange:
        channel.exchange_declare(exchange, "fanout")
    arguments = {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("source", arguments=arguments)
    fill(broker, "dead", advice.LETTERS)
    assert kinds(broker) == (["dead_letters"] if not exchange else [])
    if exchange:
        channel.queue_bind("dead", exchange)
        assert kinds(broker) == ["dead_letters"]


def holds(broker: Managed, n: int, prefetch: int) -> Any:
    """A consumer that holds what it may, with messages left behind it."""
    channel = fill(broker, "work", n)
    channel.basic_qos(prefetch_count=prefetch)
    channel.basic_consume("work", lambda *_: None, consumer_tag="slow")
    inner = broker.inner.vhosts["/"].queues["work"]
    wait_for(lambda: inner.core.unacked == min(n, prefetch), "it has them")
    return channel


def test_a_consumer_that_keeps_all_it_may_have_is_told(
    broker: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds(broker, 20, 10)
    assert kinds(broker) == []  # it has only just got them
    monkeypatch.setattr(advice, "HELD_S", 0)
    (one,) = broker.api.get("/api/advice")["advice"]
    assert (one["kind"], one["page"], one["name"]) == ("unacknowledged", "unacked", "work")
    assert "slow" in one["text"] and "10 of 10" in one["text"]


def test_a_consumer_that_acknowledges_is_not(
    broker: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "HELD_S", 0)
    channel = holds(broker, 20, 10)
    channel.basic_ack(1)
    broker.sample()
    assert kinds(broker) == []


def test_a_consumer_that_has_all_there_is_is_not(
    broker: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "HELD_S", 0)
    holds(broker, 10, 10)
    assert kinds(broker) == []


def test_a_delivery_near_the_consumer_timeout_is_told(
    broker: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds(broker, 1, 10)
    inner = broker.inner.vhosts["/"].queues["work"]
    broker.call(setattr, inner.core, "consumer_timeout_ms", 600_000)
    assert kinds(broker) == []
    monkeypatch.setattr(advice, "TIMEOUT_PART", 0.0)
    assert kinds(broker) == ["consumer_timeout"]


def test_held_publishers_are_told(broker: Managed) -> None:
    broker.call(setattr, broker.inner.loop, "is_low", True)
    (one,) = broker.api.get("/api/advice")["advice"]
    assert (one["kind"], one["level"], one["page"]) == ("held_publishers", "error", "nodes")
    broker.call(setattr, broker.inner.loop, "is_low", False)
    assert kinds(broker) == []


def test_a_policy_that_matches_nothing_is_told(broker: Managed) -> None:
    broker.connect().channel().queue_declare("orders", durable=True)
    for kind in ("policies", "operator-policies"):
        for name, pattern in (("fits", "^orders$"), ("fits-too", "^ord"), ("idle", "^nothing$")):
            body = {"pattern": pattern, "definition": {"max-length": 5}, "apply-to": "queues"}
            assert broker.api("PUT", f"/api/{kind}/%2F/{name}", body).status == 201
    found = broker.api.get("/api/advice")["advice"]
    assert [(each["kind"], each["page"], each["name"]) for each in found] == [
        ("idle_policy", "policies", "idle"), ("idle_policy", "operator-policies", "idle"),
    ]  # fmt: skip


def test_a_policy_waits_for_the_first_queue_without_advice(broker: Managed) -> None:
    body = {"pattern": "^nothing$", "definition": {"max-length": 5}}
    assert broker.api("PUT", "/api/policies/%2F/idle", body).status == 201
    assert kinds(broker) == []


@pytest.mark.parametrize(
    ("free", "is_told"),
    [
        ([100 * MIB * 1024] * 20, False),
        ([(100_000 - 500 * n) * MIB for n in range(20)], True),
        ([(100_000_000 - 500 * n) * MIB for n in range(20)], False),  # days are left
        ([100_000 * MIB] * 15 + [20_000 * MIB] * 5, False),  # one large file
        ([(100_000 - 500 * n) * MIB for n in range(3)], False),  # not watched for long
        ([0] * 20, False),  # unknown
    ],
)
def test_a_disk_that_runs_full_is_told(free: list[float], is_told: bool) -> None:
    told = advice.of_disk(free, 5.0, 1024 * MIB)
    assert (told is not None) is is_told
    if told:
        assert "MiB each second" in told.text


def test_a_certificate_that_ends_soon_is_told(tmp_path: Path, broker: Managed) -> None:
    now = datetime.now(UTC)
    assert advice.of_certificate("a.pem", now + timedelta(days=15), now) is None
    soon = advice.of_certificate("a.pem", now + timedelta(days=3), now)
    assert soon is not None and soon.level == "warning" and "in 3 days" in soon.text
    over = advice.of_certificate("a.pem", now - timedelta(days=1), now)
    assert over is not None and over.level == "error"

    authority = Authority(tmp_path)
    good, bad = authority.issue("server", expires=timedelta(days=99)), tmp_path / "no.pem"
    for path, expected in ((good.cert, []), (bad, ["certificate"])):
        broker.call(object.__setattr__, broker.inner.config, "tls_cert", str(path))
        assert kinds(broker) == expected


def test_each_is_told_what_it_may_see(broker: Managed) -> None:
    broker.add_vhost("other")
    fill(broker, "left", advice.GROWING)
    body = {"pattern": "^nothing$", "definition": {"max-length": 5}}
    assert broker.api("PUT", "/api/policies/%2F/idle", body).status == 201
    broker.call(object.__setattr__, broker.inner.config, "tls_cert", "/no/such.pem")
    everything = {"growing_queue", "idle_policy", "certificate"}
    assert set(kinds(broker)) == everything
    for tag, vhost, expected in (
        ("management", "other", set()),
        ("management", "/", {"growing_queue"}),
        ("policymaker", "/", {"growing_queue", "idle_policy"}),
        ("monitoring", "", {"growing_queue", "certificate"}),
    ):
        user = broker.user(f"{tag}-{len(vhost)}", tag, vhost=vhost)
        assert set(kinds(broker, user)) == expected, tag


def test_so_many_are_told_of_a_kind(broker: Managed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "MOST", 2)
    broker.connect().channel().queue_declare("orders", durable=True)
    for n in range(5):
        body = {"pattern": f"^nothing{n}$", "definition": {"max-length": 5}}
        assert broker.api("PUT", f"/api/policies/%2F/idle{n}", body).status == 201
    said = broker.api.get("/api/advice")
    assert (len(said["advice"]), said["more"]) == (2, 3)


def test_damaged_definitions_are_told_until_their_copy_is_removed(broker: Managed) -> None:
    """They were a line in the log, and no more."""
    path = broker.inner.vhosts["/"].recorded.file.path
    copy = path.with_name("definitions.amqp.damaged")
    copy.write_bytes(b"x")

    (one,) = broker.api.get("/api/advice")["advice"]

    assert (one["kind"], one["level"], one["vhost"]) == ("damaged_definitions", "error", "/")
    assert str(copy.parent) in one["text"] and copy.name in one["text"]
    copy.unlink()
    assert kinds(broker) == []
