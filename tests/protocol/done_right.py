"""Which recorded transcripts the broker does not match on purpose: the weaknesses they show.

Data for `test_transcripts.py`: every recorded scenario is either played, or named here. What is
done instead has a test in `test_done_right.py` and stands in docs/protocol.md.
"""

from __future__ import annotations

DONE_RIGHT: dict[str, str] = {
    "cf-bad-cc": "a publish that fails in routing closes the channel and is not confirmed",
    "ak-unknown": "nack of tag 0 with multiple and nothing outstanding changes nothing, like ack",
    "ch-declare-zero": "queue.declare on channel 0 closes the connection with 505",
    "ch-not-open-exchange-declare": "a method on a channel that is not open is refused with 504",
    "ch-open-zero": "channel.open on channel 0 closes the connection with 504",
    "cs-prefetch-size": "a prefetch in bytes closes the connection with 540, and says why",
    "cs-dup-tag": "a consumer tag in use on the channel is refused with 530",
    "cs-cancel-notify": "queue.delete-ok comes before basic.cancel on the deleting channel",
    "ex-arg-ae-int": "an alternate exchange that is no text is refused with 406",
    "ex-name-utf8": "an exchange name may be any UTF-8 text without control characters",
    "fr-bad-field": "an unknown field type in a table is a frame error, 501",
    "de-internal": "nobody consumes what waits in a delayed exchange",
    "ln-requeue": "a requeue into a full queue that refuses publishes drops nothing",
    "perm-x-ae": "an alternate exchange takes the same rights in both spellings",
    "perm-x-delete": "deleting what does not exist takes the same right as deleting what does",
    "pr-above-ack": "a message whose priority is above the maximum can be acknowledged",
    "rt-headers-bad": "x-match may also be all-with-x or any-with-x",
    "tl-head-only": "a message expires in time, also behind one that does not",
    "fr-notimpl-access": "an unknown method closes the connection with 540, not with 501 after it",
    "fr-notimpl-class99": "an unknown method closes the connection with 540, by its number",
    "fr-notimpl-class99-ch0": "540 names the method",
    "fr-notimpl-conn10-99": "540 names the method",
    "fr-notimpl-deliver": "a method for brokers closes the connection with 540, by its name",
    "fr-notimpl-q60": "an unknown method closes the connection with 540, by its number",
    "fr-notimpl-recover-async": "a method that is not implemented closes the connection with 540",
    "fr-notimpl-secure": "540 names the method",
    "pb-body-after-publish": "a body out of turn closes the connection with 505 in plain words",
    "pb-body-without-header": "a body out of turn closes the connection with 505 in plain words",
    "pb-header-class": "a header out of turn closes the connection with 505, in plain words",
    "pb-header-without-publish": "a header out of turn closes the connection with 505",
    "pb-publish-in-body": "a publish out of turn closes the connection with 505 in plain words",
    "q-gen": "queue.delete-ok comes before basic.cancel on the deleting channel",
    "q-bad-x-queue-type": "an x-queue-type that is no text is refused with 406",
    "q-good-args": "an unknown x-queue-type is refused with 406",
    "q-last-scope": "the last declared queue is remembered per channel",
    "q-mismatch-arg-x-queue-type": "x-queue-type classic and no type at all are the same",
    "q-mismatch-arg-x-unknown": "an argument that nobody knows makes no queue another one",
    "q-name-utf8": "a queue name may be any UTF-8 text without control characters",
    "st-offset-negative": "a negative offset gives the last messages of a stream",
    "st-rules": "basic.get of a stream closes the connection with 540",
    "st-two": "queue.delete-ok comes before basic.cancel on the deleting channel",
}
"""Scenario id → what this broker does instead of the recorded weakness."""
