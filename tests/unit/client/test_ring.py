"""The ring of a producer: what it holds, sends, and how each message ends exactly once."""

from __future__ import annotations

import gc
import itertools
import random
import sys
import sysconfig
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lavinmq.client import _engine
from lavinmq.client.errors import (
    DroppedError,
    NackError,
    ProtocolViolation,
    ReturnedError,
    ValueNotEncodable,
)
from tests.support import client_frames as frames

MOST = 1 << 20


class Ring(_engine.Ring):
    """A ring that says when it is full, and counts its wake-ups."""

    def __init__(self, **options: Any) -> None:
        self.woken = 0
        self.configure(**{"routing_key": "q", **options})

    def wake(self) -> None:
        self.woken += 1

    def full(self, body: bytes, prepared: Any) -> Any:
        return None


class Side:
    """A ring on a channel, with the input that brings its confirms."""

    def __init__(self, **options: Any) -> None:
        self.ring = Ring(**options)
        self.out = _engine.Output()
        self.connect()

    def connect(self) -> None:
        self.input = _engine.Input()
        self.input.open(_engine.Port(1, ring=self.ring))
        self.ring.attach(1, 131072)

    def send(self) -> list[bytes]:
        """Pump, and return the bodies that went out."""
        self.ring.pump(self.out, MOST, "too large", "expired")
        return [payload for kind, _, payload in frames.cut(self.out.take()) if kind == 3]

    def confirm(self, tag: int, multiple: bool = False) -> None:
        self.input.feed(frames.confirm(1, tag, multiple))

    def refuse(self, tag: int, multiple: bool = False) -> None:
        self.input.feed(frames.refusal(1, tag, multiple))


def test_nothing_is_in_flight_on_a_new_channel() -> None:
    """Also when nobody said that the old one is gone: its tags are not those of the new one."""
    side = Side()
    receipts = [side.ring.publish(body) for body in (b"a", b"b")]
    assert side.send() == [b"a", b"b"]

    side.connect()
    assert side.ring.in_flight == 0
    assert side.send() == [b"a", b"b"]
    side.confirm(1)

    assert [receipt.done() for receipt in receipts] == [True, False]


def test_a_message_goes_out_as_three_frames() -> None:
    side = Side(properties={"delivery_mode": 2})
    side.ring.publish(b"hello")

    side.ring.pump(side.out, MOST)

    method, header, body = frames.cut(side.out.take())
    assert method == (1, 1, b"\x00\x3c\x00\x28\x00\x00\x00\x01q\x00")
    assert header == (2, 1, b"\x00\x3c\x00\x00" + (5).to_bytes(8, "big") + b"\x10\x00\x02")
    assert body == (3, 1, b"hello")


def test_a_body_is_cut_by_the_largest_frame() -> None:
    side = Side()
    side.ring.attach(1, 4096)
    body = random.randbytes(10_000)
    side.ring.publish(body)

    pieces = side.send()

    assert [len(piece) for piece in pieces] == [4088, 4088, 1824]
    assert b"".join(pieces) == body


def test_a_receipt_ends_with_the_confirm() -> None:
    side = Side()
    receipt = side.ring.publish(b"x")
    before = receipt.status
    side.send()
    sent = receipt.status
    side.confirm(1)

    assert (before, sent, receipt.status) == ("buffered", "sent", "confirmed")
    assert receipt.value() == "confirmed"
    assert receipt.delivery_tag == 1


def test_without_confirms_a_message_ends_when_it_is_sent() -> None:
    side = Side(confirms=False)
    receipt = side.ring.publish(b"x")
    side.send()

    assert receipt.status == "sent" and side.ring.count == 0


def test_a_confirm_of_several_ends_them_all() -> None:
    side = Side()
    receipts = [side.ring.publish(b"%d" % n) for n in range(10)]
    side.send()
    side.confirm(7, multiple=True)

    assert [each.status for each in receipts] == ["confirmed"] * 7 + ["sent"] * 3
    assert side.ring.in_flight == 3


def test_confirms_may_come_in_any_order() -> None:
    side = Side()
    receipts = [side.ring.publish(b"%d" % n) for n in range(5)]
    side.send()
    for tag in (3, 5, 1, 4, 2):
        side.confirm(tag)

    assert all(each.status == "confirmed" for each in receipts)
    assert side.ring.count == side.ring.n_bytes == 0


