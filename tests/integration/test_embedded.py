"""A broker inside another program: what it serves, what it leaves alone, and how it ends."""

from __future__ import annotations

import asyncio
import base64
import errno
import gc
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import urllib.request
import weakref
from pathlib import Path
from urllib.parse import urlsplit

import aio_pika
import pika
import pika.exceptions
import pytest

import lavinmq
from tests.support.waiting import wait_for

PROGRAM_TIMEOUT_S = 25.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files of this process and its children."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


def connect(broker: lavinmq.Broker) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(broker.url))


def publish(broker: lavinmq.Broker, queue: str, *bodies: bytes) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))


def drain(broker: lavinmq.Broker, queue: str) -> list[bytes]:
    with connect(broker) as connection:
        channel = connection.channel()
        bodies = []
        while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
            bodies.append(body)
    return bodies


def run_program(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, warnings being errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source), *arguments],
        capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=False,
    )  # fmt: skip


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- serving


def test_a_broker_serves_until_the_block_ends_and_leaves_nothing_behind(temporary: Path) -> None:
    with lavinmq.run() as broker:
        assert broker.is_running
        assert broker.url == f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F"
        assert Path(broker.data_dir).parent == temporary
        publish(broker, "greetings", b"hello")
        assert drain(broker, "greetings") == [b"hello"]

    assert not broker.is_running
    assert list(temporary.iterdir()) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((broker.host, broker.port), timeout=2)


def test_it_runs_on_the_loop_of_asyncio_where_uvloop_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    with lavinmq.run(sync=True) as broker:
        assert type(broker._server.events).__module__.startswith("asyncio.")
        publish(broker, "plain", b"1", b"2")
        assert drain(broker, "plain") == [b"1", b"2"]


def test_a_data_directory_of_its_own_keeps_the_messages(tmp_path: Path) -> None:
    """edge-cases.md 20"""
    with lavinmq.run(data_dir=tmp_path / "data") as broker:
        publish(broker, "kept", b"1", b"2")

    with lavinmq.run(data_dir=str(tmp_path / "data")) as broker:
        assert broker.data_dir == str(tmp_path / "data")
        assert drain(broker, "kept") == [b"1", b"2"]


def test_a_relative_data_directory_does_not_follow_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with lavinmq.run(data_dir="data") as broker:
        monkeypatch.chdir("/")
        publish(broker, "here", b"1")

    assert broker.data_dir == str(tmp_path / "data")
    with lavinmq.run(data_dir=tmp_path / "data") as broker:
        assert drain(broker, "here") == [b"1"]


def test_settings_take_effect(tmp_path: Path) -> None:
    with lavinmq.run(
        data_dir=tmp_path, segment_size=4096, default_user="al:ice", amqp_bind="localhost"
    ) as broker:
        assert broker.url == f"amqp://al%3Aice:guest@localhost:{broker.port}/%2F"
        publish(broker, "long", *[bytes(1000)] * 9)

        assert len(list(tmp_path.glob("*/*/msgs.*"))) == 3


def test_the_url_names_nobody_when_the_password_is_not_known() -> None:
    password_hash = "+pHuxkR9fCyrrwXjOD4BP4XbzO3l8LJr8YkThMgJ0yVHFRE/"

    with lavinmq.run(default_password_hash=password_hash) as broker:
        assert broker.url == f"amqp://127.0.0.1:{broker.port}/%2F"


def test_the_url_has_the_password_that_was_given() -> None:
    with lavinmq.run(default_password_plain="ge:heim") as broker:
        assert broker.url == f"amqp://guest:ge%3Aheim@127.0.0.1:{broker.port}/%2F"
        publish(broker, "q", b"1")


def test_without_a_tcp_port_a_unix_socket_serves(tmp_path: Path) -> None:
    path = tmp_path / "amqp.sock"

    with lavinmq.run(amqp_port=-1, amqp_unix_path=path) as broker:
        assert broker.port == -1
        with pytest.raises(ValueError, match="no TCP port"):
            _ = broker.url
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"AMQP\x00\x00\x09\x01")
            assert client.recv(1) == b"\x01"


def test_several_brokers_run_side_by_side() -> None:
    with lavinmq.run() as one, lavinmq.run() as two, lavinmq.run() as three:
        for number, broker in enumerate((one, two, three)):
            publish(broker, "same-name", b"%d" % number)

        assert [drain(broker, "same-name") for broker in (one, two, three)] == [
            [b"0"],
            [b"1"],
            [b"2"],
        ]


