"""Thousands of histories of a simulated cluster, each from a seed.

`LAVINMQ_SIMULATIONS` says how many; `make simulate` runs a lot of them.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.cluster import Cluster, Rules, ViolationError

SIMULATIONS = int(os.environ.get("LAVINMQ_SIMULATIONS", "100"))
FIRST = int(os.environ.get("LAVINMQ_FIRST_SEED", "0"))
STEPS = 3000
MOST = 400


@pytest.mark.parametrize(("n", "least"), [(3, 0), (3, 1), (2, 0), (5, 0), (3, 3)])
def test_nothing_that_was_acknowledged_is_ever_lost(n: int, least: int) -> None:
    n_confirmed = n_elections = n_joins = 0
    for seed in range(FIRST, FIRST + SIMULATIONS // 5):
        cluster = Cluster(seed, n, least=least, is_slow=seed % 4 == 3, is_hasty=seed % 3 == 2)
        try:
            cluster.run(STEPS)
        except ViolationError as error:
            pytest.fail(f"seed {seed}, {n} nodes, least {least}: {error}")
        n_confirmed += len(cluster.confirmed)
        n_elections += cluster.elections
        n_joins += cluster.joins

    assert n_confirmed > SIMULATIONS
    assert n_elections > SIMULATIONS // 5
    assert n_joins > SIMULATIONS // 20


@pytest.mark.parametrize(
    "rule",
    [
        "waits_before_listing", "unlists_before_going_on", "compares_epoch", "listed_only",
        "whole_only", "goes_on_placing", "syncs_before_acking", "checks_history", "listed_count",
        "minds_lost_answers", "outdates_lost_changes",
    ],
)  # fmt: skip
def test_a_rule_that_is_left_out_loses_something(rule: str) -> None:
    for seed in range(MOST):
        rules = Rules(**{rule: False})
        cluster = Cluster(seed, 3, rules, least=seed % 3, is_slow=seed % 2 == 1)
        try:
            cluster.run(STEPS)
        except ViolationError:
            return
    pytest.fail(f"nothing is lost without {rule}: the simulation does not look")