@pytest.mark.parametrize("tag", [0, 2, 2**63])
def test_a_confirm_of_what_was_never_published_breaks_the_protocol(tag: int) -> None:
    side = Side()
    side.ring.publish(b"x")
    side.send()

    with pytest.raises(ProtocolViolation, match="never published"):
        side.confirm(tag)


def test_no_more_are_in_flight_than_allowed() -> None:
    side = Side(max_in_flight=3)
    for n in range(5):
        side.ring.publish(b"%d" % n)

    first = side.send()
    side.confirm(1)
    second = side.send()

    assert first == [b"0", b"1", b"2"] and second == [b"3"]


def test_after_a_lost_connection_the_unconfirmed_go_first_and_in_order() -> None:
    side = Side()
    for n in range(6):
        side.ring.publish(b"%d" % n)
    side.send()
    side.confirm(2)
    side.confirm(4)
    side.ring.reset()
    side.ring.publish(b"new")
    side.connect()

    assert side.send() == [b"0", b"2", b"4", b"5", b"new"]
    assert side.ring.resent == 4


def test_what_is_refused_goes_again_before_newer_ones() -> None:
    side = Side(max_in_flight=2)
    for n in range(4):
        side.ring.publish(b"%d" % n)
    side.send()
    side.refuse(1)
    side.confirm(2)
    held = side.send()

    assert held == []
    assert side.ring.retry_in is not None and side.ring.retry_in > 0
    side.ring.reset()
    side.connect()
    assert side.send() == [b"0", b"2"]


def test_without_retries_a_refusal_is_the_end() -> None:
    side = Side(retry_nacks=False)
    receipt = side.ring.publish(b"x")
    side.send()
    side.refuse(1)

    assert receipt.status == "nacked"
    with pytest.raises(NackError):
        receipt.value()


def test_a_returned_message_ends_with_its_confirm() -> None:
    side = Side(mandatory=True)
    first, second = side.ring.publish(b"a"), side.ring.publish(b"b")
    side.send()
    side.input.feed(_returned(b"b"))
    side.confirm(2, multiple=True)

    assert (first.status, second.status) == ("confirmed", "returned")
    with pytest.raises(ReturnedError):
        second.value()


def _returned(body: bytes) -> bytes:
    head = _engine.encode_method(1, 60 << 16 | 50, "Hsss", 312, "NO_ROUTE", "", "q")
    return head + frames.content(1, body)


def test_the_oldest_that_was_not_sent_is_dropped() -> None:
    side = Side(max_in_flight=1)
    side.ring.want("dropped")
    first, second = side.ring.publish(b"a"), side.ring.publish(b"b")
    side.send()

    assert side.ring.drop_oldest("full")
    assert not side.ring.drop_oldest("full")
    assert (first.status, second.status) == ("sent", "dropped")
    with pytest.raises(DroppedError) as raised:
        second.value()
    assert raised.value.reason == "full"
    [(outcome, message, reason)] = side.ring.take_outcomes()
    assert (outcome, message.body, message.routing_key, reason) == ("dropped", b"b", "q", "full")


def test_a_ring_is_bounded_by_messages_and_by_bytes() -> None:
    by_count = Side(capacity=3)
    by_bytes = Side(capacity_bytes=100)

    assert [by_count.ring.publish(b"x") is not None for _ in range(4)] == [True] * 3 + [False]
    assert [by_bytes.ring.publish(b"x" * 40) is not None for _ in range(3)] == [True, True, False]


def test_one_message_larger_than_the_limit_fits_into_an_empty_ring() -> None:
    side = Side(capacity_bytes=10)

    assert side.ring.publish(b"x" * 50) is not None
    assert side.ring.publish(b"x") is None


def test_what_is_under_way_says_what_could_be_held() -> None:
    """The rest can be dropped."""
    side = Side(capacity=3, capacity_bytes=100, max_in_flight=2)
    for _ in range(2):
        side.ring.publish(b"x" * 30)
    assert side.ring.could_hold(b"x" * 500)
    side.send()

    assert side.ring.could_hold(b"x" * 40) and not side.ring.could_hold(b"x" * 41)
    side.confirm(1)
    assert side.ring.could_hold(b"x" * 70)
    side.confirm(2)
    assert side.ring.could_hold(b"x" * 500)