def test_it_starts_and_stops_in_threads_of_the_program() -> None:
    bodies: list[bytes] = []

    def work(number: int) -> None:
        with lavinmq.run() as broker:
            publish(broker, "threads", b"%d" % number)
            bodies.extend(drain(broker, "threads"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(bodies) == [b"0", b"1", b"2"]


# --- stopping


def test_clients_of_the_same_loop_are_told_and_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def program() -> bool:
        async with lavinmq.run() as broker:
            connection = await aio_pika.connect(broker.url)
            closed = asyncio.Event()
            connection.close_callbacks.add(lambda *_: closed.set())
            await connection.channel()
        await closed.wait()
        return broker.is_running

    with caplog.at_level(logging.INFO, "lmq"):
        assert asyncio.run(program()) is False

    assert "CONNECTION_FORCED - Broker shutdown" in caplog.text
    assert "no answer" not in caplog.text


def test_a_client_that_cannot_answer_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    broker = lavinmq.run()
    connection = connect(broker)

    with caplog.at_level(logging.INFO, "lmq"):
        broker.stop(timeout_s=0.05)

    assert not broker.is_running
    assert "no answer to connection.close" in caplog.text
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as told:
        connection.process_data_events(time_limit=5)
    assert told.value.reply_code == 320


def test_stopping_again_or_from_two_threads_does_nothing() -> None:
    """edge-cases.md 18"""
    broker = lavinmq.run()
    threads = [threading.Thread(target=broker.stop) for _ in range(3)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    broker.stop()

    assert not broker.is_running


def test_nothing_stays_open_or_in_memory_afterwards(tmp_path: Path) -> None:
    def once() -> weakref.ref[object]:
        with lavinmq.run(data_dir=tmp_path, segment_size=4096) as broker:
            publish(broker, "rounds", *[bytes(1000)] * 9)
            with connect(broker) as connection:
                channel = connection.channel()
                channel.exchange_declare("to", "topic")
                channel.queue_declare("rest", exclusive=True)
                channel.queue_bind("rest", "to", "#")
                channel.basic_consume("rounds", lambda *_: None)
            return weakref.ref(broker._server)

    once()  # what is imported or opened once is there now
    gc.collect()
    descriptors, threads = count_descriptors(), threading.active_count()

    servers = [once() for _ in range(3)]

    assert count_descriptors() <= descriptors
    assert threading.active_count() == threads
    gc.collect()
    assert [server() for server in servers] == [None] * 3


# --- starting in vain


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"segmentsize": 1}, TypeError, "'segmentsize'"),
        ({"segment_size": 1}, lavinmq.ConfigError, "'segment_size'"),
        ({"segment_size": 1.5}, TypeError, "'segment_size'"),
        ({"data_dir": ""}, lavinmq.ConfigError, "'data_dir'"),
        ({"log_level": "debug"}, TypeError, "'log_level'"),
        ({"log_file": "x"}, TypeError, "'log_file'"),
        ({"pidfile": "x"}, TypeError, "'pidfile'"),
    ],
)
def test_a_bad_setting_is_refused_before_anything_starts(
    settings: dict[str, str], error: type[Exception], text: str, temporary: Path
) -> None:
    threads = threading.active_count()

    with pytest.raises(error, match=text):
        lavinmq.run(**settings)

    assert threading.active_count() == threads
    assert list(temporary.iterdir()) == []


def test_a_port_in_use_is_an_error_for_the_caller(temporary: Path, tmp_path: Path) -> None:
    with lavinmq.run() as first:
        pass
    gc.collect()
    descriptors, threads = count_descriptors(), threading.active_count()

    with socket.create_server(("127.0.0.1", first.port)), pytest.raises(OSError) as refusal:
        lavinmq.run(amqp_port=first.port, amqp_unix_path=tmp_path / "sock")

    assert refusal.value.errno == errno.EADDRINUSE
    assert f"127.0.0.1:{first.port}" in str(refusal.value)
    assert list(temporary.iterdir()) == []
    assert threading.active_count() == threads
    assert count_descriptors() <= descriptors


