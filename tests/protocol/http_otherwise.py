"""Where the broker answers recorded HTTP requests otherwise, step by step, and why.

Data for `test_http_recordings.py`, which compares every other step, and fails when a step that is
named here is answered as recorded after all. What is better is explained in docs/differences.md.
"""

from __future__ import annotations

from fnmatch import fnmatch

Steps = dict[int, str]

_WORDS = "the reason of a refused connection is said in our words, with more numbers"
_NO_HASH = "who-am-i does not show the password hash"
_THERE = "the endpoint is there"
_COUNTED = "deliveries of streams count, publishes that nobody wanted back do not"
_OWN_COUNTERS = "messages count once for the virtual host, however many queues they reach"
_LISTENERS = "HTTP listeners are listed, there is no MQTT; deliveries of streams count"
_MADE_OF_IT = "delayed exchanges by the name that RabbitMQ knows, nothing that no import reads"
_ONLY_LOOKS = "the tag monitoring lets nobody change anything"

OTHERWISE: dict[str, Steps] = {
    "http-get-shovels-as-pol": {0: _WORDS},
    "http-get-shovels-w1": {0: _WORDS},
    "http-get-shovels-w1-w-shovel": {0: _WORDS},
    "http-get-shovels-w1-as-pol": {0: _WORDS},
    "http-get-whoami": {0: _NO_HASH},
    "http-get-whoami-as-[!n]*": {0: _NO_HASH},
    "http-get-feature-flags": {0: _THERE},
    "http-get-topic-permissions": {0: _THERE},
    "http-get-user-limits": {0: _THERE},
    "http-get-health-checks-alarms": {0: _THERE},
    "http-get-channels-as-[!no]*": {0: _COUNTED},
    "http-get-vhosts-w1-channels": {0: _COUNTED},
    "http-get-vhosts-as-[!no]*": {0: _OWN_COUNTERS},
    "http-get-vhosts-w1": {0: _OWN_COUNTERS},
    "http-get-vhosts-w1-as-m*": {0: _OWN_COUNTERS},
    "http-get-vhosts-w1-as-pol": {0: _OWN_COUNTERS},
    "http-get-overview-2": {0: _LISTENERS},
    "http-get-overview-as-[imop]*": {0: _LISTENERS},
    "http-get-definitions": {0: _MADE_OF_IT},
    "http-get-definitions-w1": {0: _MADE_OF_IT},
    "http-get-queues-page-1-page-size-0": {0: "a page without rows is refused with 400"},
    "http-get-queues-sort-durable": {0: "booleans sort"},
    "http-change-connections": {2: "only an administrator closes connections of others"},
    "http-change-publish-rules": {6: _ONLY_LOOKS},
    "http-change-queue-roles": {2: _ONLY_LOOKS, 12: "pausing takes the right to configure"},
    "http-change-queue-put-content-type": {1: "parameters of the content type do not matter"},
    "http-change-queue-put-bodies": {
        6: "a boolean of another type is refused",
    },
    "http-change-queue-delete-flags": {
        3: "if-empty is kept to",
        4: "so the queue is deleted only now",
    },
    "http-change-publish": {
        4: "what is no base64 is refused with 400",
        8: "properties that are null are refused with 400",
        9: "properties that are no object are refused with 400",
        20: "a user_id has to be the caller's own name",
        23: "a priority above 255 is refused with 400",
        26: "so there is one message less",
    },
    "http-change-get": {
        21: "the refusal is JSON",
        22: "a count may be spelled as a string",
        23: "an unknown encoding is refused",
        24: "so another message is next",
        25: "and one less is left",
    },
    "http-change-get-rabbit-modes": {
        5: "a message that was only looked at is still there",
        6: "so it is next",
        7: "and one more is left",
    },
    "http-change-stream-read": {
        12: "a count may be spelled as a string",
        13: "the refusal is JSON",
        14: "a negative offset gives the last messages",
    },
    "http-change-users": {
        8: _NO_HASH,
        10: "the refusal says more than the name of the algorithm",
        11: "the refusal is in our words",
        16: "a password that is no string is refused",
    },
    "http-change-vhosts": {
        3: "description and tags of an existing vhost are changed",
        13: "a description that is no string is refused",
        14: "so that vhost is made only now",
    },
    "http-change-vhost-limits": {
        4: "a number may be spelled as a string",
        5: "the refusal has a reason",
        6: "the refusal has a reason",
        7: "the refusal has a reason",
        10: "the refusal has a reason",
        11: "so that limit is still there",
        15: "max-queues is kept to here, too",
    },
    "http-change-parameters": {
        14: "a URI that is none is refused",
        17: "an upstream without a URI is refused with 400",
        18: "an upstream that is no object is refused with 400",
    },
    "http-change-policies": {
        18: "a priority out of range is refused with 400",
        19: "delayed-message may be a boolean",
        21: "so that policy is listed, and a priority may be spelled as a string",
    },
    "http-change-operator-policies": {3: "an unsupported key is refused with 400"},
    "http-change-definitions": {
        3: "bindings have no properties_key, which nobody reads back",
        4: "a queue with other properties refuses the import",
        5: "an entry without a name is refused with 400",
        11: "the answer says which entries were left out",
        14: "the refusal names the entry",
        15: "a bad policy is refused with 400",
    },
    "http-change-misc": {11: _NO_HASH},
}  # fmt: skip
"""Pattern of ids of scenarios → number of the step → what this broker does instead, or lacks."""


def otherwise(name: str) -> Steps:
    """The steps of a scenario that are answered otherwise."""
    found: Steps = {}
    for pattern, steps in OTHERWISE.items():
        if fnmatch(name, pattern):
            found |= steps
    return found
