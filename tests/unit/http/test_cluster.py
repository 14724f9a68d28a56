"""The cluster in numbers, and what is left of it for who may not know where nodes are."""

from __future__ import annotations

from typing import Any

import pytest

from lavinmq.http.cluster import without_places
from lavinmq.http.metrics.cluster import figures
from lavinmq.http.metrics.exposition import Exposition

PICTURE: dict[str, Any] = {
    "role": "leader", "leader": {"id": "a", "uri": "tcp://a:1"}, "whole": True,
    "elections": [{"epoch": 7, "node": "a", "uri": "tcp://a:1", "at": 9.5, "ended": ""}],
    "etcd_silent_seconds": 0.25, "epoch": 7, "members": ["a", "b", "c"], "in_sync": ["a", "b"],
    "nodes": [{"id": "a", "live": True, "uri": "tcp://a:1", "address": "a"},
              {"id": "b", "live": True, "uri": "tcp://b:1", "address": "b"},
              {"id": "c", "live": False, "uri": None, "address": None}],
    "min_insync_replicas": 2, "copies": 2, "position": 100, "ready": True,
    "safe_to_restart": False, "acknowledges": True, "refuses": False, "following": None,
    "followers": [
        {"id": "b", "joining": False, "lag_in_bytes": 5, "lag_seconds": 0.5,
         "uncompressed_bytes": 90, "compressed_bytes": 20, "remote_address": "10.0.0.1:9"},
        {"id": "c", "joining": True, "lag_in_bytes": None, "lag_seconds": None,
         "remote_address": "10.0.0.2:9"},
    ],
}  # fmt: skip
FOLLOWING = {"joined": True, "lag_in_bytes": 3, "lag_seconds": 0.5, "silent_seconds": 1.5}


def samples(picture: dict[str, Any] | None, prefix: str = "lavinmq") -> dict[str, float]:
    text = "".join(figures(Exposition(prefix, is_open=False), picture))
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name.removeprefix(f"{prefix}_"): float(value) for name, _, value in lines}


def test_a_leader_is_shown_in_numbers() -> None:
    assert samples(PICTURE) == {
        "total_connected_followers": 1, "cluster_is_leader": 1, "cluster_has_leader": 1,
        "cluster_epoch": 7, "cluster_last_election_timestamp_seconds": 9.5,
        "cluster_etcd_silence_seconds": 0.25, "cluster_is_whole": 1,
        "cluster_members": 3, "cluster_live_nodes": 2, "cluster_in_sync_nodes": 2,
        "cluster_min_insync_replicas": 2, "cluster_position": 100, "cluster_ready": 1,
        "cluster_safe_to_restart": 0, "cluster_copies": 2, "cluster_acknowledgements_held": 0,
        "cluster_publishes_refused": 0,
        'follower_lag_in_bytes{id="b"}': 5, 'follower_lag_seconds{id="b"}': 0.5,
        'follower_uncompressed_bytes_total{id="b"}': 90,
        'follower_compressed_bytes_total{id="b"}': 20,
    }  # fmt: skip


def test_acknowledgements_that_are_held_show() -> None:
    assert samples({**PICTURE, "acknowledges": False})["cluster_acknowledgements_held"] == 1


def test_a_follower_shows_itself_and_not_what_only_the_leader_knows() -> None:
    picture = {**PICTURE, "role": "follower", "followers": [], "following": FOLLOWING}

    found = samples(picture)

    assert found["cluster_is_leader"] == found["total_connected_followers"] == 0
    assert (found["cluster_is_joined"], found["cluster_lag_in_bytes"]) == (1, 3)
    assert (found["cluster_lag_seconds"], found["cluster_silence_seconds"]) == (0.5, 1.5)
    assert not found.keys() & {"cluster_copies", "cluster_acknowledgements_held"}


def test_a_follower_that_is_not_connected_has_no_lag() -> None:
    following = {**FOLLOWING, "joined": False, "lag_in_bytes": None, "lag_seconds": None}

    found = samples({**PICTURE, "role": "follower", "followers": [], "following": following})

    assert not found.keys() & {"cluster_lag_in_bytes", "cluster_lag_seconds"}
    assert found["cluster_is_joined"] == 0


def test_a_node_without_a_leader_shows_that_and_no_election() -> None:
    found = samples({**PICTURE, "role": "none", "leader": None, "elections": [], "whole": False})

    assert (found["cluster_has_leader"], found["cluster_is_whole"]) == (0, 0)
    assert "cluster_last_election_timestamp_seconds" not in found


def test_a_follower_that_has_come_back_has_one_sample() -> None:
    twice = [{**PICTURE["followers"][0], "lag_in_bytes": each} for each in (5, 6)]

    found = samples({**PICTURE, "followers": twice})

    assert found["total_connected_followers"] == 1
    assert 'follower_lag_in_bytes{id="b"}' in found


@pytest.mark.parametrize("prefix", ["lavinmq", "zz"])
def test_without_a_cluster_there_are_no_followers(prefix: str) -> None:
    assert samples(None, prefix) == {"total_connected_followers": 0}


def test_places_are_left_out() -> None:
    shown = without_places(PICTURE)

    assert "10.0.0" not in str(shown)
    assert "tcp" not in str(shown)
    assert shown["nodes"][0] == {"id": "a", "live": True}
    assert shown["followers"][0]["lag_in_bytes"] == 5
    assert PICTURE["nodes"][0]["uri"] == "tcp://a:1"