def test_what_was_taken_stays_as_it_is_while_more_is_gathered() -> None:
    """A transport may keep it; a large piece is not copied for that."""
    out = _engine.Output()
    pieces = []
    for body in (b"a" * 100_000, b"b" * 100, b"c" * 3_000_000, b"d" * 70_000):
        out.put(body)
        pieces.append((out.take(), body))
        assert len(out) == 0
    del out
    assert all(bytes(piece) == body and len(piece) == len(body) for piece, body in pieces)
    assert memoryview(pieces[0][0]).readonly


def test_who_waits_no_more_is_not_called() -> None:
    side = Side()
    receipt = side.ring.publish(b"x")
    heard: list[_engine.Receipt] = []
    forgotten: list[_engine.Receipt] = []
    for each in (heard, forgotten, forgotten):
        receipt.add_done_callback(each.append)
    receipt.remove_done_callback(forgotten.append)
    side.send()
    side.confirm(1)
    for ended in side.ring.take_ended():
        ended.run_callbacks(print)
    receipt.remove_done_callback(heard.append)

    assert heard == [receipt] and not forgotten


def test_a_message_stuck_at_the_head_does_not_let_the_ring_grow_for_ever() -> None:
    side = Side(capacity=100)
    for n in range(1000):
        if side.ring.publish(b"x") is None:
            break
        side.send()
        if n:
            side.confirm(n + 1)

    assert side.ring.memory < 25_000


def test_keywords_become_properties_target_and_flags() -> None:
    side = Side(properties={"delivery_mode": 2, "headers": {"a": 1}})
    side.ring.publish(b"x", headers={"b": 2}, routing_key="k", exchange="e", mandatory=True)

    side.ring.pump(side.out, MOST)

    method, header, _ = frames.cut(side.out.take())
    assert method[2] == b"\x00\x3c\x00\x28\x00\x00\x01e\x01k\x01"
    found = _engine.decode_properties(header[2][12:])
    assert found == {"delivery_mode": 2, "headers": {"a": 1, "b": 2}}


def test_a_wrong_keyword_is_refused_and_nothing_is_taken() -> None:
    side = Side()

    with pytest.raises(ValueNotEncodable, match="colour"):
        side.ring.publish(b"x", colour="red")
    assert side.ring.count == 0


def test_properties_larger_than_a_frame_end_the_message() -> None:
    side = Side()
    side.ring.attach(1, 4096)
    receipt = side.ring.publish(b"x", headers={"k": "v" * 5000})
    after = side.ring.publish(b"y")

    assert side.send() == [b"y"]
    assert receipt.status == "dropped" and receipt.reason == "too large"
    assert after.status == "sent"


def test_what_is_too_old_is_dropped_and_not_sent() -> None:
    side = Side(ttl_ms=1)
    receipt = side.ring.publish(b"x")
    deadline = threading.Event()
    while not side.ring.expire("expired"):
        deadline.wait(0.001)

    assert receipt.status == "dropped" and receipt.reason == "expired"
    assert side.send() == []


def test_stable_ids_stay_when_a_message_is_sent_again() -> None:
    mark = _engine.SEQUENCE_MARK
    side = Side(stamped=True, properties={"message_id": f"p-{mark}", "headers": {"x": mark}})
    side.ring.publish(b"a")
    side.ring.publish(b"b", correlation_id="c")
    side.ring.pump(side.out, MOST)
    first = side.out.take()
    side.ring.reset()
    side.connect()
    side.ring.pump(side.out, MOST)

    assert side.out.take() == first
    heads = [payload for kind, _, payload in frames.cut(first) if kind == 2]
    found = [_engine.decode_properties(head[12:]) for head in heads]
    assert [each["message_id"] for each in found] == ["p-" + "0" * 16, "p-" + "0" * 15 + "1"]
    assert found[1]["headers"] == {"x": "0" * 15 + "1"} and found[1]["correlation_id"] == "c"


def test_a_batch_ends_when_all_of_it_has() -> None:
    side = Side()
    receipt = side.ring.batch()
    taken = side.ring.add_many([b"a", bytearray(b"b"), "c"], 0, (None, None, 0), receipt)
    receipt.seal()
    called: list[str] = []
    receipt.add_done_callback(lambda done: called.append(done.status))
    bodies = side.send()
    side.confirm(2, multiple=True)
    open_yet = receipt.done()
    side.confirm(3)
    for ended in side.ring.take_ended():
        ended.run_callbacks(frames.raised)

    assert (taken, bodies, open_yet) == (3, [b"a", b"b", b"c"], False)
    assert receipt.status == "confirmed" and receipt.size == 3 and called == ["confirmed"]


