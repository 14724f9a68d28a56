"""The cluster on the page of the node: what is shown of it, to whom, and what may be done."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Requests, Stub, Visit, log_in
from tests.browser.test_every_page import AXE, HOSTILE, Seen, is_of_policy
from tests.support.api import Api
from tests.support.broker import Broker


def node(name: str, **others: Any) -> dict[str, Any]:
    """A row of the nodes."""
    known = {"uri": f"tcp://{name}:5679", "address": name, "version": "1.0"}
    return {"id": name, **known, "live": True, "in_sync": True, "member": True, **others}


def picture(*names: str, **others: Any) -> dict[str, Any]:
    """What the API says of a cluster, of which the last node is away. Args: names: a leader, a
    follower, one that joins, one that is away."""
    leader, follower, joins, away = names
    of_follower = {"lag_in_bytes": 2048, "lag_seconds": 1.25, "in_sync": True, "joining": False}
    of_joins = {"lag_in_bytes": None, "lag_seconds": None, "in_sync": False, "joining": True}
    return {
        "id": leader, "role": "leader", "whole": True, "may_lead": True, "ready": True,
        "safe_to_restart": False, "acknowledges": True,
        "reasons": {"safe_to_restart": f"without {leader} too few are in sync"}, "epoch": 7,
        "leader": {"id": leader, "uri": f"tcp://{leader}:5679"},
        "nodes": [
            node(leader), node(follower), node(joins, in_sync=False),
            node(away, live=False, in_sync=False, version=None, uri=None),
        ],
        "in_sync": [leader, follower], "members": [leader, follower, joins, away],
        "min_insync_replicas": 3, "copies": 2, "position": 99,
        "followers": [{"id": follower, **of_follower}, {"id": joins, **of_joins}],
        "following": None, "etcd_silent_seconds": 0.1,
        "elections": [
            {"epoch": 6, "node": follower, "uri": "u", "at": 1.8e9, "ended": f"{away} cut it off"},
            {"epoch": 7, "node": leader, "uri": "v", "at": 1.9e9, "ended": ""},
        ],
    } | others  # fmt: skip


NAMES = ("n1", "n2", "n3", "n4")


def test_a_cluster_is_shown(page: Any, stub: Stub) -> None:
    held = {"acknowledges": False, "reasons": {"acknowledges": "2 of 3 nodes are in sync"}}
    stub("/api/cluster", picture(*NAMES, **held))
    page.goto("/nodes")

    expect(page.locator("#cluster-held")).to_have_text(
        "Nothing is acknowledged: 2 of 3 nodes are in sync"
    )
    expect(page.locator("#cluster-facts dd").nth(2)).to_have_text("2 of 4 nodes")
    rows = page.locator("#cluster-nodes tbody tr")
    expect(rows.nth(0)).to_contain_text("n1leadsyes")
    expect(rows.nth(1).locator("td")).to_have_text(
        ["n2", "follows", "yes", "2 KiB", "1.3 s", "1.0", "tcp://n2:5679", ""]
    )
    expect(rows.nth(2)).to_contain_text("n3joinsno")
    expect(rows.nth(3)).to_contain_text("n4awayno")
    elections = page.locator("#elections tbody tr")
    expect(elections).to_have_count(2)
    expect(elections.nth(1)).to_contain_text("n4 cut it off")
    expect(page.locator("#no-cluster")).to_be_hidden()


def test_an_administrator_forgets_a_node_and_has_another_one_lead(
    page: Any, stub: Stub, requests: Requests
) -> None:
    asked: list[str] = []

    def on_dialog(dialog: Any) -> None:
        asked.append(dialog.message)
        if len(asked) % 2:
            dialog.dismiss()
        else:
            dialog.accept()

    page.on("dialog", on_dialog)
    stub("/api/cluster", picture(*NAMES))
    stub("/api/cluster/nodes/n4", status=204)
    stub("/api/cluster/transfer", {"reason": "no other node is in sync"}, status=409)
    page.goto("/nodes")

    page.get_by_role("button", name="Forget").click()
    page.get_by_role("button", name="Forget").click()
    requests.wait("DELETE", "/api/cluster/nodes/n4")
    expect(page.locator("#toast")).to_have_text("The node n4 is forgotten")
    page.locator("#transfer-btn").click()
    page.locator("#transfer-btn").click()
    requests.wait("POST", "/api/cluster/transfer")
    expect(page.locator("#toast")).to_have_text("no other node is in sync")
    assert [text.partition("?")[0] for text in asked] == [
        "Forget the node n4", "Forget the node n4",
        "Have another node lead", "Have another node lead",
    ]  # fmt: skip
    assert len(requests.find("DELETE", "/api/cluster/nodes/n4")) == 1
    assert len(requests.find("POST", "/api/cluster/transfer")) == 1


def test_who_is_no_administrator_sees_the_cluster_and_is_offered_nothing(
    visitor: Any, broker: Broker, stub: Stub
) -> None:
    Api(broker).as_user("of-clusters", "management")
    log_in(visitor, "of-clusters", "of-clusters-pw")
    stub("/api/cluster", picture(*NAMES))
    visitor.goto("/nodes")

    expect(visitor.locator("#cluster-nodes tbody tr")).to_have_count(4)
    expect(visitor.locator("#cluster button:visible")).to_have_count(0)


def test_a_broker_without_a_cluster_shows_no_more_than_a_hint(page: Any, visit: Visit) -> None:
    visit("/nodes")

    expect(page.locator("#no-cluster")).to_be_visible()
    expect(page.locator("#cluster")).to_be_hidden()
    expect(page.locator("#followers")).to_be_hidden()


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not there: `make test` installs it")
def test_hostile_names_in_a_cluster_are_text_on_every_screen(
    page: Any, visit: Visit, stub: Stub
) -> None:
    names = [f"{HOSTILE}{name}" for name in NAMES]
    stub("/api/cluster", picture(*names, acknowledges=False, reasons={"acknowledges": HOSTILE}))
    found = Seen()
    found.listen(page)
    for width in (1400, 360):
        page.set_viewport_size({"width": width, "height": 800})
        visit("/nodes")
        expect(page.locator("#cluster-nodes tbody tr").nth(3)).to_contain_text(names[3])
        found.measure(page, "/nodes", width)
    found.examine(page, "/nodes")

    assert page.locator("main img").count() == 0
    assert (found.overflow, found.violations, found.dialogs) == ({}, {}, [])
    assert [text for text in found.said if is_of_policy(text)] == []
