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
from tests.support.waiting import wait_for

pytestmark = pytest.mark.crash

TOPICS = "/api/topic-permissions/%2F/bob"
VHOST = queue_directory(Path(), "q").parent.name
SHOVEL = {"src-uri": "amqp://", "src-queue": "from", "dest-uri": "amqp://", "dest-queue": "to"}


def fill(api: Api, queue: str) -> None:
    """Publish twenty messages."""
    message = {"routing_key": queue, "payload": "m", "payload_encoding": "string", "properties": {}}
    for _ in range(20):
        assert api("POST", "/api/exchanges/%2F/amq.default/publish", message).json["routed"]


def lengths(api: Api) -> dict[str, int]:
    return {each["name"]: each["messages"] for each in api.get("/api/queues/%2F")}


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
    assert api("DELETE", "/api/vhosts/other").status == 204
    assert disk.struck >= 1
    assert "rights in vhost 'other', which is not there, are kept" in broker.log_text()
    assert [each["name"] for each in api.get("/api/vhosts")] == ["/"]
    disk.heal()
    broker.restart()

    assert api("PUT", "/api/vhosts/other", {}).status == 201

    assert api("GET", "/api/permissions/other/bob").status == 404
    assert api("GET", "/api/permissions/other/guest").status == 200
    broker.kill()
    broker.start()
    assert api("GET", "/api/permissions/other/bob").status == 404


def test_messages_stay_where_a_refused_change_would_have_dropped_or_moved_them(
    on_disk: DiskFactory,
) -> None:
    """They were gone when the change was answered with 500, and no policy said so any more."""
    broker, disk = on_disk(http=True)
    api = Api(broker.start())
    for name in ("from", "to", "idle"):
        assert api("PUT", f"/api/queues/%2F/{name}", {"durable": True}).status == 201
    fill(api, "from")

    for change in (
        ("PUT", "/api/policies/%2F/p", {"pattern": "^from$", "definition": {"max-length": 1}}),
        ("PUT", "/api/operator-policies/%2F/p", {"pattern": "", "definition": {"expires": 1}}),
        ("PUT", "/api/parameters/shovel/%2F/s", {"value": SHOVEL}),
    ):
        disk.plan(Action.FAIL, Call.WRITE, "*.json.tmp", error=errno.ENOSPC)
        assert api(*change).status == 500
        assert disk.struck >= 1
        disk.heal()
    assert api("PUT", "/api/policies/%2F/q", {"pattern": "no", "definition": {}}).status == 201

    assert lengths(api) == {"from": 20, "to": 0, "idle": 0}
    assert api.get("/api/shovels") == []
    assert api("PUT", "/api/parameters/shovel/%2F/s", {"value": SHOVEL}).status == 201
    wait_for(lambda: lengths(api)["to"] == 20, "what is on disk acts")


def test_what_a_deletion_would_end_goes_on_when_it_is_refused(on_disk: DiskFactory) -> None:
    """A policy that is more than another one stays in force, and so does a shovel."""
    broker, disk = on_disk(http=True)
    api = Api(broker.start())
    for name in ("from", "to"):
        assert api("PUT", f"/api/queues/%2F/{name}", {"durable": True}).status == 201
    for name, most, priority in (("short", 1, 0), ("long", 100, 1)):
        policy = {"pattern": "^to$", "definition": {"max-length": most}, "priority": priority}
        assert api("PUT", f"/api/policies/%2F/{name}", policy).status == 201
    assert api("PUT", "/api/parameters/shovel/%2F/s", {"value": SHOVEL}).status == 201
    fill(api, "from")
    wait_for(lambda: lengths(api)["to"] == 20, "the shovel has moved them")

    disk.plan(Action.FAIL, Call.WRITE, "*.json.tmp", error=errno.EIO)
    assert api("DELETE", "/api/policies/%2F/long").status == 500
    assert api("DELETE", "/api/parameters/shovel/%2F/s").status == 500
    disk.heal()

    assert lengths(api)["to"] == 20
    fill(api, "from")
    wait_for(lambda: lengths(api)["to"] == 40, "the shovel has moved those, too")


@pytest.mark.parametrize("file", ["users.json", "user_limits.json"])
def test_limits_stay_with_their_user_and_go_to_no_other(on_disk: DiskFactory, file: str) -> None:
    """A deletion that was refused had taken the limits; one whose limits could not be forgotten
    left them to the next user of the name."""
    broker, disk = on_disk(http=True)
    api = Api(broker.start())
    assert api("PUT", "/api/users/bob", {"password_hash": "", "tags": ""}).status == 201
    assert api("PUT", "/api/user-limits/bob/max-connections", {"value": 3}).status == 204
    limits = [{"user": "bob", "value": {"max-connections": 3}}]

    disk.plan(Action.FAIL, Call.WRITE, f"{file}.tmp", error=errno.EIO)
    answer = api("DELETE", "/api/users/bob").status
    wait_for(lambda: disk.struck >= 1, "the disk has refused it")
    assert (answer, api.get("/api/user-limits")) == {
        "users.json": (500, limits), "user_limits.json": (204, [])
    }[file]  # fmt: skip
    if file == "user_limits.json":
        again = "PUT", "/api/users/bob", {"password_hash": "", "tags": ""}
        assert api(*again).status == 500  # nobody is made who would have those limits
        assert api("GET", "/api/users/bob").status == 404
        disk.heal()
        assert api(*again).status == 201
        assert api.get("/api/user-limits") == []
        limits = []
    broker.kill()
    disk.heal()
    broker.start()

    assert api.get("/api/user-limits") == limits
    assert [each["name"] for each in api.get("/api/users")] == ["guest", "bob"]


@pytest.mark.parametrize("file", ["users.json", "vhosts.json"])
def test_a_virtual_host_is_made_with_the_rights_of_who_makes_it_or_not_at_all(
    on_disk: DiskFactory, file: str
) -> None:
    broker, disk = on_disk(http=True)
    api = Api(broker.start())

    disk.plan(Action.FAIL, Call.WRITE, f"{file}.tmp", error=errno.EIO, last=1)
    assert api("PUT", "/api/vhosts/other").status == 500
    assert disk.struck == 1

    def there() -> tuple[list[str], list[str]]:
        vhosts, rights = api.get("/api/vhosts"), api.get("/api/users/guest/permissions")
        return [each["name"] for each in vhosts], [each["vhost"] for each in rights]

    assert there() == (["/"], ["/"])
    broker.kill()
    broker.start()
    assert there() == (["/"], ["/"])
    assert api("PUT", "/api/vhosts/other").status == 201
    assert there() == (["/", "other"], ["/", "other"])


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