def test_a_batch_has_the_first_failure_of_its_messages() -> None:
    side = Side(retry_nacks=False)
    receipt = side.ring.batch()
    side.ring.add_many([b"a", b"b", b"c"], 0, (None, None, 0), receipt)
    receipt.seal()
    side.send()
    side.confirm(1)
    side.refuse(2)
    side.confirm(3)

    assert receipt.status == "nacked" and receipt.failed == 1


def test_an_empty_batch_has_ended_well() -> None:
    side = Side()
    receipt = side.ring.batch()
    receipt.seal()

    assert receipt.value() == "confirmed"


def test_a_receipt_that_goes_away_leaves_its_message() -> None:
    side = Side()
    for _ in range(100):
        side.ring.publish(b"x")
    gc.collect()

    assert len(side.send()) == 100
    side.confirm(100, multiple=True)
    assert side.ring.count == 0


def test_a_callback_keeps_its_receipt() -> None:
    side = Side()
    called: list[str] = []
    side.ring.publish(b"x").add_done_callback(lambda done: called.append(done.status))
    gc.collect()
    side.send()
    side.confirm(1)
    for ended in side.ring.take_ended():
        ended.run_callbacks(frames.raised)

    assert called == ["confirmed"]


def test_a_callback_that_raises_keeps_no_other_from_hearing() -> None:
    side = Side()
    called: list[str] = []
    errors: list[BaseException] = []
    receipt = side.ring.publish(b"x")
    receipt.add_done_callback(lambda _: sys.exit())
    receipt.add_done_callback(lambda _: 1 // 0)
    receipt.add_done_callback(lambda done: called.append(done.status))
    side.send()
    side.confirm(1)
    for ended in side.ring.take_ended():
        ended.run_callbacks(errors.append)

    assert called == ["confirmed"]
    assert [type(error) for error in errors] == [SystemExit, ZeroDivisionError]


def test_a_ring_lets_go_of_what_it_holds() -> None:
    body = bytes(bytearray(b"a body of its own"))  # no constant: those are for ever without a GIL
    before = sys.getrefcount(body)
    side = Side()
    receipt = side.ring.publish(body)
    batch = side.ring.batch()
    side.ring.add_many([body], 0, (None, None, 0), batch)
    batch.seal()

    assert sys.getrefcount(body) == before + 2
    side.ring.give_up("closed")
    assert sys.getrefcount(body) == before
    assert receipt.status == batch.status == "dropped"
    side.ring.publish(body)
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        side.ring.give_up("closed")  # what is in a slot has its ring there, and goes by a close
    del side, receipt, batch
    assert sys.getrefcount(body) == before


def test_a_buffered_message_takes_at_most_120_bytes_beside_its_body() -> None:
    side = Side(capacity=1 << 20)
    n = 1 << 15
    for _ in range(n):
        side.ring.publish(b"x" * 100)

    # 33 bytes are those of a bytes object.
    assert side.ring.memory / n + 33 <= 120


def test_the_wake_up_comes_once_until_all_was_sent() -> None:
    side = Side()
    side.send()
    for _ in range(5):
        side.ring.publish(b"x")
    first = side.ring.woken
    side.send()
    side.ring.publish(b"x")

    assert (first, side.ring.woken) == (1, 2)


def test_a_retry_limit_of_the_first_message_is_its_end_alone() -> None:
    side = Side()
    first, second = side.ring.publish(b"a"), side.ring.publish(b"b")
    side.send()
    side.ring.reset()

    assert side.ring.give_up_first("refused")
    assert (first.status, second.status) == ("dropped", "buffered")


def test_equal_bodies_are_messages_of_their_own() -> None:
    """One that is refused has no part in how the others end."""
    side = Side()
    receipts = [side.ring.publish(b"same") for _ in range(3)]
    side.send()
    side.refuse(2)
    side.confirm(1)
    side.confirm(3)
    assert [each.status for each in receipts] == ["confirmed", "buffered", "confirmed"]
    for _ in range(5):
        side.ring.reset()
        side.connect()
        assert side.send() == [b"same"]
        side.refuse(1)
    side.ring.reset()
    side.connect()
    side.send()
    side.confirm(1)

    assert receipts[1].status == "confirmed" and side.ring.count_of("confirmed") == 3


def test_drops_are_counted_by_reason_and_no_error_is_kept() -> None:
    side = Side(capacity=2)
    side.ring.publish(b"a")
    side.ring.refuse(b"b", side.ring.prepare({}), "full")
    side.ring.drop_oldest("full")
    side.ring.publish(b"c")
    side.ring.give_up("closed")
    side.ring.publish(b"d")
    side.ring.give_up(ValueError("each is another one"))

    assert side.ring.dropped_by == {"full": 2, "closed": 1}
    assert side.ring.count_of("dropped") == 4


def test_many_threads_lose_nothing_and_keep_their_order() -> None:
    side = Side(capacity=1 << 20, max_in_flight=1 << 20)
    n, threads = 2000, 4

    def work(number: int) -> None:
        for at in range(n):
            side.ring.publish(b"%d %d" % (number, at))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    sent: list[bytes] = []
    while any(worker.is_alive() for worker in workers) or side.ring.has_work:
        sent += side.send()
    for worker in workers:
        worker.join()
    sent += side.send()

    assert len(sent) == n * threads
    for number in range(threads):
        mine = [int(each.split()[1]) for each in sent if each.split()[0] == b"%d" % number]
        assert mine == list(range(n))


class Model(RuleBasedStateMachine):
    """Any order of publishes, confirms, losses: each message ends once, in flight are in order."""

    def __init__(self) -> None:
        super().__init__()
        self.side = Side(capacity=40, max_in_flight=8, retry_nacks=False)
        for outcome in ("confirmed", "nacked", "dropped"):
            self.side.ring.want(outcome)
        self.accepted: list[bytes] = []
        self.ended: dict[bytes, str] = {}
        self.flight: dict[int, bytes] = {}
        self.tag = 0
        self.receipts: dict[bytes, _engine.Receipt] = {}

    def look(self) -> None:
        for outcome, message, _ in self.side.ring.take_outcomes():
            assert message.body not in self.ended, "it ended twice"
            self.ended[message.body] = outcome

    @rule()
    def rest(self) -> None:
        self.side.ring.rest()

    @rule(keep=st.booleans())
    def publish(self, keep: bool) -> None:
        body = b"%d" % len(self.accepted)
        receipt = self.side.ring.publish(body)
        if receipt is not None:
            self.accepted.append(body)
            if keep:
                self.receipts[body] = receipt

    @rule()
    def send(self) -> None:
        for body in self.side.send():
            self.tag += 1
            self.flight[self.tag] = body

    @precondition(lambda self: self.flight)
    @rule(data=st.data(), multiple=st.booleans(), ack=st.booleans())
    def answer(self, data: st.DataObject, multiple: bool, ack: bool) -> None:
        tag = data.draw(st.sampled_from(sorted(self.flight)))
        (self.side.confirm if ack else self.side.refuse)(tag, multiple)
        tags = [each for each in self.flight if each == tag or (multiple and each < tag)]
        self.look()
        for each in tags:
            assert self.ended[self.flight.pop(each)] == ("confirmed" if ack else "nacked")

    @rule()
    def lose(self) -> None:
        self.side.ring.reset()
        self.side.connect()
        self.flight, self.tag = {}, 0

    @rule()
    def drop(self) -> None:
        self.side.ring.drop_oldest("full")
        self.look()

    @invariant()
    def what_is_held_is_what_has_not_ended(self) -> None:
        self.look()
        open_ones = [body for body in self.accepted if body not in self.ended]
        assert self.side.ring.count == len(open_ones)
        assert self.side.ring.n_bytes == sum(map(len, open_ones))
        assert self.side.ring.in_flight == len(self.flight)
        assert sorted(self.flight.values(), key=int) == list(self.flight.values())
        for body, receipt in self.receipts.items():
            assert receipt.done() == (body in self.ended)
            if receipt.done():
                assert receipt.status == self.ended[body]


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.sampled_from(["publish", "send", "confirm", "lose"]), max_size=60))
def test_what_is_sent_first_is_always_the_oldest_that_is_open(steps: list[str]) -> None:
    side = Side(capacity=1000)
    number, confirmed, tag, last = 0, 0, 0, -1
    for step in steps:
        if step == "publish":
            side.ring.publish(b"%d" % number)
            number += 1
        elif step == "send":
            for body in side.send():
                assert int(body) == last + 1
                last, tag = int(body), tag + 1
        elif step == "confirm" and tag:
            side.confirm(tag, multiple=True)
            confirmed = last + 1
        elif step == "lose":
            side.ring.reset()
            side.connect()
            tag, last = 0, confirmed - 1