def test_what_was_opened_before_a_start_fails_is_closed(tmp_path: Path) -> None:
    with lavinmq.run(data_dir=tmp_path) as broker:
        publish(broker, "kept", b"1")
    gc.collect()
    descriptors = count_descriptors()

    with pytest.raises(OSError, match="cannot listen on /nowhere/sock"):
        lavinmq.run(data_dir=tmp_path, amqp_port=broker.port, amqp_unix_path="/nowhere/sock")

    assert count_descriptors() <= descriptors
    with lavinmq.run(data_dir=tmp_path, amqp_port=broker.port) as broker:
        assert drain(broker, "kept") == [b"1"]


def test_a_directory_in_use_is_an_error_for_the_caller(tmp_path: Path) -> None:
    with lavinmq.run(data_dir=tmp_path) as first:
        with pytest.raises(lavinmq.DataDirError, match=f"is locked by PID {os.getpid()} @ "):
            lavinmq.run(data_dir=tmp_path)

        publish(first, "undisturbed", b"1")


def test_a_directory_that_cannot_be_read_is_an_error_for_the_caller(tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text("nonsense")

    with pytest.raises(lavinmq.DefinitionsError, match=r"users\.json"):
        lavinmq.run(data_dir=tmp_path)


# --- the program around it


def test_the_program_keeps_its_signals_logging_limits_and_loops() -> None:
    async def kind_of_loop() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    def surroundings() -> list[object]:
        root = logging.getLogger()
        return [
            [signal.getsignal(number) for number in SIGNALS],
            signal.set_wakeup_fd(-1),
            root.level, root.handlers[:], logging.getLogger("lmq").handlers[:],
            logging.logThreads, logging.logProcesses, logging._srcfile,  # type: ignore[attr-defined]
            resource.getrlimit(resource.RLIMIT_NOFILE),
            asyncio.run(kind_of_loop()),
        ]  # fmt: skip

    before = surroundings()
    with lavinmq.run() as broker:
        publish(broker, "calm", b"1")
        during = surroundings()

    assert during == before
    assert surroundings() == before


def test_the_http_api_has_a_url() -> None:
    with lavinmq.run(mgmt_port=0) as broker:
        address = urlsplit(broker.http_url)
        login = base64.b64encode(f"{address.username}:{address.password}".encode()).decode()
        request = urllib.request.Request(
            f"http://{address.hostname}:{address.port}/api/whoami",
            headers={"Authorization": f"Basic {login}"},
        )
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["name"] == "guest"


def test_without_the_http_api_its_url_says_how_to_get_it() -> None:
    with lavinmq.run() as broker, pytest.raises(ValueError, match="mgmt_port=0"):
        print(broker.http_url)


def test_a_virtual_host_is_fresh_and_goes_at_the_end() -> None:
    with lavinmq.run() as broker:
        for _ in range(2):
            with broker.vhost("one") as url:
                connection = pika.BlockingConnection(pika.URLParameters(url))
                channel = connection.channel()
                assert channel.queue_declare("q", durable=True).method.message_count == 0
                channel.basic_publish("", "q", b"m")
            with pytest.raises(pika.exceptions.AMQPError):
                channel.queue_declare("q", passive=True)

        with broker.vhost() as first, broker.vhost() as second:
            assert first != second
        with pytest.raises(ValueError, match="already"), broker.vhost("/"):
            pass


def test_a_reset_broker_is_as_new_at_the_same_port() -> None:
    with lavinmq.run(default_user="boss") as broker:
        url = broker.url
        publish(broker, "q", b"m")
        connection = connect(broker)
        with broker.vhost("gone"):
            broker.reset()

        with pytest.raises(pika.exceptions.AMQPError):
            connection.channel()
        assert broker.url == url
        with connect(broker) as again:
            queue = again.channel().queue_declare("q", durable=True)
            assert queue.method.message_count == 0
        broker.reset()
        assert drain_new(broker) == []


def drain_new(broker: lavinmq.Broker) -> list[bytes]:
    publish(broker, "q")
    return drain(broker, "q")


def test_a_stopped_broker_says_so() -> None:
    broker = lavinmq.run()
    broker.stop()

    with pytest.raises(lavinmq.BrokerError, match="not running"):
        broker.reset()
    with pytest.raises(lavinmq.BrokerError, match="not running"), broker.vhost():
        pass


def test_what_it_logs_reaches_the_logging_of_the_program(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "lmq"),
        lavinmq.run(clustering_max_unsynced_actions=1) as broker,
    ):
        pass

    assert f"Listening for AMQP on 127.0.0.1:{broker.port}" in caplog.messages
    assert caplog.messages[-1] == "Stopped"
    assert any("deprecated" in message for message in caplog.messages)


