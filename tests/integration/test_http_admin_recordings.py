"""Recorded stories about users, virtual hosts and what else administrators change.

Every step is answered as recorded but for those named here, which this broker does better.
"""

from __future__ import annotations

import re

import pytest

from lavinmq.http.routes import ROUTES
from tests.conftest import BrokerFactory
from tests.support import recordings

BETTER: dict[str, dict[int, str]] = {
    "http-change-users-bulk": {},
    "http-change-users": {
        3: "new passwords are hashed with scrypt",
        5: "new passwords are hashed with scrypt",
        8: "who-am-i does not show the password hash",
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
    "http-change-permissions": {},
    "http-change-parameters": {
        17: "an upstream without a URI is refused with 400",
        18: "an upstream that is no object is refused with 400",
    },
    "http-change-global-parameters": {},
    "http-change-policies": {
        18: "a priority out of range is refused with 400",
        19: "delayed-message may be a boolean",
        21: "so that policy is listed, and a priority may be spelled as a string",
    },
    "http-change-operator-policies": {3: "an unsupported key is refused with 400"},
    "http-change-definitions": {
        1: "the queue of the first step is missing as long as there is no endpoint for it",
        3: "bindings have no properties_key, which nobody reads back",
        4: "a queue with other properties refuses the import",
        5: "an entry without a name is refused with 400",
        14: "the refusal names the entry",
        15: "a bad policy is refused with 400",
    },
    "http-change-hash-password": {},
    "http-change-misc": {
        11: "who-am-i does not show the password hash",
    },
}  # fmt: skip

SCENARIOS = recordings.scenarios()


@pytest.mark.parametrize("name", BETTER)
def test_a_recorded_story_but_for_what_is_better_here(
    name: str, broker_factory: BrokerFactory
) -> None:
    scenario = SCENARIOS[name]
    differences = recordings.play(scenario, broker_factory(http=True))

    found = {int(at) for line in differences for at in re.findall(r"^step (\d+) ", line)}
    unexpected = found - set(BETTER[name]) - without_endpoint(scenario)
    assert not unexpected, "\n".join(differences)


def without_endpoint(scenario: recordings.Scenario) -> set[int]:
    """Steps of resources whose endpoints are not there."""
    return {
        number
        for number, step in enumerate(scenario["steps"])
        if step["res"]["status"] != 404
        and ROUTES.find(step["req"]["method"], step["req"]["path"].partition("?")[0]) is None
    }
