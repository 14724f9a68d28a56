"""The stream of changes: what it tells, when, to whom, and how it ends."""

from __future__ import annotations

import http.client
import json
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from lavinmq.http import live
from tests.support.api import Api
from tests.support.managed import Managed, managed
from tests.support.waiting import wait_for

QUEUES = "queues?page=1&page_size=10&sort=name"


@pytest.fixture(scope="module")
def broker() -> Iterator[Managed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "SECOND_S", 0.05)
        with managed() as broker:
            yield broker


class Reader:
    """Reads a stream."""

    def __init__(
        self, api: Api, *views: str, more: str = "", headers: dict[str, str] | None = None
    ) -> None:
        self._connection = http.client.HTTPConnection(
            api.broker.host, api.broker.http_port, timeout=20
        )
        query = "&".join(f"view={quote(view, safe='')}" for view in views)
        path = f"/api/live?rate=1&{query}{more}"
        self._connection.request("GET", path, headers=api.login if headers is None else headers)
        self.answer = self._connection.getresponse()
        self.status = self.answer.status
        self._text = b""
        is_packed = self.answer.headers.get("Content-Encoding") == "gzip"
        self._unpack = zlib.decompressobj(wbits=31) if is_packed else None

    def next(self) -> tuple[str, Any]:
        """The next event, its kind and its data; ("end", None) when there are no more."""
        while True:
            while b"\n\n" not in self._text:
                piece = self.answer.read1(65536)
                if not piece:
                    return "end", None
                self._text += self._unpack.decompress(piece) if self._unpack else piece
            event, _, self._text = self._text.partition(b"\n\n")
            fields = dict(line.split(b": ", 1) for line in event.splitlines() if line != b":")
            if fields:
                kind = fields.get(b"event", b"message").decode()
                return kind, json.loads(fields[b"data"])

    def told(self) -> Any:
        """The next that is told of a view."""
        while True:
            kind, data = self.next()
            if kind != "beat":
                return data

    def until_beat(self) -> list[Any]:
        """What is told up to the end of a turn."""
        told = []
        while (event := self.next())[0] == "message":
            told.append(event[1])
        assert event[0] == "beat", event
        return told

    def close(self) -> None:
        """Hang up."""
        self.answer.close()
        self._connection.close()


@pytest.fixture
def reading() -> Iterator[Any]:
    readers: list[Reader] = []

    def open_(*given: Any, **more: Any) -> Reader:
        readers.append(Reader(*given, **more))
        return readers[-1]

    yield open_
    for each in readers:
        each.close()


def session(broker: Managed, user: str) -> dict[str, str]:
    """The cookie of a browser that has logged in."""
    given = {"username": user, "password": user}
    answer = broker.api("POST", "/session", given, headers={"Authorization": ""})
    assert answer.status == 204, answer.content
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


def test_a_view_is_told_as_the_api_answers_it_and_again_when_it_changes(
    broker: Managed, reading: Any
) -> None:
    broker.api("PUT", "/api/queues/%2F/told", {})
    reader = reading(broker.api, QUEUES)

    first = reader.told()

    assert reader.answer.headers["Content-Type"] == "text/event-stream"
    assert reader.answer.headers["X-Accel-Buffering"] == "no"
    assert (first["view"], first["status"]) == (QUEUES, 200)
    assert first["answer"] == broker.api.get(f"/api/{QUEUES}")
    assert reader.until_beat() == []
    assert reader.until_beat() == []  # nothing has changed
    broker.api("DELETE", "/api/queues/%2F/told")
    assert "told" not in [each["name"] for each in reader.told()["answer"]["items"]]


def test_views_are_told_apart(broker: Managed, reading: Any) -> None:
    reader = reading(broker.api, "vhosts?page=1", "exchanges/%2F/amq.topic", QUEUES)

    assert {each["view"] for each in reader.until_beat()} == {
        "vhosts?page=1", "exchanges/%2F/amq.topic", QUEUES,
    }  # fmt: skip


def test_a_compressed_stream_is_one_stream(broker: Managed, reading: Any) -> None:
    packed = broker.api.login | {"Accept-Encoding": "gzip"}
    reader = reading(broker.api, "vhosts?page=1", "overview", headers=packed)

    assert reader.answer.headers["Content-Encoding"] == "gzip"
    views = [reader.told()["view"] for _ in range(2)]
    assert views == ["vhosts?page=1", "overview"]
    broker.api("PUT", "/api/queues/%2F/more", {})
    assert reader.told()["view"] == "overview"