def test_the_package_imports_nothing_before_it_is_asked() -> None:
    ended = run_program("""
        import sys
        before = set(sys.modules)
        import lavinmq
        lavinmq.__version__, dir(lavinmq)
        print(sorted(set(sys.modules) - before))
    """)

    assert (ended.stdout, ended.stderr) == ("['lavinmq']\n", "")


def test_the_package_offers_what_it_lists_and_nothing_else() -> None:
    assert set(lavinmq.__all__) <= set(dir(lavinmq))
    assert all(getattr(lavinmq, name) is not None for name in lavinmq.__all__)
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        _ = lavinmq.walk  # type: ignore[attr-defined]


# --- ends that nobody asked for


def test_a_failing_sync_ends_the_broker_and_not_the_program() -> None:
    broker = lavinmq.run(sync=True)
    connection = connect(broker)
    out, into = os.pipe()  # which cannot be synced

    sync = broker._server.broker.loop.sync_file
    broker._server.events.call_soon_threadsafe(sync, into, lambda: None)

    wait_for(lambda: not broker.is_running, "the broker goes on")
    with pytest.raises(pika.exceptions.AMQPError):
        connection.channel()
    with pytest.raises(lavinmq.BrokerError, match="Cannot sync pipe:"):
        broker.stop()
    broker.stop()
    for end in (out, into):
        os.close(end)


def test_without_a_thread_for_syncing_confirms_come_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No thread can be started while an interpreter ends."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with lavinmq.run(sync=True) as broker:
        connection = connect(broker)
        channel = connection.channel()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        for number in range(4):  # more files than are synced without a thread otherwise
            channel.queue_declare(f"q{number}", durable=True)
            channel.queue_bind(f"q{number}", "amq.fanout")
        channel.confirm_delivery()

        channel.basic_publish("amq.fanout", "", b"1", mandatory=True)

        assert channel.queue_declare("q3", passive=True).method.message_count == 1
        connection.close()


END_OF_PROGRAM = """
    import asyncio, sys, threading
    import lavinmq, pika
    broker = lavinmq.run(**({"data_dir": sys.argv[1]} if len(sys.argv) > 1 else {}))
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.queue_declare("left", durable=True)
    channel.basic_publish("", "left", b"1", pika.BasicProperties(delivery_mode=2))
    while not channel.queue_declare("left", passive=True).method.message_count:
        pass
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("connection.close()", 0),
        ("connection.close(); sys.exit(3)", 3),
        ("connection.close(); threading.Thread(target=sys.exit).start()", 0),
        ("import os; os._exit(4)", 4),
        ("import warnings; warnings.simplefilter('ignore')", 0),
    ],
    ids=["closed", "exit code", "thread", "at once", "client left open"],
)
def test_a_program_may_end_without_stopping_it(ending: str, code: int, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"

    ended = run_program(textwrap.dedent(END_OF_PROGRAM) + ending, str(data_dir))

    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    with lavinmq.run(data_dir=data_dir) as broker:
        assert drain(broker, "left") == [b"1"]


def test_a_program_that_ends_removes_the_temporary_directory(temporary: Path) -> None:
    ended = run_program(textwrap.dedent(END_OF_PROGRAM) + "connection.close()")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert list(temporary.iterdir()) == []


def test_a_forked_child_neither_stops_the_broker_nor_removes_its_directory() -> None:
    ended = run_program("""
        import os, sys, warnings
        import lavinmq, pika
        warnings.simplefilter("ignore")  # of forking while threads run, from Python 3.12 on
        broker = lavinmq.run()
        if os.fork() == 0:
            assert not broker.is_running
            broker.stop()
            sys.exit()
        os.wait()
        assert broker.is_running and os.path.isdir(broker.data_dir)
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            connection.channel().queue_declare("q", durable=True)
        broker.stop()
        assert not os.path.exists(broker.data_dir)
    """)

    assert (ended.returncode, ended.stderr) == (0, "")