class Reference:
    """A ring of three messages, two of them in flight, as a list: what the engine has to do."""

    def __init__(self) -> None:
        self.open: list[tuple[bytes, bool]] = []
        """Bodies in order, and whether a file has them, too."""
        self.sent: dict[bytes, int] = {}
        """Those in flight, by their tags."""
        self.ended: dict[bytes, str] = {}
        self.n = 0
        self.tag = 1

    def take(self, is_filed: bool) -> bytes | None:
        """One more, if there is room."""
        if len(self.open) == 3:
            return None
        self.n += 1
        self.open.append((b"%d" % self.n, is_filed))
        return self.open[-1][0]

    def send(self) -> list[bytes]:
        """Those whose turn it is."""
        found: list[bytes] = []
        for body, _ in self.open:
            low = min(self.sent.values(), default=self.tag)
            if body not in self.sent and len(self.sent) < 2 and self.tag - low <= 4:
                self.sent[body] = self.tag
                self.tag += 1
                found.append(body)
        return found

    def end(self, body: bytes, outcome: str) -> None:
        """One has ended."""
        self.sent.pop(body, None)
        self.open = [each for each in self.open if each[0] != body]
        self.ended[body] = outcome

    def lose(self) -> None:
        """The connection is gone."""
        self.sent, self.tag = {}, 1


