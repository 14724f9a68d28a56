"""Pages about one thing, and the forms and buttons that change something."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import VHOSTS, Requests, Stub, listed

CONNECTION = "127.0.0.1:4711 -> 127.0.0.1:5672"
IN_PATH = quote(CONNECTION, safe="")
POLICIES = [
    {
        "vhost": "/", "name": name, "pattern": ".*", "apply-to": "all", "priority": 0,
        "definition": {},
    }
    for name in ("p1", "p2")
]  # fmt: skip
RIGHTS = {"configure": ".*", "write": ".*", "read": ".*"}
SHOVEL: dict[str, Any] = {
    "vhost": "/", "name": "shovel1", "component": "shovel",
    "value": {
        "src-uri": "amqp://u:secret@host", "src-queue": "a", "dest-uri": "amqp://",
        "dest-queue": "b",
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def agrees(page: Any) -> None:
    """Whoever is asked says yes."""
    page.on("dialog", lambda dialog: dialog.accept())


# --- definitions ------------------------------------------------------------------------------


@pytest.mark.parametrize("vhost", ["_all", "/"])
def test_definitions_are_downloaded(page: Any, requests: Requests, vhost: str) -> None:
    page.goto("/")
    form = page.locator("#exportDefinitions")
    expect(form.locator("option")).not_to_have_count(1)
    form.get_by_label("Virtual host").select_option(vhost)
    with page.expect_download() as download:
        form.get_by_role("button").click()
    requests.wait("GET", "/api/definitions" + ("" if vhost == "_all" else "/%2F"))
    assert re.match(r"lavinmq-definitions-.*\.json", download.value.suggested_filename)
    assert "queues" in json.loads(download.value.path().read_text())


def choose(page: Any, content: Any) -> Any:
    """Choose a file of definitions and ask for its upload. Returns: what is shown of it."""
    form = page.locator("#importDefinitions")
    file = {
        "name": "d.json",
        "mimeType": "application/json",
        "buffer": json.dumps(content).encode(),
    }
    form.get_by_label("File").set_input_files(file)
    form.get_by_role("button", name="Upload").click()
    return page.locator("#importPlan")


def test_definitions_are_uploaded(page: Any, requests: Requests) -> None:
    page.goto("/")
    plan = choose(page, {"queues": [{"name": "from-a-file", "vhost": "/", "durable": True}]})
    assert "dry_run=true" in requests.wait("POST", "/api/definitions/upload").url
    expect(plan.locator("tbody tr")).to_have_text("createqueue/from-a-file")
    assert page.context.request.get("/api/queues/%2F/from-a-file").status == 404
    plan.get_by_role("button", name="Apply").click()
    requests.wait("POST", "/api/definitions/upload", 2)
    expect(page.locator("#toast")).to_contain_text("in force")
    assert page.context.request.get("/api/queues/%2F/from-a-file").ok
    expect(plan).to_be_hidden()

    plan = choose(page, {"queues": [{"name": "from-a-file", "vhost": "/", "durable": True}]})
    expect(plan).to_contain_text("Nothing would change.")
    expect(plan.get_by_role("button", name="Apply")).to_have_count(0)


def test_definitions_can_be_looked_at_and_left(page: Any, requests: Requests) -> None:
    name = "<img src=x>"
    page.goto("/")
    plan = choose(page, {"queues": [{"name": name, "vhost": "/", "durable": True}]})
    expect(plan.locator("tbody tr")).to_contain_text(name)
    plan.get_by_role("button", name="Change nothing").click()
    expect(plan).to_be_hidden()
    assert len(requests.find("POST", "/api/definitions/upload")) == 1
    assert page.context.request.get(f"/api/queues/%2F/{quote(name)}").status == 404


def test_definitions_that_are_refused_change_nothing(page: Any) -> None:
    page.goto("/")
    plan = choose(page, {"queues": [{"name": "half", "vhost": "/"}, {"vhost": "/"}]})
    expect(page.locator("#importDefinitions .form-error")).not_to_be_empty()
    expect(plan).to_be_hidden()


# --- connections, channels, consumers ---------------------------------------------------------


def test_a_connection_and_its_channels_are_asked_for_again(
    page: Any, refreshes: Callable[[str, str], None], requests: Requests, stub: Stub
) -> None:
    stub(f"/api/connections/{IN_PATH}", {"name": CONNECTION, "vhost": "/", "state": "running"})
    channel = {"name": f"{CONNECTION}[1]", "vhost": "/", "user": "guest", "confirm": True}
    stub(f"/api/connections/{IN_PATH}/channels", listed([channel]))
    refreshes(f"/connection#name={IN_PATH}", f"/api/connections/{IN_PATH}")
    requests.wait("GET", f"/api/connections/{IN_PATH}/channels", 3)
    expect(page.locator("#table td").nth(2)).to_have_text("guest")


def test_a_connection_is_closed(page: Any, requests: Requests, stub: Stub) -> None:
    stub(f"/api/connections/{IN_PATH}", {"name": CONNECTION, "vhost": "/"})
    stub(f"/api/connections/{IN_PATH}/channels", listed([]))
    page.goto(f"/connection#name={IN_PATH}")
    page.locator("#closeConnection").get_by_role("button").click()
    request = requests.wait("DELETE", f"/api/connections/{IN_PATH}")
    assert request.headers["x-reason"] == "Closed via Web management"
    page.wait_for_url(
        "**/connections"
    )  # a browser that is on its way there may hang when it is closed


def test_a_channel_is_asked_for_again(
    page: Any, refreshes: Callable[[str, str], None], stub: Stub
) -> None:
    stub(f"/api/channels/{IN_PATH}%5B1%5D", {"name": f"{CONNECTION}[1]", "vhost": "/"})
    refreshes(f"/channel#name={IN_PATH}%5B1%5D", f"/api/channels/{IN_PATH}%5B1%5D")


def test_consumers_are_counted_and_cancelled(page: Any, requests: Requests, stub: Stub) -> None:
    details = {"name": f"{CONNECTION}[1]", "connection_name": CONNECTION, "number": 1}
    row = {"consumer_tag": "tag1", "queue": {"name": "q", "vhost": "/"}, "channel_details": details}
    stub("/api/consumers", [row])
    path = f"/api/consumers/%2F/{IN_PATH}/1/tag1"
    stub(path, status=204)
    page.goto("/consumers")
    expect(page.locator("#pagename-label")).to_have_text("1")
    page.get_by_role("button", name="Cancel").click()
    requests.wait("DELETE", path)


# --- exchanges and queues ---------------------------------------------------------------------


def test_an_exchange_is_asked_for_again(page: Any, refreshes: Callable[[str, str], None]) -> None:
    refreshes("/exchange#vhost=%2F&name=amq.topic", "/api/exchanges/%2F/amq.topic")


def test_another_exchange_in_the_address_is_loaded(page: Any, requests: Requests) -> None:
    page.goto("/exchange#vhost=%2F&name=amq.topic")
    expect(page.locator("#pagename-label")).to_contain_text("amq.topic")
    page.evaluate("location.hash = 'vhost=%2F&name=amq.direct'")
    requests.wait("GET", "/api/exchanges/%2F/amq.direct")
    expect(page.locator("#pagename-label")).to_contain_text("amq.direct")
    assert page.url.endswith("#vhost=%2F&name=amq.direct")


def test_an_exchange_is_added_bound_and_deleted(page: Any) -> None:
    page.goto("/exchanges")
    form = page.locator("#addExchange")
    expect(form.get_by_label("Type").locator("option")).not_to_have_count(0)
    form.get_by_label("Name").fill("page-exchange")
    form.get_by_label("Type").select_option("topic")
    form.locator("a[data-tag=x-alternate-exchange]").click()
    form.get_by_role("button", name="Add exchange").click()
    expect(page.locator("tr[data-name='\"page-exchange\"']")).to_be_visible()

    page.goto("/exchange#vhost=%2F&name=page-exchange")
    page.get_by_label("To a").select_option("e")
    page.get_by_label("Destination").fill("amq.fanout")
    page.get_by_label("Binding key").fill("a.#")
    page.get_by_role("button", name="Bind", exact=True).click()
    expect(page.locator("#bindings-count")).to_have_text("1")
    page.get_by_role("button", name="Unbind").click()
    expect(page.locator("#bindings-count")).to_have_text("0")
    page.get_by_role("button", name="Delete exchange").click()
    expect(page).to_have_url(re.compile("/exchanges"))


def test_a_queue_is_added(page: Any) -> None:
    page.goto("/queues")
    form = page.locator("#declare")
    expect(form.get_by_label("Virtual host").locator("option")).not_to_have_count(0)
    form.get_by_label("Name").fill("page-added")
    form.locator("a[data-tag=x-max-length]").click()
    form.get_by_role("button").click()
    expect(page.locator("tr[data-name='\"page-added\"']")).to_be_visible()
    said = page.context.request.get("/api/queues/%2F/page-added").json()
    assert said["arguments"] == {"x-max-length": 1000}


@pytest.mark.parametrize("given", ["{", "[1]", "7"])
def test_arguments_that_are_no_object_are_told_before_they_are_sent(
    page: Any, requests: Requests, given: str
) -> None:
    page.goto("/queues")
    form = page.locator("#declare")
    expect(form.get_by_label("Virtual host").locator("option")).not_to_have_count(0)
    form.get_by_label("Name").fill("page-never")
    form.get_by_label("Arguments").fill(given)
    form.get_by_role("button").click()
    expect(form.locator(".form-error")).to_contain_text("Input must be")
    assert requests.find("PUT", "/api/queues/%2F/page-never") == []
    assert form.get_by_label("Arguments").input_value() == given


# --- shovels, federation ----------------------------------------------------------------------


def test_a_shovel_is_deleted_and_its_password_not_shown(
    page: Any, requests: Requests, stub: Stub
) -> None:
    stub("/api/parameters/shovel", listed([SHOVEL]))
    stub("/api/parameters/shovel/%2F/shovel1", status=204)
    page.goto("/shovels")
    expect(page.locator("#pagename-label")).to_have_text("1")
    expect(page.locator("#table")).to_contain_text("amqp://u:***@host")
    page.locator("tr[data-name='\"shovel1\"']").get_by_role("button", name="Delete").click()
    requests.wait("DELETE", "/api/parameters/shovel/%2F/shovel1")


def test_a_shovel_is_edited_in_the_form(page: Any, requests: Requests, stub: Stub) -> None:
    stub("/api/parameters/shovel", listed([SHOVEL]))
    stub("/api/parameters/shovel/%2F/shovel1", status=204)
    page.goto("/shovels")
    expect(page.locator("#createShovel select#vhost option")).not_to_have_count(0)
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Name", exact=True)).to_have_attribute("readonly", "")
    page.get_by_label("Source endpoint").fill("c")
    page.get_by_role("button", name="Save shovel").click()
    sent = requests.wait("PUT", "/api/parameters/shovel/%2F/shovel1").post_data_json["value"]
    assert sent["src-queue"] == "c"
    assert SHOVEL["value"].items() <= (sent | {"src-queue": "a"}).items()


def test_upstreams_and_links_are_counted(page: Any, requests: Requests, stub: Stub) -> None:
    value = {"uri": "amqp://u:secret@host", "consumer-tag": "tag"}
    upstream = {"vhost": "/", "name": "u1", "value": value}
    link = {"vhost": "/", "upstream": "u1", "uri": "amqp://host", "resource": "q", "type": "queue",
            "status": "error", "error": "no way"}  # fmt: skip
    stub("/api/parameters/federation-upstream", listed([upstream]))
    stub("/api/parameters/federation-upstream/%2F/u1", status=204)
    stub("/api/federation-links", listed([link]))
    page.goto("/federation")
    expect(page.locator("#pagename-label")).to_have_text("1")
    expect(page.locator("#links-count")).to_have_text("1")
    expect(page.locator("#linksTable")).to_contain_text("u1")
    expect(page.locator("#linksTable")).to_contain_text("no way")
    expect(page.locator("#upstreamTable")).to_contain_text("tag")
    expect(page.locator("#upstreamTable")).not_to_contain_text("secret")
    page.locator("#upstreamTable").get_by_role("button", name="Delete").click()
    requests.wait("DELETE", "/api/parameters/federation-upstream/%2F/u1")


# --- policies ---------------------------------------------------------------------------------


def test_policies_are_counted_and_deleted(page: Any, requests: Requests, stub: Stub) -> None:
    stub("/api/policies", listed(POLICIES))
    stub("/api/policies/%2F/p1", status=204)
    page.goto("/policies")
    expect(page.locator("#pagename-label")).to_have_text("2")
    page.locator("tr[data-name='\"p1\"']").get_by_role("button", name="Delete").click()
    requests.wait("DELETE", "/api/policies/%2F/p1")


def test_an_operators_policy_is_sent_as_it_was_typed(
    page: Any, requests: Requests, stub: Stub
) -> None:
    stub("/api/vhosts", VHOSTS)
    stub("/api/operator-policies/foo/limits", status=201)
    page.goto("/operator-policies")
    expect(page.get_by_label("Virtual host").locator("option")).to_have_count(2)
    page.get_by_label("Virtual host").select_option("foo")
    page.get_by_label("Name").fill("limits")
    page.get_by_label("Pattern").fill("^q")
    page.get_by_label("Apply to").select_option("queues")
    page.get_by_label("Priority").fill("3")
    page.get_by_label("Definition").fill('{"max-length": 10}')
    page.get_by_role("button", name="Add operator policy").click()
    assert requests.wait("PUT", "/api/operator-policies/foo/limits").post_data_json == {
        "pattern": "^q", "apply-to": "queues", "priority": 3, "definition": {"max-length": 10},
    }  # fmt: skip


HELPERS = {
    "max-length": 0, "max-length-bytes": 0, "message-ttl": 0, "expires": 0, "delivery-limit": 0,
    "max-age": "1M",
}  # fmt: skip


@pytest.mark.parametrize("name", HELPERS)
def test_a_helper_inserts_its_value(page: Any, name: str) -> None:
    page.goto("/operator-policies")
    expect(page.locator("#dataTags a")).to_have_count(len(HELPERS))
    page.locator(f"#dataTags a[data-tag={name}]").click()
    assert json.loads(page.get_by_label("Definition").input_value()) == {name: HELPERS[name]}


def test_a_policy_can_be_for_each_target_of_the_broker(page: Any) -> None:
    page.goto("/policies")
    expect(page.get_by_label("Apply to").locator("option")).to_have_count(6)


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
def test_what_a_pattern_matches_is_shown_while_it_is_typed(page: Any, kind: str) -> None:
    for name in ("typed-a", "typed-b"):
        assert page.context.request.put(f"/api/queues/%2F/{name}", data={"durable": True}).ok
    page.goto(f"/{kind}")
    expect(page.get_by_label("Virtual host").locator("option")).not_to_have_count(0)
    pattern, matches = page.get_by_label("Pattern"), page.locator("#matches")
    pattern.fill("^typed-")
    expect(matches).to_have_text("It matches 2 queues and 0 exchanges: typed-a, typed-b")
    pattern.fill(r"^typed-\p{L}(?<!a)$")
    expect(matches).to_have_text("It matches 1 queue and 0 exchanges: typed-b")
    page.get_by_label("Apply to").select_option("exchanges")
    expect(matches).to_have_text("It matches nothing that is there now.")
    pattern.fill("(")
    expect(matches).to_contain_text("Invalid regular expression")


# --- users and virtual hosts ------------------------------------------------------------------


def test_a_user_and_the_permissions_are_asked_for(page: Any, requests: Requests) -> None:
    page.goto("/user#name=guest")
    requests.wait("GET", "/api/users/guest")
    requests.wait("GET", "/api/users/guest/permissions")


def test_permissions_of_a_user_are_set_and_cleared(
    page: Any, requests: Requests, stub: Stub
) -> None:
    stub("/api/vhosts", VHOSTS)
    stub("/api/users/guest/permissions", listed([{"user": "guest", "vhost": "foo", **RIGHTS}]))
    stub("/api/permissions/foo/guest", status=204)
    page.goto("/user#name=guest")
    page.locator("tr[data-vhost='\"foo\"']").get_by_role("button", name="Clear").click()
    requests.wait("DELETE", "/api/permissions/foo/guest")
    expect(page.locator("#setPermission option")).to_have_count(2)
    page.locator("#setPermission").get_by_label("Virtual host").select_option("foo")
    page.locator("#setPermission").get_by_role("button").click()
    assert requests.wait("PUT", "/api/permissions/foo/guest").post_data_json == RIGHTS


def test_a_user_is_added_changed_after_a_question_and_deleted(page: Any) -> None:
    page.goto("/users")
    page.get_by_label("Username").fill("page-user")
    page.get_by_role("button", name="Generate Password").click()
    assert len(page.get_by_label("Password", exact=True).input_value()) == 16
    page.locator("#dataTags a[data-tag=monitoring]").click()
    page.get_by_role("button", name="Add user").click()
    expect(page.locator("tr[data-name='\"page-user\"']")).to_contain_text("monitoring")

    before = page.context.request.get("/api/users/page-user").json()["password_hash"]
    asked: list[str] = []
    page.on("dialog", lambda dialog: asked.append(dialog.message))
    page.get_by_label("Username").fill("page-user")
    page.locator("#dataTags a[data-tag=management]").click()
    page.get_by_role("button", name="Add user").click()
    expect(page.locator("tr[data-name='\"page-user\"']")).to_contain_text("management")
    assert len(asked) == 1
    assert page.context.request.get("/api/users/page-user").json()["password_hash"] == before

    page.goto("/user#name=page-user")
    page.get_by_role("button", name="Delete user").click()
    expect(page).to_have_url(re.compile("/users"))
    assert page.context.request.get("/api/users/page-user").status == 404


def test_rights_of_a_user_are_explained(page: Any) -> None:
    put = page.context.request.put
    assert put("/api/users/page-explained", data={"password": "x", "tags": ""}).ok
    rights = {"configure": "", "write": "^orders$", "read": ".*"}
    assert put("/api/permissions/%2F/page-explained", data=rights).ok
    topics = {"exchange": "orders", "write": "^eu", "read": ".*"}
    assert put("/api/topic-permissions/%2F/page-explained", data=topics).ok
    page.goto("/user#name=page-explained")
    form, shown = page.locator("#explain"), page.locator("#explained dd")
    expect(form.locator("option", has_text="/")).not_to_have_count(0)
    page.locator("#explain-vhost").select_option("/")
    form.get_by_label("Resource").fill("orders")
    form.get_by_label("Routing key").fill("us.1")
    form.get_by_role("button").click()
    expect(shown.nth(0)).to_have_text(
        "Denied. The permission to configure is '', which allows nothing"
    )
    expect(shown.nth(1)).to_have_text("Allowed. The permission to write, '^orders$', matches")
    expect(shown.nth(3)).to_have_text("Denied. Topic permission: write '^eu', read '.*'")
    expect(shown.nth(4)).to_contain_text("Allowed")


def test_who_may_use_each_virtual_host_is_asked_once(
    page: Any, requests: Requests, stub: Stub
) -> None:
    stub("/api/vhosts", listed(VHOSTS))
    for each in VHOSTS:
        rights = [{"user": "guest", "vhost": each["name"], **RIGHTS}]
        stub(f"/api/vhosts/{each['name']}/permissions", rights)
    page.clock.install()
    page.goto("/vhosts")
    requests.wait("GET", "/api/vhosts/foo/permissions")
    requests.wait("GET", "/api/vhosts/bar/permissions")
    expect(page.locator("tr[data-name='\"foo\"']")).to_contain_text("guest")
    page.clock.run_for(6_000)
    requests.wait("GET", "/api/vhosts", 3)
    assert len(requests.find("GET", "/api/vhosts/foo/permissions")) == 1


def test_a_virtual_host_is_added_limited_and_deleted(page: Any, requests: Requests) -> None:
    page.goto("/vhosts")
    form = page.locator("#createVhost")
    form.get_by_label("Name").fill("page vhost'\"")
    form.get_by_label("Description").fill("of a test")
    form.get_by_role("button").click()
    page.get_by_role("link", name="page vhost").click()
    expect(page.locator("#details")).to_contain_text("of a test")
    path = quote("page vhost'\"", safe="'")
    limits = page.locator("#setLimits")
    limits.get_by_label("Max connections").fill("3")
    limits.get_by_label("Max queues").fill("4")
    limits.get_by_role("button").click()
    requests.wait("PUT", f"/api/vhost-limits/{path}/max-connections")
    requests.wait("PUT", f"/api/vhost-limits/{path}/max-queues")
    expect(page.locator("#limits")).to_have_text("Connections3Queues4")
    page.locator("#deleteVhost").get_by_role("button").click()
    requests.wait("DELETE", f"/api/vhosts/{path}")
    expect(page).to_have_url(re.compile("/vhosts"))


def test_permissions_of_a_virtual_host_are_set_and_cleared(
    page: Any, requests: Requests, stub: Stub
) -> None:
    stub("/api/vhosts/%2F/permissions", listed([{"user": "admin", "vhost": "/", **RIGHTS}]))
    stub("/api/users", [{"name": "admin"}, {"name": "guest"}])
    for user in ("admin", "guest"):
        stub(f"/api/permissions/%2F/{user}", status=204)
    page.goto("/vhost#name=%2F")
    page.locator("tr[data-user='\"admin\"']").get_by_role("button", name="Clear").click()
    requests.wait("DELETE", "/api/permissions/%2F/admin")
    form = page.locator("#setPermission")
    form.get_by_role("combobox", name="User").select_option("guest")
    for name in ("Configure", "Write", "Read"):
        form.get_by_role("textbox", name=name).fill("^x")
    form.get_by_role("button").click()
    sent = requests.wait("PUT", "/api/permissions/%2F/guest").post_data_json
    assert sent == dict.fromkeys(RIGHTS, "^x")


def test_permissions_of_a_virtual_host_are_asked_for_again(
    page: Any, refreshes: Callable[[str, str], None]
) -> None:
    refreshes("/vhost#name=%2F", "/api/vhosts/%2F/permissions")
