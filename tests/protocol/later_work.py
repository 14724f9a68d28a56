"""Which recorded transcripts the broker does not match yet, or on purpose never will.

Data for `test_transcripts.py`: every recorded scenario is either played, or named here exactly
once. A feature that arrives takes its scenarios out of `LATER`.
"""

from __future__ import annotations

MANAGEMENT = "HTTP management API"
TTL = "message TTL and queue expiry"
LENGTH = "length limits"
PRIORITY_QUEUE = "priority queues"
CONSUMER_PRIORITY = "consumer priorities"
SINGLE_ACTIVE = "single active consumer"
DEAD_LETTER = "dead-lettering and delivery limit"
DEDUP = "deduplication"
DELAYED = "delayed exchanges"
STREAMS = "streams"

_BY_FEATURE: dict[str, tuple[str, ...]] = {
    MANAGEMENT: (
        "conn-force-close",
        "conn-vhost-deleted",
        "cs-lost-connection",
        "cs-pause",
        "cs-qclosed",
        "hs-conn-limit",
        "hs-conn-limit-zero",
        "hs-passwordless",
        "pb-user-id",
        "perm-live-change",
        "q-exclusive",
        "q-limit",
    ),
    TTL: (
        "q-expires",
        "q-expires-consumer",
        "tl-head-only",
        "tl-message",
        "tl-zero",
    ),
    LENGTH: (
        "cf-partial-overflow",
        "ln-bytes",
        "ln-bytes-reject",
        "ln-dlx",
        "ln-drop-head",
        "ln-policy",
        "ln-requeue",
        "ln-zero-consumer",
    ),
    PRIORITY_QUEUE: ("pr-above", "pr-maxlen", "pr-order"),
    CONSUMER_PRIORITY: ("cs-priority",),
    SINGLE_ACTIVE: ("cs-sac", "cs-sac-priority"),
    DEAD_LETTER: (
        "dl-cc",
        "dl-cycle",
        "dl-cycle-reject",
        "dl-delete",
        "dl-delivery-limit",
        "dl-delivery-limit-consume",
        "dl-expired",
        "dl-message-headers",
        "dl-missing",
        "dl-queue-ttl",
        "dl-reject",
        "dl-routing-key",
        "dl-two-hops",
    ),
    DEDUP: (
        "dd-exchange",
        "dd-queue",
        "dd-ttl",
        "ex-arg-cache-ttl-bool",
        "ex-arg-dedup-header-int",
    ),
    DELAYED: (
        "de-internal",
        "de-order",
        "de-unroutable",
        "ex-arg-delayed-str",
        "ex-delayed-args",
        "ex-life-x-delayed-message",
    ),
    STREAMS: (
        "q-stream-autodelete",
        "q-stream-exclusive",
        "q-stream-maxage",
        "q-stream-nondurable",
        "st-filter",
        "st-filter-bad",
        "st-geo",
        "st-header-override",
        "st-offset-0",
        "st-offset-1",
        "st-offset-100",
        "st-offset-3",
        "st-offset-6",
        "st-offset-absent",
        "st-offset-bad-string",
        "st-offset-bool",
        "st-offset-digits",
        "st-offset-first",
        "st-offset-float",
        "st-offset-last",
        "st-offset-long",
        "st-offset-negative",
        "st-offset-next",
        "st-offset-ts-future",
        "st-offset-ts-past",
        "st-offset-void",
        "st-rules",
        "st-settle",
        "st-tracking",
        "st-tracking-explicit",
        "st-two",
    ),
}

LATER: dict[str, str] = {
    scenario: feature for feature, scenarios in _BY_FEATURE.items() for scenario in scenarios
}
"""Scenario id → the feature it waits for."""

DONE_RIGHT: dict[str, str] = {
    "cf-bad-cc": "a publish that fails in routing closes the channel and is not confirmed",
    "ak-unknown": "nack of tag 0 with multiple and nothing outstanding changes nothing, like ack",
    "ch-declare-zero": "queue.declare on channel 0 closes the connection with 505",
    "ch-not-open-exchange-declare": "a method on a channel that is not open is refused with 504",
    "ch-open-zero": "channel.open on channel 0 closes the connection with 504",
    "cs-dup-tag": "a consumer tag in use on the channel is refused with 530",
    "cs-cancel-notify": "queue.delete-ok comes before basic.cancel on the deleting channel",
    "ex-name-utf8": "an exchange name may be any UTF-8 text without control characters",
    "fr-bad-field": "an unknown field type in a table is a frame error, 501",
    "fr-notimpl-access": "all arguments of an unknown method are skipped: only the channel closes",
    "fr-notimpl-recover-async": "all arguments are skipped: the connection goes on",
    "q-gen": "queue.delete-ok comes before basic.cancel on the deleting channel",
    "q-last-scope": "the last declared queue is remembered per channel",
    "q-mismatch-arg-x-queue-type": "x-queue-type classic and no type at all are the same",
    "q-name-utf8": "a queue name may be any UTF-8 text without control characters",
}
"""Scenario id → what this broker does instead of the recorded weakness."""

LATER_DONE_RIGHT: dict[str, str] = {
    "pr-above-ack": PRIORITY_QUEUE,
}
"""Scenario id → the feature whose arrival must bring its better behaviour and a test of it."""