STEPS = ("publish", "file", "send", "ack newest", "ack all", "nack oldest", "lose", "drop")


class Twins:
    """The engine and the list, which do the same."""

    def __init__(self) -> None:
        self.reference, self.ended = Reference(), dict[bytes, str]()
        self.side = Side(capacity=3, max_in_flight=2, retry_nacks=False)
        for outcome in ("confirmed", "nacked", "dropped", "spilled"):
            self.side.ring.want(outcome)

    def take(self, is_filed: bool) -> None:
        """A message comes, from a program or out of a file."""
        body = self.reference.take(is_filed)
        given = body or b"none"
        if is_filed:
            was_taken = self.side.ring.add_spilled(given, b"\0\0", b"\0\1q", 0, None, False)
        else:
            was_taken = self.side.ring.publish(given) is not None
        assert was_taken == (body is not None)

    def drop(self) -> None:
        """The oldest that was not sent goes."""
        waiting = [body for body, _ in self.reference.open if body not in self.reference.sent]
        assert self.side.ring.drop_oldest("full") == bool(waiting)
        if waiting:
            self.reference.end(waiting[0], "dropped")

    def answer(self, step: str) -> None:
        """The broker says something of those in flight."""
        tags = self.reference.sent
        if not tags:
            return
        newest, oldest = max(tags, key=tags.__getitem__), min(tags, key=tags.__getitem__)
        if step == "nack oldest":
            self.side.refuse(tags[oldest])
            self.reference.end(oldest, "nacked")
            return
        self.side.confirm(tags[newest], step == "ack all")
        for body in list(tags) if step == "ack all" else [newest]:
            self.reference.end(body, "confirmed")

    def do(self, step: str) -> None:
        """One step, and what came of it."""
        if step in ("publish", "file"):
            self.take(step == "file")
        elif step == "send":
            assert self.side.send() == self.reference.send()
        elif step == "lose":
            self.side.ring.reset()
            self.side.connect()
            self.reference.lose()
        elif step == "drop":
            self.drop()
        else:
            self.answer(step)
        self.compare()

    def compare(self) -> None:
        """Whether both are the same."""
        for outcome, message, _ in self.side.ring.take_outcomes():
            assert message.body not in self.ended, "it ended twice"
            self.ended[message.body] = outcome
        assert self.ended == self.reference.ended
        assert self.side.ring.count == len(self.reference.open)
        assert self.side.ring.in_flight == len(self.reference.sent)

    def close(self) -> None:
        """What is left ends."""
        for body, is_filed in list(self.reference.open):
            self.reference.end(body, "spilled" if is_filed else "dropped")
        self.side.ring.give_up("closed")
        self.compare()
        assert self.side.ring.n_bytes == 0


@pytest.mark.parametrize("length", [5, pytest.param(7, marks=pytest.mark.nightly)])
def test_every_short_history_is_what_a_list_would_do(length: int) -> None:
    """Not some histories: all of that length, whose first step is a message."""
    for first in STEPS[:2]:
        for rest in itertools.product(STEPS, repeat=length - 1):
            twins = Twins()
            try:
                for step in (first, *rest):
                    twins.do(step)
                twins.close()
            except AssertionError as error:
                raise AssertionError(f"{first}, {', '.join(rest)}") from error
