"""A change of a small file that is refused has not happened, also for the next start; where nobody
can tell whether it has, the broker ends and answers nobody."""

from __future__ import annotations

import errno
import http.client
from pathlib import Path
from typing import Any

import pytest

from tests.crash.conftest import DiskFactory
from tests.support.api import Api
from tests.support.disk import Action, Call
from tests.support.segments import queue_directory

pytestmark = pytest.mark.crash

TOPICS = "/api/topic-permissions/%2F/bob"
VHOST = queue_directory(Path(), "q").parent.name


@pytest.mark.parametrize("kind", [Call.OPEN, Call.WRITE, Call.SYNC])
def test_a_user_whose_change_is_refused_is_restricted_as_before(
    on_disk: DiskFactory, kind: Call
) -> None:
    broker, disk = on_disk(http=True)
    api = Api(broker.start())
    api.as_user("bob", "")
    entry = {"exchange": "amq.topic", "write": "^a$", "read": "^b$"}
    assert api("PUT", TOPICS, entry).status == 201
    before = api.get(TOPICS)

    disk.plan(Action.FAIL, kind, "users.json*", error=errno.EIO, last=1)
    assert api("DELETE", f"{TOPICS}/amq.topic").status == 500
    assert disk.struck == 1
    assert api.get(TOPICS) == before
    broker.kill()
    broker.start()

    assert api.get(TOPICS) == before


def test_rights_in_a_deleted_virtual_host_are_none_in_a_new_one(on_disk: DiskFactory) -> None:
    """The virtual host has gone, but who had rights there could not be written down."""
    broker, disk = on_disk(http=True)
    api = Api(broker.start())
    api.as_user("bob", "")
    assert api("PUT", "/api/vhosts/other", {}).status == 201
    everything = {"configure": ".*", "read": ".*", "write": ".*"}
    assert api("PUT", "/api/permissions/other/bob", everything).status == 201
    disk.plan(Action.FAIL, Call.OPEN, "users.json*", error=errno.EIO)
    assert api("DELETE", "/api/vhosts/other").status == 500
    disk.heal()
    broker.restart()

    assert api("PUT", "/api/vhosts/other", {}).status == 201

    assert api("GET", "/api/permissions/other/bob").status == 404
    assert api("GET", "/api/permissions/other/guest").status == 200
    broker.kill()
    broker.start()
    assert api("GET", "/api/permissions/other/bob").status == 404


@pytest.mark.parametrize(
    ("change", "directory", "n_before"),
    [
        (("DELETE", "/api/vhosts/other", None), "", 1),
        (("DELETE", "/api/users/bob", None), "", 2),  # what SCRAM needs is written, too
        (("PUT", "/api/users/eve", {"password_hash": ""}), "", 1),
        (
            ("PUT", "/api/policies/%2F/p", {"pattern": "", "definition": {"max-length": 1}}),
            VHOST,
            0,
        ),
    ],
    ids=["vhost", "user", "new-user", "policy"],
)
def test_a_directory_that_cannot_be_synced_ends_the_broker_and_nobody_is_answered(
    on_disk: DiskFactory, change: tuple[str, str, Any], directory: str, n_before: int
) -> None:
    broker, disk = on_disk(http=True)
    api = Api(broker.start())
    api.as_user("bob", "")
    assert api("PUT", "/api/vhosts/other").status == 201

    disk.plan(
        Action.FAIL, Call.SYNC, directory, error=errno.EIO, first=n_before + 1, last=n_before + 1
    )
    with pytest.raises((http.client.HTTPException, OSError)):
        api(*change)

    assert disk.struck == 1
    assert broker.wait() == 1
    assert "Cannot sync" in broker.log_text()
    disk.heal()
    broker.start()
