"""What an operator does to a broker: reload it, damage its files, leave things behind."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pika
import pytest
from pamqp import commands

from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.waiting import wait_for
from tests.support.wire import Wire

BrokerFactory = Callable[..., Broker]


def vhost_directory(broker: Broker) -> Path:
    return Path(broker.data_dir) / hashlib.sha1(b"/").hexdigest()


def queue_directory(broker: Broker, name: str) -> Path:
    return vhost_directory(broker) / hashlib.sha1(name.encode()).hexdigest()


def connect(broker: Broker) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port))


def count_descriptors(broker: Broker) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def test_sighup_takes_over_what_may_change_and_names_what_needs_a_restart(
    broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    config = tmp_path / "lavinmq.ini"
    config.write_text("[amqp]\nheartbeat = 30\n")
    broker = broker_factory(args=("-c", str(config)))
    config.write_text("[main]\nsegment_size = 65536\n[amqp]\nheartbeat = 77\n")

    os.kill(broker.pid, signal.SIGHUP)

    wait_for(lambda: "Configuration reloaded" in broker.log_text(), "no reload")
    assert "Configuration reloaded, changed: 'heartbeat' in [amqp]" in broker.log_text()
    wait_for(
        lambda: "A restart is needed for: 'segment_size' in [main]" in broker.log_text(),
        "no word about the restart",
    )
    parameters = pika.ConnectionParameters(
        broker.host, broker.port, heartbeat=lambda _connection, proposed: proposed
    )
    proposals: list[int] = []
    parameters.heartbeat = lambda _connection, proposed: proposals.append(proposed) or proposed
    pika.BlockingConnection(parameters).close()
    assert proposals == [77]


def test_sighup_gives_a_key_that_is_gone_its_default_and_flags_still_win(
    broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    config = tmp_path / "lavinmq.ini"
    config.write_text("[main]\nlog_level = error\n[amqp]\nheartbeat = 30\n")
    broker = broker_factory(args=("-c", str(config), "-l", "info"))
    config.write_text("[main]\nlog_level = error\n")

    os.kill(broker.pid, signal.SIGHUP)

    wait_for(lambda: "reloaded, changed: 'heartbeat' in [amqp]\n" in broker.log_text(), "no reload")
    proposals: list[int] = []
    parameters = pika.ConnectionParameters(broker.host, broker.port)
    parameters.heartbeat = lambda _connection, proposed: proposals.append(proposed) or proposed
    pika.BlockingConnection(parameters).close()
    assert proposals == [300]


def test_a_plain_default_password_from_a_file_is_hashed_at_the_first_start(
    broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("geheim\n")
    broker = broker_factory(env={"LAVINMQ_MAIN_DEFAULT_PASSWORD_PLAIN_FILE": str(secret)})

    pika.BlockingConnection(
        pika.ConnectionParameters(
            broker.host, broker.port, credentials=pika.PlainCredentials("guest", "geheim")
        )
    ).close()

    assert "geheim" not in (broker.data_dir / "users.json").read_text()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connect(broker)


def test_a_bad_file_at_sighup_changes_nothing(
    broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    config = tmp_path / "lavinmq.ini"
    config.write_text("")
    broker = broker_factory(args=("-c", str(config)))
    config.write_text("[nonsense]\n")

    os.kill(broker.pid, signal.SIGHUP)

    wait_for(lambda: "not reloaded" in broker.log_text(), "no warning")
    connect(broker).close()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('{"vhosts": [{"name": "/"}]}', "there is no user"),
        ('{"users": [{"name": "u", "password_hash": "", "tags": ""}]}', "there is no virtual host"),
        ("{}", "there is no user and no virtual host"),
        ('{"vhosts": [{"name": "/"}],'
         ' "users": [{"name": "u", "password_hash": "", "tags": ""}]}', ""),
    ],
)  # fmt: skip
def test_a_start_after_which_no_client_can_connect_says_so(
    broker_factory: BrokerFactory, tmp_path: Path, content: str, what: str
) -> None:
    (tmp_path / "definitions.json").write_text(content)

    broker = broker_factory(env={"LAVINMQ_MAIN_LOAD_DEFINITIONS": f"{tmp_path}/definitions.json"})

    assert (f"no client can connect: {what}:" in broker.log_text()) == bool(what)
    assert ("no client can connect" in broker.log_text()) == bool(what)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("[main]\ntls_cert = /nope\n", "'tls_cert' in [main]: '/nope': no such file or directory"),
        ("[main]\ntls_verify_peer = true\n", "'tls_verify_peer' in [main] needs 'tls_ca_cert'"),
        ("[main]\nlog_file = /nope/log\n", "/nope/log"),
        ("[clustering]\nenable = true\n", "did you mean 'enabled'?"),
    ],
)
def test_what_is_wrong_at_sighup_leaves_everything_else_as_it_was(
    broker_factory: BrokerFactory, tmp_path: Path, bad: str, why: str
) -> None:
    """Files of TLS were looked at when the other settings had been taken over."""
    config = tmp_path / "lavinmq.ini"
    config.write_text("[amqp]\nheartbeat = 30\n")
    broker = broker_factory(args=("-c", str(config)))
    config.write_text(f"{bad}[main]\nlog_level = debug\n[amqp]\nheartbeat = 10\n")

    os.kill(broker.pid, signal.SIGHUP)

    wait_for(lambda: "Configuration not reloaded: " in broker.log_text(), "no warning")
    assert why in broker.log_text()
    assert "Configuration reloaded" not in broker.log_text()
    proposals: list[int] = []
    parameters = pika.ConnectionParameters(broker.host, broker.port)
    parameters.heartbeat = lambda _connection, proposed: proposals.append(proposed) or proposed
    pika.BlockingConnection(parameters).close()
    assert proposals == [30]
    assert " DEBUG " not in broker.log_text()


def test_the_log_level_changes_while_the_broker_runs(
    broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    config = tmp_path / "lavinmq.ini"
    config.write_text("[main]\nlog_level = error\n")
    broker = broker_factory(args=("-c", str(config)))
    connect(broker).close()
    assert "INFO" not in broker.log_text()

    config.write_text("[main]\nlog_level = info\n")
    os.kill(broker.pid, signal.SIGHUP)
    wait_for(lambda: "Configuration reloaded" in broker.log_text(), "no reload")

    connect(broker).close()
    wait_for(lambda: " INFO lmq.amqp.client" in broker.log_text(), "the client is not mentioned")


def test_in_the_journal_lines_begin_with_their_priority(tmp_path: Path) -> None:
    output = tmp_path / "journal"
    output.touch()
    found = output.stat()
    stream = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
    broker = Broker(tmp_path / "data", log_path=output, env=stream).start()
    try:
        connect(broker).close()
    finally:
        broker.stop()

    lines = broker.log_text().splitlines()
    assert "<6> lmq.server Stopped" in lines
    assert all(line.startswith(("<6> lmq.", "<4> lmq.")) for line in lines)


def test_files_left_under_the_name_of_a_new_queue_are_set_aside(own_broker: Broker) -> None:
    directory = queue_directory(own_broker, "reborn")
    directory.mkdir()
    (directory / "msgs.0000000001").write_bytes(b"\x04\0\0\0")
    connection = connect(own_broker)
    channel = connection.channel()

    channel.queue_declare("reborn", durable=True)

    aside = [p for p in vhost_directory(own_broker).iterdir() if ".left-" in p.name]
    assert [p.name for p in aside[0].iterdir()] == ["msgs.0000000001"]
    assert not (directory / "msgs.0000000001").exists()
    connection.close()


def test_a_queue_that_cannot_be_stored_is_refused_and_does_not_exist(own_broker: Broker) -> None:
    # A link to nowhere where the directory would be: making it fails, also for root.
    queue_directory(own_broker, "nowhere").symlink_to("/proc/nonexistent/directory")
    connection = connect(own_broker)
    channel = connection.channel()

    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refusal:
        channel.queue_declare("nowhere", durable=True)

    assert refusal.value.reply_code == 406
    assert "cannot be stored" in refusal.value.reply_text
    channel = connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as absent:
        channel.queue_declare("nowhere", passive=True)
    assert absent.value.reply_code == 404
    connection.close()


def test_messages_that_cannot_be_read_are_reported_with_their_queue(own_broker: Broker) -> None:
    connection = connect(own_broker)
    channel = connection.channel()
    channel.queue_declare("torn", durable=True)
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("", "torn", b"message %d" % number)
    path = queue_directory(own_broker, "torn") / "msgs.0000000001"
    with path.open("r+b") as file:
        file.seek(4)
        file.write(bytes(100))

    rest = [channel.basic_get("torn", auto_ack=True)[2] for _ in range(8)]

    # 100 bytes are three records, and the least byte of the fourth one's time.
    assert rest == [b"message %d" % number for number in range(3, 10)] + [None]
    wait_for(lambda: "could not be read" in own_broker.log_text(), "the loss is not reported")
    assert f"'torn': {path} is damaged at byte 4: 99 bytes" in own_broker.log_text()
    assert "3 messages" in own_broker.log_text()
    channel.basic_publish("", "torn", b"later")
    assert channel.basic_get("torn", auto_ack=True)[2] == b"later"
    connection.close()


def test_no_sync_with_confirms_keeps_few_files_open(broker_factory: BrokerFactory) -> None:
    """edge-cases.md 131"""
    broker = broker_factory(args=("--no-sync",), env={"LAVINMQ_MAIN_SEGMENT_SIZE": "65536"})
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("many-segments", durable=True)
    channel.confirm_delivery()
    before = len(os.listdir(f"/proc/{broker.pid}/fd"))

    for _ in range(100):
        channel.basic_publish("", "many-segments", bytes(10_000))

    assert len(os.listdir(f"/proc/{broker.pid}/fd")) <= before + 3
    connection.close()


def test_a_durable_binding_between_exchanges_and_its_alternate_survive_a_restart(
    own_broker: Broker,
) -> None:
    """edge-cases.md 95, 311"""
    connection = connect(own_broker)
    channel = connection.channel()
    channel.exchange_declare("last", "fanout", durable=True)
    channel.exchange_declare(
        "first", "topic", durable=True, arguments={"alternate-exchange": "last"}
    )
    channel.exchange_declare("second", "fanout", durable=True)
    channel.queue_declare("reached", durable=True)
    channel.queue_declare("rest", durable=True)
    channel.exchange_bind("second", "first", "a.#")
    channel.queue_bind("reached", "second")
    channel.queue_bind("rest", "last")
    connection.close()

    own_broker.restart()

    connection = connect(own_broker)
    channel = connection.channel()
    channel.basic_publish("first", "a.b", b"bound")
    channel.basic_publish("first", "c", b"alternate")
    assert channel.basic_get("reached", auto_ack=True)[2] == b"bound"
    assert channel.basic_get("rest", auto_ack=True)[2] == b"alternate"
    connection.close()


def test_unbinding_a_nested_exchange_acts_on_publishers_of_the_outer_one(
    own_broker: Broker,
) -> None:
    connection = connect(own_broker)
    channel = connection.channel()
    channel.exchange_declare("outer", "fanout")
    channel.exchange_declare("inner", "fanout")
    channel.queue_declare("leaf")
    channel.exchange_bind("inner", "outer")
    channel.queue_bind("leaf", "inner")
    channel.confirm_delivery()
    channel.basic_publish("outer", "", b"1", mandatory=True)

    channel.queue_unbind("leaf", "inner")

    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("outer", "", b"2", mandatory=True)
    connection.close()


def test_a_reset_behind_unread_data_is_noticed(own_broker: Broker) -> None:
    """uvloop watches a socket no more after an error, also when there is data to read before it."""
    wire = Wire.open(own_broker.port)
    wire.call(1, commands.Queue.Declare(queue="cut"), commands.Queue.DeclareOk)
    before = count_descriptors(own_broker)
    os.kill(own_broker.pid, signal.SIGSTOP)
    for _ in range(10):
        wire.publish(1, "", "cut", bytes(10_000))
    wire._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()
    os.kill(own_broker.pid, signal.SIGCONT)

    wait_for(lambda: count_descriptors(own_broker) < before, "the reset is never noticed")


def test_signals_of_operators_are_answered_in_the_log(own_broker: Broker) -> None:
    os.kill(own_broker.pid, signal.SIGUSR1)
    wait_for(lambda: "Memory: resident=" in own_broker.log_text(), "memory in the log")
    os.kill(own_broker.pid, signal.SIGUSR2)
    wait_for(lambda: "Collecting garbage" in own_broker.log_text(), "a collection in the log")

    assert own_broker.stop() == 0


def test_the_garbage_collector_runs_once_the_broker_has_started(
    broker_factory: BrokerFactory,
) -> None:
    api = Api(broker_factory(http=True), "guest")
    before = api.get("/api/nodes/gc_stats")["gc_no"]

    queues = [{"name": f"q{number}", "vhost": "/", "durable": False} for number in range(1000)]
    assert api("POST", "/api/definitions", {"queues": queues}).status == 200

    assert api.get("/api/nodes/gc_stats")["gc_no"] > before
