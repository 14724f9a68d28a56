"""What nodes say to each other first: who has the secret, and what is bounded."""

from __future__ import annotations

from typing import Any

import pytest

from lavinmq.cluster import frames
from lavinmq.cluster.frames import MAGIC, MOST, NONCE, PeerError
from tests.support.secure_nodes import Pair, at_once

SECRET = b"s" * 32


def test_two_with_the_secret_know_each_other(pair: Pair) -> None:
    ours, theirs = pair
    assert at_once(
        lambda: frames.greet_leader(ours, SECRET), lambda: frames.greet_follower(theirs, SECRET)
    ) == [None, None]
    frames.send(ours, {"a": [1, "x"]})

    assert frames.receive(theirs) == {"a": [1, "x"]}


def test_a_follower_without_the_secret_is_found_out_and_learns_nothing(pair: Pair) -> None:
    ours, theirs = pair

    def stranger() -> None:
        ours.sendall(MAGIC + bytes(NONCE))
        answer = frames.exactly(ours, len(MAGIC) + NONCE + 32)
        assert SECRET not in answer
        ours.sendall(answer[-32:])  # the leader's own proof, sent back

    found = at_once(stranger, lambda: frames.greet_follower(theirs, SECRET))[1]

    assert str(found) == "it does not have the secret of this cluster"


def test_a_leader_without_the_secret_is_found_out_before_it_is_told_anything(pair: Pair) -> None:
    ours, theirs = pair

    def liar() -> None:
        theirs.sendall(MAGIC + bytes(NONCE) + bytes(32))
        frames.exactly(theirs, len(MAGIC) + NONCE)
        theirs.settimeout(0.2)
        with pytest.raises(TimeoutError):
            theirs.recv(1)

    found = at_once(lambda: frames.greet_leader(ours, SECRET), liar)[0]

    assert str(found) == "it does not have the secret of this cluster"


def test_another_protocol_is_told_from_a_wrong_secret(pair: Pair) -> None:
    ours, theirs = pair
    ours.sendall(b"REPLI\x01\x00\x00" + bytes(100))

    with pytest.raises(PeerError, match="no node of a cluster of this release"):
        frames.greet_follower(theirs, SECRET)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ((MOST + 1).to_bytes(4, "little"), f"a frame of {MOST + 1} bytes"),
        (b"\x02\x00\x00\x00{]", "no JSON"),
        (b"\x02\x00\x00\x00[]", "no object"),
        (b"\x11\x00\x00\x00" + b'{"refused":"why"}', "why"),
    ],
)
def test_a_frame_that_is_none_is_refused(pair: Pair, data: bytes, says: str) -> None:
    ours, theirs = pair
    ours.sendall(data)

    with pytest.raises(PeerError, match=says):
        frames.receive(theirs)


@pytest.mark.parametrize("value", [None, -1, 1.5, "1", True, [1]])
def test_fields_are_of_their_types(value: Any) -> None:
    with pytest.raises(PeerError, match="'n' is"):
        frames.number({"n": value}, "n")
    if not isinstance(value, str):
        with pytest.raises(PeerError, match="'n' is"):
            frames.text({"n": value}, "n")
    if not isinstance(value, list):
        with pytest.raises(PeerError, match="'n' is"):
            frames.items({"n": value}, "n")


def test_an_end_in_the_middle_is_an_error(pair: Pair) -> None:
    ours, theirs = pair
    ours.sendall(b"\x10\x00\x00\x00{")
    ours.close()

    with pytest.raises(ConnectionResetError):
        frames.receive(theirs)
