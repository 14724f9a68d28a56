"""Browse: messages are seen where they are; and what was chosen from them goes elsewhere."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.conftest import UniqueName
from tests.support import users
from tests.support.api import Answer, Api
from tests.support.broker import Broker
from tests.support.waiting import wait_for

QUEUES = "/api/queues/%2F"
PEOPLE: users.People = {
    "reader": ("management", {"/": ("", "^q$", "")}),
    "writer": ("management", {"/": ("", "^other$", ".*")}),
    "watcher": ("monitoring", {"/": (".*", ".*", ".*")}),
}


class Place:
    """A queue of one test, with messages 0, 1, 2 and so on."""

    def __init__(self, api: Api, name: str, n: int = 0, **arguments: Any) -> None:
        self.api, self.name = api, name
        body = {"durable": True, "arguments": arguments}
        assert api("PUT", f"{QUEUES}/{name}", body).status == 201
        for each in range(n):
            self.send(str(each))

    def send(self, payload: str, **properties: Any) -> None:
        """Publish to it."""
        body = {
            "properties": properties, "routing_key": self.name, "payload": payload,
            "payload_encoding": "string",
        }  # fmt: skip
        assert self.api("POST", "/api/exchanges/%2F/amq.default/publish", body).status == 200

    def ask(self, what: str = "", **body: Any) -> Answer:
        """What a request about its messages is answered."""
        return self.api("POST", f"{QUEUES}/{self.name}/browse{what and '/' + what}", body)

    def see(self, **body: Any) -> dict[str, Any]:
        """What browse answers."""
        answer = self.ask(**{"count": 100, **body})
        assert answer.status == 200, answer.content
        found: dict[str, Any] = answer.json
        return found

    def bodies(self, **body: Any) -> list[str]:
        """The payloads that browse shows."""
        return [each["payload"] for each in self.see(**body)["messages"]]

    @property
    def shown(self) -> dict[str, Any]:
        """The queue as the API has it."""
        found: dict[str, Any] = self.api("GET", f"{QUEUES}/{self.name}").json
        return found


@pytest.fixture
def place(api: Api, unique: UniqueName) -> Place:
    """A queue with five messages."""
    return Place(api, unique("browse"), 5)


def test_messages_are_seen_in_order_and_stay_as_they_are(
    place: Place, channel: BlockingChannel
) -> None:
    assert place.bodies() == ["0", "1", "2", "3", "4"]
    first = place.see(count=1)["messages"][0]
    assert first["redelivered"] is False and first["delivery_count"] == 0
    assert first["routing_key"] == place.name and first["payload_bytes"] == 1
    assert place.shown["messages_ready"] == 5
    assert place.shown["message_stats"].get("get", 0) == 0
    method, _, body = channel.basic_get(place.name, auto_ack=True)
    assert (body, method.redelivered) == (b"0", False)


def test_a_position_counts_from_the_head_or_the_end(place: Place) -> None:
    assert place.bodies(position=3) == ["3", "4"]
    assert place.bodies(position=-2) == ["3", "4"]
    assert place.bodies(position=5) == [] == place.bodies(position=10**12)
    assert place.bodies(position=-(10**9)) == ["0", "1", "2", "3", "4"]


def test_a_cursor_goes_on_behind_the_last_one(place: Place) -> None:
    seen, cursor = [], None
    while True:
        answer = place.see(count=2, **({"cursor": cursor} if cursor else {}))
        seen += [each["payload"] for each in answer["messages"]]
        cursor = answer["more"]
        if cursor is None:
            break
    assert seen == ["0", "1", "2", "3", "4"]


def test_unacked_messages_are_left_out_and_requeued_ones_come_first(
    place: Place, channel: BlockingChannel
) -> None:
    tags = [channel.basic_get(place.name)[0].delivery_tag for _ in range(3)]
    assert place.bodies() == ["3", "4"]
    channel.basic_nack(tags[1], requeue=True)
    channel.basic_nack(tags[0], requeue=True)
    wait_for(lambda: place.shown["messages_ready"] == 4, "the queue")
    found = place.see()["messages"]
    assert [(each["payload"], each["redelivered"]) for each in found] == [
        ("0", True), ("1", True), ("3", False), ("4", False),
    ]  # fmt: skip
    assert place.bodies(position=1, count=2) == ["1", "3"]


def test_levels_of_a_priority_queue_come_as_they_are_delivered(
    api: Api, unique: UniqueName
) -> None:
    place = Place(api, unique("browse"), **{"x-max-priority": 5})
    for priority, body in ((1, "a"), (5, "b"), (0, "c"), (5, "d")):
        place.send(body, priority=priority)
    assert place.bodies() == ["b", "d", "a", "c"]
    assert place.bodies(position=1) == ["d", "a", "c"]
    assert place.bodies(since="1h") == ["b", "d", "a", "c"]
    first = place.see(count=3)
    assert place.bodies(cursor=first["more"]) == ["c"]


def test_a_filter_looks_at_key_header_and_body(api: Api, unique: UniqueName) -> None:
    place = Place(api, unique("browse"))
    place.send("an apple", headers={"kind": "fruit", "n": 3})
    place.send("a carrot", headers={"kind": "root", "fresh": True})
    place.send("nothing")
    assert place.bodies(text="appl") == ["an apple"]
    assert place.bodies(header="kind") == ["an apple", "a carrot"]
    assert place.bodies(header="kind", value="root") == ["a carrot"]
    assert place.bodies(header="n", value="3") == ["an apple"]
    assert place.bodies(header="fresh", value="true") == ["a carrot"]
    assert place.bodies(routing_key=place.name[2:], text="a ") == ["a carrot"]
    assert place.bodies(routing_key="\0") == []
    assert place.see(text="x")["scanned"] == 3


def test_what_was_stored_since_is_shown(place: Place) -> None:
    stored = place.see()["messages"][3]["stored"]
    since = place.bodies(since="1h")
    assert since == ["0", "1", "2", "3", "4"]
    at = f"{stored // 1000}"
    assert place.ask(since=at).status == 400
    assert place.bodies(since="2999-01-01T00:00:00Z") == []


def test_a_scan_has_an_end_and_goes_on(place: Place) -> None:
    answer = place.see(text="nowhere", scan=0)
    assert answer["messages"] == [] and answer["more"] is not None
    assert place.see(text="4", cursor=answer["more"])["more"] is None


def test_a_stream_is_browsed_by_its_offsets(api: Api, unique: UniqueName) -> None:
    place = Place(api, unique("browse"), 4, **{"x-queue-type": "stream"})
    found = place.see()["messages"]
    assert [(each["offset"], each["payload"]) for each in found] == [
        (1, "0"), (2, "1"), (3, "2"), (4, "3"),
    ]  # fmt: skip
    assert place.bodies(position=-1) == ["3"]
    assert place.bodies(position=2, text="3") == ["3"]
    assert place.bodies(cursor=place.see(count=1)["more"]) == ["1", "2", "3"]
    assert place.ask("delete", ids=["0.1.4.1"]).status == 400


def test_large_messages_are_cut_and_paused_queues_read(
    api: Api, unique: UniqueName, channel: BlockingChannel
) -> None:
    place = Place(api, unique("browse"))
    channel.confirm_delivery()
    channel.basic_publish("", place.name, b"x" * (3 << 20))
    place.send("ä" * 100)
    assert api("PUT", f"{QUEUES}/{place.name}/pause").status == 204
    found = place.see(truncate=5)["messages"]
    assert [each["payload"] for each in found] == ["xxxxx", "ää"]
    assert found[0]["payload_bytes"] == 3 << 20
    assert api("PUT", f"{QUEUES}/{place.name}/resume").status == 204


def test_many_messages_over_segments_are_found(
    api: Api, unique: UniqueName, channel: BlockingChannel
) -> None:
    place = Place(api, unique("browse"))
    channel.confirm_delivery()
    body = b"." * 40_000
    for each in range(500):
        channel.basic_publish("", place.name, b"%06d" % each + body)
    for n in (0, 250, 499):
        got = place.see(position=n, count=1, truncate=6)["messages"]
        assert [each["payload"] for each in got] == [f"{n:06}"]
    got = place.see(text="000490", count=1, truncate=6)
    assert got["messages"][0]["payload"] == "000490" and got["scanned"] <= 500


@pytest.mark.parametrize(
    "body",
    [{"count": -1}, {"count": 10**9}, {"scan": -1}, {"truncate": 1 << 40}, {"cursor": "x"},
     {"cursor": "=" * 17}, {"since": "when"}, {"value": "of nothing"}, {"text": "x" * 5000},
     {"since": "5m", "position": 1}],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(place: Place, body: dict[str, Any]) -> None:
    assert place.ask(**body).status == 400


def test_a_hostile_cursor_shows_messages_or_nothing(place: Place) -> None:
    for at in [
        (0, True, 1, 5),
        (0, False, 1, 7),
        (9, False, 1, 4),
        (0, False, 2**32 - 1, 2**32 - 1),
    ]:
        cursor = base64.urlsafe_b64encode(struct.pack(">B?II", *at)).decode()
        assert set(place.bodies(cursor=cursor)) <= {"0", "1", "2", "3", "4"}


# --- what was chosen --------------------------------------------------------------------------


def ids(place: Place, *wanted: str) -> list[str]:
    """The ids of messages with these payloads."""
    return [each["id"] for each in place.see()["messages"] if each["payload"] in wanted]


def drained(channel: BlockingChannel, name: str) -> list[str]:
    """The bodies that a queue delivers."""
    found = []
    while (got := channel.basic_get(name, auto_ack=True))[0] is not None:
        found.append(got[2].decode())
    return found


def test_chosen_messages_are_deleted_and_the_others_delivered(
    place: Place, channel: BlockingChannel
) -> None:
    chosen = ids(place, "1", "3")
    assert place.ask("delete", ids=chosen).json == {"deleted": 2, "gone": 0, "refused": 0}
    assert place.bodies() == ["0", "2", "4"]
    assert place.shown["messages_ready"] == 3
    assert place.ask("delete", ids=chosen).json == {"deleted": 0, "gone": 2, "refused": 0}
    assert drained(channel, place.name) == ["0", "2", "4"]
    assert place.shown["messages"] == 0


def test_a_requeued_message_is_deleted(place: Place, channel: BlockingChannel) -> None:
    taken = [channel.basic_get(place.name)[0].delivery_tag for _ in range(4)]
    for tag in (taken[2], taken[0], taken[1]):
        channel.basic_nack(tag, requeue=True)
    wait_for(lambda: place.shown["messages_ready"] == 4, "the queue")
    assert place.ask("delete", ids=ids(place, "1", "4")).json["deleted"] == 2
    assert drained(channel, place.name) == ["0", "2"]
    channel.basic_nack(taken[3], requeue=True)
    wait_for(lambda: drained(channel, place.name) == ["3"], "the queue")


@pytest.mark.parametrize("what", ["move", "copy"])
def test_chosen_messages_go_to_another_queue(
    api: Api, place: Place, channel: BlockingChannel, unique: UniqueName, what: str
) -> None:
    to = Place(api, unique("to"))
    answer = place.ask(what, ids=ids(place, "4", "2"), destination=to.name)
    assert answer.status == 200, answer.content
    assert answer.json == {
        {"move": "moved", "copy": "copied"}[what]: 2, "gone": 0, "refused": 0
    }  # fmt: skip
    assert drained(channel, to.name) == ["2", "4"]
    left = ["0", "1", "3"] if what == "move" else ["0", "1", "2", "3", "4"]
    assert drained(channel, place.name) == left


def test_a_large_message_is_moved(api: Api, unique: UniqueName, channel: BlockingChannel) -> None:
    place, to = Place(api, unique("browse"), 1), Place(api, unique("to"))
    channel.confirm_delivery()
    channel.basic_publish("", place.name, b"y" * (5 << 20))
    large = place.see(truncate=1)["messages"][1]["id"]
    assert place.ask("move", ids=[large], destination=to.name).json["moved"] == 1
    assert place.bodies() == ["0"]
    assert channel.basic_get(to.name, auto_ack=True)[2] == b"y" * (5 << 20)


def test_a_message_with_a_deadline_that_is_deleted_does_not_expire_again(
    api: Api, unique: UniqueName
) -> None:
    place = Place(api, unique("browse"), 1)
    place.send("short", expiration="1500")
    place.send("later")
    assert place.ask("delete", ids=ids(place, "short")).json["deleted"] == 1
    place.send("gauge", expiration="1600")
    wait_for(lambda: place.bodies() == ["0", "later"], "the queue")
    assert place.shown["messages_ready"] == 2


def test_an_id_that_points_into_a_message_is_gone(place: Place) -> None:
    level, seg, pos, digest = ids(place, "2")[0].split(".")
    inside = f"{level}.{seg}.{int(pos) + 1}.{digest}"
    other = f"{level}.{seg}.{pos}.{int(digest, 16) ^ 1:x}"
    answer = place.ask("delete", ids=[inside, other, f"0.0.0.{digest}", f"0.{2**32 - 1}.4.1"])
    assert answer.json == {"deleted": 0, "gone": 4, "refused": 0}
    assert place.bodies() == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    "given", [[1], ["x"], ["0.1.4"], ["0.1.99999999999.1"], ["0.1.4.1"] * 1001]
)
def test_ids_that_are_none_are_refused(place: Place, given: list[Any]) -> None:
    assert place.ask("delete", ids=given).status == 400


def test_a_destination_that_is_not_there_or_the_same_is_refused(place: Place) -> None:
    chosen = ids(place, "0")
    assert place.ask("move", ids=chosen, destination="nowhere-at-all").status == 404
    assert place.ask("move", ids=chosen, destination=place.name).status == 400


def test_a_full_destination_refuses(api: Api, place: Place, unique: UniqueName) -> None:
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    to = Place(api, unique("to"), **full)
    answer = place.ask("move", ids=ids(place, "0", "1", "2"), destination=to.name)
    assert answer.json == {"moved": 1, "gone": 0, "refused": 2}
    assert place.bodies() == ["1", "2", "3", "4"]


STREAM = {"x-queue-type": "stream"}


@pytest.mark.parametrize("arguments", [{}, STREAM, {"x-max-priority": 3}])
def test_messages_of_a_stream_are_copied_and_stay(
    api: Api, unique: UniqueName, arguments: dict[str, Any]
) -> None:
    place, to = Place(api, unique("browse"), 5, **STREAM), Place(api, unique("to"), **arguments)
    place.send("last", headers={"n": 5}, expiration="600000")
    answer = place.ask("copy", ids=ids(place, "last", "3", "1"), destination=to.name)
    assert answer.json == {"copied": 3, "gone": 0, "refused": 0}
    found = to.see()["messages"]
    assert [each["payload"] for each in found] == ["1", "3", "last"]
    assert {each["routing_key"] for each in found} == {to.name}
    headers = [each["properties"].pop("headers", {}) for each in found]
    offsets = [each.pop("x-stream-offset", None) for each in headers]
    assert offsets == ([1, 2, 3] if arguments == STREAM else [None] * 3), "of where it is now"
    assert headers[0] == {} == found[0]["properties"]
    assert (headers[2], found[2]["properties"]) == ({"n": 5}, {"expiration": "600000"})
    assert place.bodies() == ["0", "1", "2", "3", "4", "last"]


def test_a_large_message_of_a_stream_is_copied(
    api: Api, unique: UniqueName, channel: BlockingChannel
) -> None:
    place, to = Place(api, unique("browse"), 1, **STREAM), Place(api, unique("to"))
    channel.confirm_delivery()
    channel.basic_publish("", place.name, b"z" * (5 << 20))
    place.send("behind")
    chosen = [each["id"] for each in place.see(truncate=1)["messages"][1:]]
    assert place.ask("copy", ids=chosen, destination=to.name).json["copied"] == 2
    assert channel.basic_get(to.name, auto_ack=True)[2] == b"z" * (5 << 20)
    assert drained(channel, to.name) == ["behind"]


@pytest.mark.parametrize("what", ["move", "delete"])
def test_messages_of_a_stream_are_not_taken_away(
    api: Api, place: Place, unique: UniqueName, what: str
) -> None:
    stream = Place(api, unique("stream"), 2, **STREAM)
    answer = stream.ask(what, ids=ids(stream, "0"), destination=place.name)
    assert answer.status == 400
    assert "only appended to" in answer.json["reason"]
    assert stream.bodies() == ["0", "1"]


def test_an_id_of_another_message_of_a_stream_is_gone(
    api: Api, place: Place, unique: UniqueName
) -> None:
    stream = Place(api, unique("stream"), 3, **STREAM)
    offset, digest = ids(stream, "1")[0].split(".")
    other = [f"{offset}.{int(digest, 16) ^ 1:x}", f"3.{digest}", f"0.{digest}", f"99.{digest}",
             f"{10**17}.{digest}"]  # fmt: skip
    answer = stream.ask("copy", ids=other, destination=place.name)
    assert answer.json == {"copied": 0, "gone": 5, "refused": 0}
    assert stream.ask("copy", ids=ids(place, "0"), destination=place.name).status == 400
    assert place.ask("copy", ids=[f"1.{digest}"], destination=stream.name).status == 400


def test_what_a_stream_has_dropped_is_gone(
    api: Api, place: Place, unique: UniqueName, channel: BlockingChannel
) -> None:
    stream = Place(api, unique("stream"), **STREAM, **{"x-max-length-bytes": 20_000_000})
    channel.confirm_delivery()
    channel.basic_publish("", stream.name, b"first")
    chosen = ids(stream, "first")
    for _ in range(30):
        channel.basic_publish("", stream.name, b"." * 1_000_000)
    wait_for(lambda: stream.see(count=1, truncate=1)["messages"][0]["offset"] > 1, "the limit")
    answer = stream.ask("copy", ids=chosen, destination=place.name)
    assert answer.json == {"copied": 0, "gone": 1, "refused": 0}


def test_a_full_queue_refuses_copies_of_a_stream(api: Api, unique: UniqueName) -> None:
    stream = Place(api, unique("stream"), 3, **STREAM)
    to = Place(api, unique("to"), **{"x-max-length": 1, "x-overflow": "reject-publish"})
    answer = stream.ask("copy", ids=ids(stream, "0", "1", "2"), destination=to.name)
    assert answer.json == {"copied": 1, "gone": 0, "refused": 2}


# --- rights -----------------------------------------------------------------------------------


def test_to_browse_takes_the_right_to_read(staffed: Broker) -> None:
    admin = Api(staffed)
    Place(admin, "q", 1)
    Place(admin, "other")
    read, browse = f"{QUEUES}/q/browse", {"count": 1}
    assert Api(staffed, "reader")("POST", read, browse).status == 200
    assert Api(staffed, "writer")("POST", read, browse).status == 403
    assert Api(staffed, "watcher")("POST", read, browse).status == 403
    chosen = {"ids": ["0.1.4.1"], "destination": "other"}
    assert Api(staffed, "reader")("POST", f"{read}/delete", chosen).status == 200
    for what in ("move", "copy"):
        assert Api(staffed, "reader")("POST", f"{read}/{what}", chosen).status == 403
        assert Api(staffed, "writer")("POST", f"{read}/{what}", chosen).status == 403
    assert json.loads(admin("POST", read, browse).content)["messages"]
