"""Charts of a page: their numbers, labels, crosshair, zoom, text and CSV."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import TWO_FRAMES, Requests, Stub, until

NOTE_LABELS = """
globalThis.labels = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const { width } = this.measureText(text);
  const before = { right: width, end: width, center: width / 2 }[this.textAlign] ?? 0;
  const left = this.getTransform().e + x - before;
  globalThis.labels.push([text, left, left + width, this.getTransform().f + y]);
  write.call(this, text, x, y);
};
"""
"""Notes each label of a canvas, where it begins and ends, and its height."""
SAMPLES = list(range(100, 220))


def depth(*ready: int, sent: tuple[int, ...] = ()) -> dict[str, Any]:
    """What the API says of the broker, with so many messages and bytes at each sample."""
    totals = {"messages_ready_log": list(ready), "messages_unacknowledged_log": [0] * len(ready)}
    return {
        "object_totals": {}, "queue_totals": totals, "message_stats": {},
        "send_oct_details": {"log": list(sent)}, "recv_oct_details": {"log": list(sent)},
    }  # fmt: skip


@pytest.fixture
def overview(page: Any, stub: Stub) -> Callable[..., None]:
    """Opens the overview with samples."""

    def show(*ready: int, sent: tuple[int, ...] = ()) -> None:
        stub("/api/overview", depth(*ready, sent=sent))
        page.goto("/")
        expect(line(page, "depth", "Ready")).to_contain_text(re.compile(r"\d"))

    return show


def line(page: Any, chart: str, name: str) -> Any:
    """The button of a line, which says the value at the crosshair."""
    return page.locator(f"#{chart}-chart").get_by_role("button", name=name)


def shown_times(page: Any) -> list[float]:
    """How many seconds each chart of the page shows."""
    return page.evaluate(  # type: ignore[no-any-return]
        "uPlot.sync('time').plots.map(({scales: {x}}) => x.max - x.min)"
    )


def test_the_legend_follows_the_last_sample(page: Any, stub: Stub, requests: Requests) -> None:
    stub("/api/overview", depth(1, 2))
    page.clock.install()
    page.goto("/")
    ready = page.locator("#depth-chart").get_by_role("button", name="Ready")
    expect(ready).to_contain_text("2")

    stub("/api/overview", depth(1, 2, 731))
    page.wait_for_timeout(100)
    page.clock.run_for(10_000)
    requests.wait("GET", "/api/overview", 2)

    expect(ready).to_contain_text("731")


def test_no_label_of_an_axis_is_cut_off(page: Any, overview: Callable[..., None]) -> None:
    page.add_init_script(NOTE_LABELS)
    overview(1, 555_000_000_000, sent=(1023 << 30, 1023 << 30))
    page.evaluate(TWO_FRAMES)

    labels = page.evaluate("labels")

    assert any(text.endswith("GiB/s") for text, *_ in labels), labels
    assert [(text, left) for text, left, *_ in labels if left < 0] == []


def test_labels_of_times_do_not_overlap(page: Any, overview: Callable[..., None]) -> None:
    page.add_init_script(NOTE_LABELS)
    page.set_viewport_size({"width": 2000, "height": 900})
    overview(*range(40), sent=tuple(range(40)))
    page.evaluate(TWO_FRAMES)

    times = [each for each in page.evaluate("labels") if ":" in each[0]]

    assert len(times) > 4
    neighbours = [(one, next_) for one, next_ in pairwise(times) if one[1] < next_[1]]
    assert [(one, next_) for one, next_ in neighbours if one[2] + 4 > next_[1]] == []


def test_all_charts_of_a_page_have_one_crosshair(page: Any, overview: Callable[..., None]) -> None:
    overview(*SAMPLES, sent=tuple(SAMPLES))
    box = page.locator("#depth-chart .u-over").bounding_box()

    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    at = page.evaluate("uPlot.sync('time').plots[0].cursor.idx")
    assert 50 < at < 70
    assert page.evaluate("uPlot.sync('time').plots.map(each => each.cursor.idx)") == [at] * 2
    expect(line(page, "depth", "Ready")).to_contain_text(str(SAMPLES[at]))
    expect(line(page, "data", "Send")).to_contain_text(str(SAMPLES[at]))


def test_dragging_zooms_all_charts_until_a_double_click(
    page: Any, overview: Callable[..., None], stub: Stub
) -> None:
    page.add_init_script("localStorage.setItem('lmq.rate', '1000')")
    overview(*SAMPLES, sent=tuple(SAMPLES))
    whole = shown_times(page)
    assert whole == [595] * 2
    box = page.locator("#data-chart .u-over").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.25, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=3)
    page.mouse.up()
    until(page, "uPlot.sync('time').plots.every(({scales: {x}}) => x.max - x.min < 200)")

    stub("/api/overview", depth(*SAMPLES, 731, sent=(*SAMPLES, 731)))
    until(page, "uPlot.sync('time').plots.every(each => each.data[1].at(-1) === 731)")
    assert max(shown_times(page)) < 200  # a new sample leaves it

    page.locator("#data-chart .u-over").dblclick()  # wherever it is by now: a notice may move it
    until(page, "uPlot.sync('time').plots.every(({scales: {x}}) => x.max - x.min > 590)")


def test_keys_move_the_crosshair_and_zoom(page: Any, overview: Callable[..., None]) -> None:
    overview(*SAMPLES, sent=tuple(SAMPLES))
    page.locator("#depth-chart").get_by_role("button", name="CSV").focus()
    page.keyboard.press("Tab")

    page.keyboard.press("ArrowLeft")  # it appears at the newest sample
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")

    expect(line(page, "depth", "Ready")).to_contain_text(str(SAMPLES[-3]))
    expect(line(page, "data", "Send")).to_contain_text(str(SAMPLES[-3]))
    page.keyboard.press("+")
    page.keyboard.press("+")
    until(page, "uPlot.sync('time').plots.every(({scales: {x}}) => x.max - x.min < 150)")
    page.keyboard.press("Escape")
    until(page, "uPlot.sync('time').plots.every(({scales: {x}}) => x.max - x.min > 590)")


def test_a_chart_without_samples_says_so(page: Any, stub: Stub) -> None:
    stub("/api/overview", depth())
    page.goto("/")
    expect(page.locator("#depth-chart")).to_contain_text("There are no samples yet")
    stub("/api/overview", depth(3, 4))
    page.reload()
    expect(line(page, "depth", "Ready")).to_contain_text("4")
    expect(page.locator("#depth-chart")).not_to_contain_text("There are no samples yet")


def test_what_lies_on_something_is_filled_down_to_it(
    page: Any, overview: Callable[..., None]
) -> None:
    """And not to the ground, where it would paint over what is below."""
    overview(*SAMPLES, sent=tuple(SAMPLES))
    bands = page.evaluate(
        "uPlot.sync('time').plots.map(({bands}) => bands.map(each => each.series))"
    )
    assert bands == [[[2, 1]], []]


def test_a_chart_can_be_read_as_a_table(page: Any, overview: Callable[..., None]) -> None:
    overview(2, 6, 4)

    page.locator("#depth-chart summary").press("Enter")

    cells = page.locator("#depth-chart table tbody tr").first.locator("th, td")
    expect(cells).to_have_text(["Ready", "4", "2", "4", "6"])  # now, least, mean, most


def test_a_chart_is_saved_as_csv(page: Any, overview: Callable[..., None], tmp_path: Path) -> None:
    overview(2, 6, 4)

    with page.expect_download() as download:
        page.locator("#depth-chart").get_by_role("button", name="CSV").press("Enter")
    download.value.save_as(tmp_path / "saved.csv")

    assert download.value.suggested_filename == "Queued messages.csv"
    head, *rows = csv.reader((tmp_path / "saved.csv").read_text().splitlines())
    assert head == ["time", "Ready", "Unacked"]
    assert [row[1:] for row in rows] == [["2", "0"], ["6", "0"], ["4", "0"]]
    assert all(row[0].endswith("Z") for row in rows)


NODE_LINES = {
    "memory": ("Used",), "disk": ("Free", "Total"), "io": ("Read", "Write"),
    "cpu": ("User", "System"), "confirm-latency": ("Median", "99 %"),
    "sync-latency": ("Median", "99 %"), "http-latency": ("Median", "99 %"),
    "connection": ("Created", "Closed"), "channel": ("Created", "Closed"),
    "queue": ("Declared", "Deleted"),
}  # fmt: skip
"""The charts of the page of the node, with their lines."""
LOGGED = (
    "mem_used", "disk_free", "disk_total", "io_read", "io_write", "cpu_user", "cpu_sys",
    "connection_created", "connection_closed", "channel_created", "channel_closed",
    "queue_declared", "queue_deleted",
)  # fmt: skip


def test_every_record_of_the_node_is_drawn_at_once(page: Any, stub: Stub) -> None:
    """Memory, disk, processor, latencies and what comes and goes, from one answer."""
    took = {"p50_log": [1.0, 2.0], "p99_log": [3.0, 7.5]}
    node = {f"{name}_details": {"log": [10, 20]} for name in LOGGED}
    node["latency"] = dict.fromkeys(("confirm", "sync", "http"), took)
    stub("/api/nodes", [{"name": "n", **node}])
    page.goto("/nodes")
    for chart, lines in NODE_LINES.items():
        for name in lines:
            expect(line(page, chart, name)).to_contain_text(re.compile(r"\d"))
    expect(line(page, "confirm-latency", "99 %")).to_contain_text("7.5")
    expect(page.locator("main canvas")).to_have_count(len(NODE_LINES))


def test_every_record_of_the_broker_is_drawn_at_once(page: Any, stub: Stub) -> None:
    """Depth, unacknowledged messages, bytes and all rates."""
    rates = ("publish", "deliver", "ack", "get", "deliver_get", "confirm", "redeliver", "reject")
    said = depth(5, 6, sent=(7, 8))
    said["message_stats"] = {f"{name}_details": {"rate": 2, "log": [1, 2]} for name in rates}
    stub("/api/overview", said)
    page.goto("/")
    for chart, n in (("depth", 2), ("data", 2), ("rate", len(rates))):
        legend = page.locator(f"#{chart}-chart .chart-legend button")
        expect(legend).to_have_count(n)
        for at in range(n):
            expect(legend.nth(at)).to_contain_text(re.compile(r"\d"))
