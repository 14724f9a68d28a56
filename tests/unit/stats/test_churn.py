"""Counts of what comes and goes, for a virtual host and for the whole."""

from __future__ import annotations

from lavinmq.stats.churn import EVENTS, Churn


def test_the_whole_counts_what_its_parts_do_and_outlives_them() -> None:
    whole = Churn()
    one, other = Churn(whole), Churn(whole)

    one.count("queue_declared")
    other.count("queue_declared", 2)
    other.count("queue_deleted")
    del other

    assert one.counters()["queue_declared"] == 1
    assert whole.counters()["queue_declared"] == 3
    assert whole.counters()["queue_deleted"] == 1


def test_counters_are_a_copy_with_every_event() -> None:
    churn = Churn()
    before = churn.counters()

    churn.count("connection_created")

    assert before == dict.fromkeys(EVENTS, 0)
