"""The retained messages of a data directory that LavinMQ 2.9 has written, and the way back."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import time
from base64 import b64decode
from pathlib import Path

import pytest

from tests.unit.mqtt.test_retained import Home

FIXTURES = Path(__file__).parents[2] / "fixtures" / "data-dir"
DEFAULT_VHOST = "42099b4af021e53fd8fd4e056c2568d7c2e3ffa8"


class Original:
    """LavinMQ's directory of retained messages."""

    def __init__(self, vhost: Path) -> None:
        self.place = vhost / "mqtt_retained_store"
        self.place.mkdir(parents=True, exist_ok=True)
        self.now_s = 1_600_000_000
        self.messages: dict[bytes, bytes] = {}
        self.write({})

    def file(self, topic: bytes) -> Path:
        """Of a topic's payload."""
        return self.place / f"{hashlib.md5(topic, usedforsecurity=False).hexdigest()}.msg"

    def write(self, messages: dict[bytes, bytes | None]) -> None:
        """Run for a while: messages come, or go, and the index is written anew at the end."""
        self.now_s += 1000
        for topic, payload in messages.items():
            if payload is None:
                self.file(topic).unlink()
                del self.messages[topic]
            else:
                self.file(topic).write_bytes(payload)
                os.utime(self.file(topic), (self.now_s, self.now_s))
                self.messages[topic] = payload
        index = self.place / "index"
        index.write_bytes(b"".join(topic + b"\n" for topic in self.messages))
        os.utime(index, (self.now_s, self.now_s))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "vhost")


@pytest.fixture
def original(home: Home) -> Original:
    return Original(home.directory)


def at(home: Home, seconds: int) -> None:
    """Let the clock of the loop show so many seconds since 1970."""
    home.loop.clock_offset_ms = 0
    home.loop.clock_offset_ms = seconds * 1000 - now_ms(home)


def now_ms(home: Home) -> int:
    """What the loop takes for the time."""
    return int(time.time() * 1000) + home.loop.clock_offset_ms


@pytest.mark.parametrize("name", ["rich", "rich-killed"])
def test_all_retained_messages_of_a_recorded_directory_are_there(tmp_path: Path, name: str) -> None:
    with tarfile.open(FIXTURES / f"{name}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    before = {
        path: path.read_bytes()
        for path in (tmp_path / DEFAULT_VHOST).rglob("mqtt_retained_store/*")
    }
    home = Home(tmp_path / DEFAULT_VHOST)

    assert home.store.import_original() == []

    manifest = json.loads((FIXTURES / f"{name}.json").read_text())["mqtt_retained"]
    expected = {each["topic"].encode(): b64decode(each["payload"]) for each in manifest}
    assert len(expected) == 3
    assert home.payloads() == expected
    assert {qos for _, _, qos, *_ in home.found(b"#")} == {1}
    assert {path: path.read_bytes() for path in before} == before, "somebody may go back"
    home.reopen()
    assert home.store.import_original() == []
    assert home.payloads() == expected


def test_what_changes_here_is_not_taken_over_again(home: Home, original: Original) -> None:
    original.write({b"a": b"1", b"b": b"2"})
    home.store.import_original()
    home.store.remove(b"a")
    home.store.put(b"b", b"new", 1, b"", now_ms(home))

    home.reopen()
    home.store.import_original()

    assert home.payloads() == {b"b": b"new"}


def test_what_lavinmq_has_changed_after_the_way_back_counts(home: Home, original: Original) -> None:
    original.write({b"kept": b"1", b"gone": b"1", b"changed": b"1", b"removed here": b"1"})
    at(home, original.now_s + 100)
    home.store.import_original()
    home.store.remove(b"removed here")
    home.store.put(b"made here", b"x", 1, b"", now_ms(home))
    home.store.close()
    original.write({b"gone": None, b"changed": b"2", b"new": b"2"})

    home.store = home._opened()
    at(home, original.now_s + 100)
    home.store.import_original()

    assert home.payloads() == {
        b"kept": b"1", b"changed": b"2", b"new": b"2", b"made here": b"x",
    }  # fmt: skip


def test_what_cannot_be_read_is_told(home: Home, original: Original) -> None:
    original.write({b"a": b"1", b"b": b"2", b"c": b"3"})
    original.file(b"a").unlink()
    original.file(b"b").unlink()
    original.file(b"b").mkdir()

    (note,) = home.store.import_original()

    assert "b'b'" in note
    assert home.payloads() == {b"c": b"3"}


def test_a_directory_without_retained_messages_has_none(home: Home) -> None:
    assert home.store.import_original() == []
    assert home.payloads() == {}
    assert home.files() == []
