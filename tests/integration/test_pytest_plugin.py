"""The fixtures that the package gives to pytest, each used in a test session of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PLUGIN = "lavinmq.pytest_plugin"
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A directory for test files; sessions in it have the plugins named on their command line."""
    # The entry point is there only where the package was installed since it was declared.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\nfilterwarnings = error\naddopts = -p no:cacheprovider\n")
    pytester.makeconftest("""
        import pika
        import pytest

        @pytest.fixture
        def channel(lavinmq_broker):
            with pika.BlockingConnection(pika.URLParameters(lavinmq_broker.url)) as connection:
                yield connection.channel()
    """)
    return pytester


def test_the_package_declares_the_plugin() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert project["entry-points"]["pytest11"] == {"lavinmq": PLUGIN}


def test_the_plugin_imports_nothing_that_pytest_has_not(tmp_path: Path) -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); "
        f"import {PLUGIN}; print(sorted(set(sys.modules) - before))"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert ended.stdout == f"['lavinmq', '{PLUGIN}']\n"


def test_a_session_without_the_fixtures_starts_no_broker(session: pytest.Pytester) -> None:
    session.makepyfile("""
        import sys

        def test_nothing_was_imported():
            assert "lavinmq.pytest_plugin" in sys.modules
            assert "lavinmq.embedded" not in sys.modules
    """)

    session.runpytest_subprocess("-p", PLUGIN).assert_outcomes(passed=1)


def test_the_tests_of_a_session_share_a_broker(session: pytest.Pytester) -> None:
    session.makepyfile("""
        seen = []

        def test_one(lavinmq_broker, channel):
            seen.append(lavinmq_broker)
            channel.queue_declare("shared")
            channel.basic_publish("", "shared", b"hello")

        def test_two(lavinmq_broker, channel):
            assert seen == [lavinmq_broker]
            assert channel.basic_get("shared", auto_ack=True)[2] == b"hello"
    """)

    session.runpytest_subprocess("-p", PLUGIN).assert_outcomes(passed=2)


def test_the_factory_starts_brokers_for_one_test_with_settings(session: pytest.Pytester) -> None:
    session.makepyfile("""
        seen = []

        def test_two_of_them(lavinmq_broker_factory, tmp_path):
            one = lavinmq_broker_factory()
            two = lavinmq_broker_factory(data_dir=tmp_path / "data", default_user="alice")
            assert one.port != two.port
            assert (tmp_path / "data").is_dir()
            assert "alice" in two.url
            one.stop()
            seen.extend([one, two])

        def test_they_are_gone():
            assert [broker.is_running for broker in seen] == [False, False]
    """)

    session.runpytest_subprocess("-p", PLUGIN).assert_outcomes(passed=2)


def test_it_serves_programs_of_asyncio(session: pytest.Pytester) -> None:
    session.makepyfile("""
        import asyncio
        import aio_pika

        async def program(url):
            async with await aio_pika.connect_robust(url) as connection:
                channel = await connection.channel()
                queue = await channel.declare_queue("greetings")
                message = aio_pika.Message(b"hello")
                await channel.default_exchange.publish(message, "greetings")
                return (await queue.get(no_ack=True)).body

        def test_it(lavinmq_broker):
            assert asyncio.run(program(lavinmq_broker.url)) == b"hello"
    """)

    session.runpytest_subprocess("-p", PLUGIN).assert_outcomes(passed=1)


def test_each_worker_of_xdist_has_a_broker(session: pytest.Pytester) -> None:
    session.makepyfile("""
        import os
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_it(number, lavinmq_broker, channel):
            channel.queue_declare("of this worker", exclusive=True)
            print(f"\\nBROKER {os.getpid()} {lavinmq_broker.port}")
    """)

    result = session.runpytest_subprocess("-p", PLUGIN, "-p", "xdist.plugin", "-n2", "-rP")

    result.assert_outcomes(passed=4)
    lines = {tuple(line.split()[1:]) for line in result.outlines if line.startswith("BROKER")}
    assert len({pid for pid, _ in lines}) == 2
    assert len({port for _, port in lines}) == len(lines) == 2


def test_a_broker_that_ends_by_itself_is_an_error_of_the_session(session: pytest.Pytester) -> None:
    session.makepyfile("""
        def test_it(lavinmq_broker):
            server = lavinmq_broker._server
            server.events.call_soon_threadsafe(server._fatal, "/a/file", 28)
    """)

    result = session.runpytest_subprocess("-p", PLUGIN)

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*BrokerError: Cannot sync /a/file: No space left on device"])