def test_an_answer_is_made_once_for_all_who_see_everything(
    broker: Managed, reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    inner = live._made

    async def counted(call: Any) -> Any:
        made.append(call.user.name)
        return await inner(call)

    monkeypatch.setattr(live, "_made", counted)
    other = broker.user("second_admin", "administrator")
    watcher = broker.user("watcher", "management", vhost="/")
    readers = [reading(each, "vhosts?page=1") for each in (broker.api, other, watcher, broker.api)]
    for each in readers:
        each.until_beat()

    together = made[made.index("watcher") :]
    assert set(made) == {"guest", "watcher"}
    assert together.count("guest") <= together.count("watcher") + 1


def test_who_sees_less_is_told_less(broker: Managed, reading: Any) -> None:
    broker.add_vhost("secret")
    broker.api("PUT", "/api/queues/secret/hidden", {})
    broker.api("PUT", "/api/queues/%2F/open", {})
    admin = reading(broker.api, QUEUES)
    member = reading(broker.user("member", "management", vhost="/"), QUEUES)

    names = [
        {each["name"] for each in reader.told()["answer"]["items"]} for reader in (admin, member)
    ]

    assert {"hidden", "open"} <= names[0]
    assert "open" in names[1]
    assert "hidden" not in names[1]


def test_what_was_allowed_is_told_no_more_when_it_is_not(broker: Managed, reading: Any) -> None:
    broker.api("PUT", "/api/queues/%2F/guarded", {})
    member = broker.user("narrowed", "management", vhost="/")
    reader = reading(member, "queues/%2F/guarded", QUEUES)
    assert [each["status"] for each in reader.until_beat()] == [200, 200]

    assert broker.api("DELETE", "/api/permissions/%2F/narrowed").status == 204

    told = {each["view"]: each for each in (reader.told(), reader.told())}
    assert told["queues/%2F/guarded"] == {"view": "queues/%2F/guarded", "status": 403}
    assert told[QUEUES]["answer"]["items"] == []


def test_a_deleted_user_is_told_nothing_more(broker: Managed, reading: Any) -> None:
    reader = reading(broker.user("leaver", "management", vhost="/"), "overview")
    reader.until_beat()

    broker.api("DELETE", "/api/users/leaver")

    while (kind := reader.next()[0]) != "end":
        assert kind in ("message", "beat")


def test_signing_out_ends_the_stream(broker: Managed, reading: Any) -> None:
    broker.user("signer", "management", vhost="/")
    cookie = session(broker, "signer")
    reader = reading(broker.api, QUEUES, headers=cookie)
    reader.until_beat()

    assert broker.api("DELETE", "/session", headers=cookie | {"Authorization": ""}).status == 204

    while (kind := reader.next()[0]) != "end":
        assert kind in ("message", "beat")


def test_what_is_gone_is_told(broker: Managed, reading: Any) -> None:
    broker.api("PUT", "/api/queues/%2F/going", {})
    reader = reading(broker.api, "queues/%2F/going")
    assert reader.told()["status"] == 200

    broker.api("DELETE", "/api/queues/%2F/going")

    assert reader.told() == {"view": "queues/%2F/going", "status": 404}


@pytest.mark.parametrize(
    "view",
    ["", "logs", "livelog", "definitions", "aliveness-test/%2F", "live?view=queues", "nothing",
     "queues/%2F/x/stream/raw", "../session", "queues?" + "x" * 3000],
)  # fmt: skip
def test_what_may_not_be_watched_is_refused(broker: Managed, reading: Any, view: str) -> None:
    assert reading(broker.api, view).status == 400


def test_views_and_rates_are_bounded(broker: Managed, reading: Any) -> None:
    assert reading(broker.api, *(f"queues?page={n}" for n in range(9))).status == 400
    assert reading(broker.api).status == 400
    for more in ("&rate=0", "&rate=61", "&rate=x", f"&tab={'x' * 65}"):
        assert reading(broker.api, "vhosts", more=more).status == 400


def test_a_log_in_has_so_many_streams_and_a_page_one(broker: Managed, reading: Any) -> None:
    broker.user("tabs", "management", vhost="/")
    cookie = session(broker, "tabs")

    def opened(tab: str) -> Any:
        return reading(broker.api, "vhosts", more=f"&tab={tab}", headers=cookie)

    first, *_ = [opened(str(tab)) for tab in range(live.MAX_OF_LOGIN)]
    refused = opened("another")
    again = opened("0")

    assert (refused.status, json.loads(refused.answer.read())["error"]) == (503, "too_many_streams")
    assert again.status == 200
    while first.next()[0] != "end":
        pass


def test_a_user_has_so_many_streams(
    broker: Managed, reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_OF_USER", 2)
    many = broker.user("many", "management", vhost="/")
    statuses = [reading(many, "vhosts", more=f"&tab={tab}").status for tab in range(3)]

    assert statuses == [200, 200, 503]


def test_who_hangs_up_makes_room(
    broker: Managed, reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_OF_USER", 1)
    user = broker.user("comes_and_goes", "management", vhost="/")
    taken = broker.inner.request_times.values()
    for _ in range(3):
        reader = reading(user, "vhosts")
        assert reader.status == 200
        reader.close()

        def is_free() -> bool:
            next_ = Reader(user, "vhosts")
            next_.close()
            return next_.status == 200

        wait_for(is_free, "the place of who has gone")
    assert broker.inner.request_times.values() == taken  # the hours of a stream are no latency


def test_an_answer_that_is_too_long_is_left_to_be_asked_for(
    broker: Managed, reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_ANSWER", 10)

    assert reading(broker.api, "overview").told() == {"view": "overview", "status": 413}


def test_a_reader_who_takes_nothing_is_passed_over(
    broker: Managed, reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "AHEAD", 0)
    sent: list[bool] = []
    inner = live.Stream.send

    def noted(self: Any, event: Any) -> None:
        sent.append(self.is_busy)
        inner(self, event)

    monkeypatch.setattr(live.Stream, "send", noted)
    monkeypatch.setattr(live.Stream, "is_busy", property(lambda self: self.tab == "slow"))
    slow = reading(broker.api, "overview", more="&tab=slow")
    fast = reading(broker.api, "overview", more="&tab=fast")
    for _ in range(3):
        fast.until_beat()

    assert sent.count(True) == 1  # its head
    assert slow.status == 200
