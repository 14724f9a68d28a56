"""The metrics of a cluster, as the node that is asked knows it.

Made from the picture that `/api/cluster` shows, so that both say the same.
Source: docs/monitoring.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from lavinmq.http.metrics.exposition import counter, gauge

if TYPE_CHECKING:
    from lavinmq.http.metrics.exposition import Exposition, Metric

FOLLOWERS: Final = gauge("total_connected_followers", "Followers that have all files and follow")
LAG_BYTES: Final = gauge(
    "follower_lag_in_bytes", "Bytes of changes that a follower has not on disk yet"
)
LAG_S: Final = gauge(
    "follower_lag_seconds", "Age of the oldest change that a follower has not on disk yet"
)
UNCOMPRESSED: Final = counter(
    "follower_uncompressed_bytes_total",
    "Bytes of changes that a follower was sent, by its present connection",
)
COMPRESSED: Final = counter(
    "follower_compressed_bytes_total", "Bytes that went over the network for them"
)
OF_FOLLOWERS: Final = (
    (LAG_BYTES, "lag_in_bytes"), (LAG_S, "lag_seconds"), (UNCOMPRESSED, "uncompressed_bytes"),
    (COMPRESSED, "compressed_bytes"),
)  # fmt: skip

Value = Callable[[dict[str, Any]], Any]
OF_ALL: Final[tuple[tuple[Metric, Value], ...]] = (
    (
        gauge("cluster_is_leader", "1 on the node that leads"),
        lambda picture: picture["role"] == "leader",
    ),
    (
        gauge("cluster_has_leader", "1 while the node knows who leads"),
        lambda picture: picture["leader"] is not None,
    ),
    (
        gauge("cluster_epoch", "Number of the election that the node knows of last"),
        lambda picture: picture["epoch"],
    ),
    (
        gauge("cluster_last_election_timestamp_seconds", "When that was, since 1970"),
        lambda picture: picture["elections"][-1]["at"] if picture["elections"] else None,
    ),
    (
        gauge("cluster_etcd_silence_seconds", "Seconds since etcd has answered the node"),
        lambda picture: picture["etcd_silent_seconds"],
    ),
    (
        gauge("cluster_is_whole", "1 unless the node's files are, or have to be, replaced"),
        lambda picture: picture["whole"],
    ),
    (
        gauge("cluster_members", "Nodes that have ever been in sync"),
        lambda picture: len(picture["members"]),
    ),
    (
        gauge("cluster_live_nodes", "Nodes that etcd has heard of lately"),
        lambda picture: sum(node["live"] for node in picture["nodes"]),
    ),
    (
        gauge("cluster_in_sync_nodes", "Nodes in sync, the leader included"),
        lambda picture: len(picture["in_sync"]),
    ),
    (
        gauge("cluster_min_insync_replicas", "Nodes that have to have what is acknowledged"),
        lambda picture: picture["min_insync_replicas"],
    ),
    (
        gauge("cluster_position", "Bytes of changes that the node has, since the cluster began"),
        lambda picture: picture["position"],
    ),
    (
        gauge("cluster_ready", "1 while clients can be served through the node"),
        lambda picture: picture["ready"],
    ),
    (
        gauge("cluster_safe_to_restart", "1 while enough others are in sync without the node"),
        lambda picture: picture["safe_to_restart"],
    ),
)
OF_LEADER: Final[tuple[tuple[Metric, Value], ...]] = (
    (
        gauge("cluster_copies", "Nodes that acknowledgements wait for, the leader included"),
        lambda picture: picture["copies"],
    ),
    (
        gauge(
            "cluster_acknowledgements_held", "1 while nothing is confirmed: too few are in sync"
        ),
        lambda picture: not picture["acknowledges"],
    ),
    (
        gauge("cluster_publishes_refused", "1 while publishes are answered by a negative confirm"),
        lambda picture: picture["refuses"],
    ),
)  # fmt: skip
OF_FOLLOWER: Final[tuple[tuple[Metric, Value], ...]] = (
    (
        gauge("cluster_is_joined", "1 while a follower, which is connected, has all files"),
        lambda picture: picture["following"]["joined"],
    ),
    (
        gauge("cluster_lag_in_bytes", "Bytes that have come to a follower and are not on disk"),
        lambda picture: picture["following"]["lag_in_bytes"],
    ),
    (
        gauge("cluster_lag_seconds", "Age of the oldest change that has come and is not on disk"),
        lambda picture: picture["following"]["lag_seconds"],
    ),
    (
        gauge("cluster_silence_seconds", "Seconds since a change has come to a follower"),
        lambda picture: picture["following"]["silent_seconds"],
    ),
)


def figures(out: Exposition, picture: dict[str, Any] | None) -> Iterator[str]:
    """All of it. Args: picture: None: there is no cluster, and so no follower."""
    followers = [] if picture is None else _there(picture)
    yield out.alone(FOLLOWERS, len(followers))
    if picture is None:
        return
    wanted = [*OF_ALL]
    if picture["role"] == "leader":
        wanted += OF_LEADER
    if picture["following"] is not None:
        wanted += OF_FOLLOWER
    for metric, value in wanted:
        number = value(picture)
        if number is not None:
            yield out.alone(metric, int(number) if isinstance(number, bool) else number)
    for metric, name in OF_FOLLOWERS:
        yield out.head(metric)
        for follower in followers:
            yield out.sample(metric, follower[name], out.labels(id=follower["id"]))


def _there(picture: dict[str, Any]) -> list[dict[str, Any]]:
    """Followers that have all files; one that is being replaced by its next connection counts as
    that: no two samples may have the same labels."""
    joined = (each for each in picture["followers"] if not each["joining"])
    return list({each["id"]: each for each in joined}.values())
