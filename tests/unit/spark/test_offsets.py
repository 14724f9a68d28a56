"""Positions in streams: what the checkpoint says, what was lost, how far a batch goes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.spark.offsets import (
    Bounds,
    Offsets,
    Segment,
    advance,
    bytes_between,
    end_within_bytes,
    loss,
    ranges,
    share,
)


class TestJson:
    def test_it_is_the_same_text_for_the_same_offsets(self) -> None:
        one = Offsets({"b": 2, "a": 1}, {"b": "y", "a": "x"})
        other = Offsets({"a": 1, "b": 2}, {"a": "x", "b": "y"})

        text = json.dumps(one.to_json())

        assert text == json.dumps(other.to_json())
        assert text == '{"v": 1, "offsets": {"a": 1, "b": 2}, "created": {"a": "x", "b": "y"}}'
        assert Offsets.from_json(json.loads(text)) == other

    def test_epochs_are_there_when_they_are_known(self) -> None:
        offsets = Offsets({"b": 2, "a": 1}, {"a": "x"}, {"b": 4, "a": 3})
        document = offsets.to_json()

        assert document["epochs"] == {"a": 3, "b": 4}
        assert Offsets.from_json(document) == offsets
        assert "epochs" not in Offsets({"a": 1}).to_json()

    def test_a_newer_version_is_refused_by_name(self) -> None:
        with pytest.raises(ValueError, match="version 2, this release of lavinmq reads version 1"):
            Offsets.from_json({"v": 2, "offsets": {}})

    @pytest.mark.parametrize(
        "document",
        [
            *(None, [], {}, {"offsets": {}}, {"v": 1}, {"v": 1, "offsets": {"a": "1"}}),
            *({"v": 1, "offsets": {"a": -1}}, {"v": 1, "offsets": {"a": True}}),
            {"v": 1, "offsets": {}, "created": []},
        ],
    )
    def test_what_is_no_position_is_refused(self, document: object) -> None:
        with pytest.raises(ValueError, match="offsets"):
            Offsets.from_json(document)


class TestLoss:
    HELD = Bounds(100, 200, "new")

    @pytest.mark.parametrize("start", [100, 150, 200])
    def test_nothing_is_lost_within_what_is_kept(self, start: int) -> None:
        assert loss("q", start, "new", self.HELD) is None

    @pytest.mark.parametrize("start", [0, 1])
    def test_offsets_0_and_1_are_the_same_beginning(self, start: int) -> None:
        assert loss("q", start, None, Bounds(1, 5)) is None

    def test_what_retention_removed_is_counted(self) -> None:
        lost = loss("q", 40, "new", self.HELD)

        assert str(lost) == "stream 'q': offsets 40 to 99 are gone, 60 messages"
        assert lost is not None
        assert lost.resume is None

    @pytest.mark.parametrize("start", [150, 500])
    def test_a_stream_made_anew_is_noticed_with_more_and_with_fewer_messages(
        self, start: int
    ) -> None:
        lost = loss("q", start, "old", self.HELD)

        assert lost is not None
        assert "deleted and made anew" in lost.reason
        assert lost.resume == 100

    def test_a_stream_that_ends_earlier_than_it_was_read_is_noticed(self) -> None:
        known, unknown = loss("q", 300, "new", self.HELD), loss("q", 300, None, self.HELD)

        assert known is not None
        assert unknown is not None
        assert "up to offset 300 and now ends at 200" in known.reason
        # The same stream goes on at its end; one nobody knows is taken for a new one.
        assert (known.resume, unknown.resume) == (200, 100)

    @pytest.mark.parametrize(
        ("start", "epoch", "resume"),
        [(41, 1, None), (42, 1, 41), (200, 1, 41), (60, 2, None), (61, 2, 60), (90, 3, None)],
    )
    def test_offsets_that_were_given_anew_are_noticed(
        self, start: int, epoch: int, resume: int | None
    ) -> None:
        held = Bounds(1, 101, "x", ((1, 1), (2, 41), (3, 60)))

        lost = loss("a", start, "x", held, epoch)

        assert (None if lost is None else lost.resume) == resume
        if lost is not None:
            text = f"stream 'a': it was read up to offset {start} in epoch {epoch}, and epoch"
            assert str(lost).startswith(text)
            assert f"begins at offset {resume}" in str(lost)

    def test_retention_may_have_taken_the_beginning_of_an_epoch(self) -> None:
        held = Bounds(50, 101, "x", ((1, 1), (2, 41)))
        lost = loss("a", 45, "x", held, 1)
        assert lost is not None and lost.resume == 50

    def test_a_checkpoint_or_a_broker_without_epochs_compares_none(self) -> None:
        assert loss("a", 50, "x", Bounds(1, 101, "x", ((1, 1), (2, 41))), None) is None
        assert loss("a", 50, "x", Bounds(1, 101, "x"), 1) is None

    def test_a_stream_that_is_gone_is_noticed(self) -> None:
        assert "it is gone" in str(loss("q", 300, None, None))


class TestAdvance:
    def test_a_new_stream_begins_at_its_first_offset_with_the_batch_after(self) -> None:
        start = Offsets({"a": 10}, {"a": "x"})
        held = {"a": Bounds(1, 50, "x"), "b": Bounds(7, 9, "y")}

        end = advance(start, held, {"a": 50}, {})

        assert end == Offsets({"a": 50, "b": 7}, {"a": "x", "b": "y"})
        assert ranges(start, end) == {"a": (10, 50)}

    def test_a_position_has_the_epoch_in_which_it_was_found(self) -> None:
        begin = Offsets({"a": 10, "gone": 5}, {}, {"a": 1, "gone": 1})
        held = {"a": Bounds(1, 20, None, ((1, 1), (2, 15))), "b": Bounds(1, 3)}

        end = advance(begin, held, {"a": 20}, {})

        assert end.epochs == {"a": 2, "gone": 1}

    def test_a_position_never_goes_back(self) -> None:
        end = advance(Offsets({"a": 10}), {"a": Bounds(1, 5)}, {"a": 5}, {})

        assert end.next == {"a": 10}

    def test_a_stream_that_is_gone_keeps_its_position(self) -> None:
        end = advance(Offsets({"a": 10}, {"a": "x"}), {}, {}, {})

        assert end == Offsets({"a": 10}, {"a": "x"})

    def test_a_stream_made_anew_has_no_range_with_its_old_position(self) -> None:
        start = Offsets({"a": 10}, {"a": "x"})

        end = advance(start, {"a": Bounds(1, 500, "y")}, {}, {"a": 1})

        assert end == Offsets({"a": 1}, {"a": "y"})
        assert ranges(start, end) == {}
        assert ranges(end, Offsets({"a": 500}, {"a": "y"})) == {"a": (1, 500)}

    def test_an_identity_that_becomes_known_does_not_lose_the_range(self) -> None:
        assert ranges(Offsets({"a": 1}), Offsets({"a": 5}, {"a": "x"})) == {"a": (1, 5)}


class TestShare:
    def test_shares_follow_the_backlog(self) -> None:
        assert share({"a": 100, "b": 300}, 40) == {"b": 30, "a": 10}

    def test_a_small_backlog_gets_something_beside_a_large_one(self) -> None:
        assert share({"a": 1_000_000, "b": 1}, 10)["b"] == 1

    @given(
        st.dictionaries(st.text("abcdef", min_size=1), st.integers(-5, 10**12), max_size=8),
        st.integers(1, 10**12),
    )
    def test_all_that_is_allowed_is_shared_out(self, backlogs: dict[str, int], limit: int) -> None:
        shares = share(backlogs, limit)

        total = sum(n for n in backlogs.values() if n > 0)
        assert sum(shares.values()) == min(limit, total)
        assert all(0 < n <= backlogs[queue] for queue, n in shares.items())
        assert shares == share(dict(reversed(backlogs.items())), limit)


class TestBytes:
    SEGMENTS = (Segment(1, 101, 1000), Segment(101, 111, 10_000))

    def test_a_range_weighs_what_its_part_of_the_segments_weighs(self) -> None:
        assert bytes_between(self.SEGMENTS, 51, 106) == 500 + 5000
        assert bytes_between(self.SEGMENTS, 200, 300) == 0

    def test_a_limit_ends_a_range_within_a_segment(self) -> None:
        assert end_within_bytes(self.SEGMENTS, 1, 111, 100) == 11
        assert end_within_bytes(self.SEGMENTS, 91, 111, 2100) == 103

    def test_one_message_is_read_however_large_it_is(self) -> None:
        assert end_within_bytes(self.SEGMENTS, 101, 111, 1) == 102

    @given(st.integers(1, 111), st.integers(1, 111), st.integers(0, 12_000))
    def test_a_range_ends_within_itself(self, start: int, end: int, limit: int) -> None:
        start, end = min(start, end), max(start, end)

        found = end_within_bytes(self.SEGMENTS, start, end, limit)

        assert min(start + 1, end) <= found <= end
