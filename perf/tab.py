"""What the management pages cost the browser: growth of a tab's heap, and the time to change pages.

Run from the root of the repository; Chromium is found by its path, as for the tests:

    .venv/bin/python perf/tab.py [--minutes 10] [--queues 10000] [--only heap,switch,first]

`heap` keeps the overview open with live traffic and asks every half minute how much of the heap is
in use once garbage has been collected; growth is the slope of the second half, for scripts are
compiled and the history fills in the first. `switch` follows the links of the menu, three times
around, the first of which fills the browser's cache: milliseconds from the click until something
is painted, and until the answers of the API are shown; and, which a busy machine does not make
longer, the processor time until something is painted: of the page's main thread, of all threads.
`first` opens pages in a browser that has nothing of them, and again: milliseconds to the first
paint.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf import brokers, management, measure

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SAMPLE_S = 30
MIB = 1 << 20
TRAFFIC = "-r 2000 -s 100 -q live -f 500 -a 100"
SWITCHED = ("queues", "exchanges", "connections", "nodes", "map", "vhosts", "overview")
NOTE_SHOWN = """
globalThis.shown = 0;
new MutationObserver(() => { globalThis.shown = performance.now(); })
  .observe(document, { subtree: true, childList: true, characterData: true });
"""
TRACED = ("toplevel", "blink.user_timing", "loading")
TIMES = """
[performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0, globalThis.shown ?? 0]
"""
Result = dict[str, Any]


@contextmanager
def tab(bench: management.Bench) -> Iterator[Any]:
    """A page of guest, in a browser of its own."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        raise measure.BenchError(f"no browser: none of {', '.join(NAMES)} is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        context = browser.new_context(
            base_url=f"http://127.0.0.1:{bench.http}", viewport={"width": 1400, "height": 900}
        )
        context.request.post("/session", data={"username": "guest", "password": "guest"})
        yield context.new_page()
        browser.close()


@contextmanager
def traffic(bench: management.Bench, broker: brokers.RunningBroker, seconds: int) -> Iterator[None]:
    """Two thousand messages a second through a queue."""
    argv = [str(bench.flood), "-P", str(broker.port), "-z", str(seconds), *TRAFFIC.split()]
    running = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        running.terminate()
        running.wait()


def heap(bench: management.Bench) -> Result:
    """The heap of a tab that shows the overview, for minutes."""
    seconds = bench.options.minutes * 60
    samples: list[tuple[float, float, int]] = []
    with (
        bench.broker(tls=False) as broker,
        tab(bench) as page,
        traffic(bench, broker, seconds + 60),
    ):
        page.goto("/")
        devtools = page.context.new_cdp_session(page)
        began = time.monotonic()
        while (at := time.monotonic() - began) < seconds:
            devtools.send("HeapProfiler.collectGarbage")
            used = devtools.send("Runtime.getHeapUsage")["usedSize"] / MIB
            nodes = devtools.send("Memory.getDOMCounters")["nodes"]
            samples.append((at, used, nodes))
            print(f"{at:6.0f} s  {used:6.2f} MiB  {nodes} nodes", file=sys.stderr, flush=True)
            page.wait_for_timeout(SAMPLE_S * 1000)
    half = samples[len(samples) // 2 :]
    slope, _ = statistics.linear_regression([at for at, *_ in half], [used for _, used, _ in half])
    return {
        "minutes": bench.options.minutes, "first_mib": samples[0][1], "last_mib": samples[-1][1],
        "growth_mib_per_hour": slope * 3600, "nodes": [samples[0][2], samples[-1][2]],
    }  # fmt: skip


def work(page: Any, name: str, file: Path) -> tuple[float, float]:
    """Go to a page. Returns: milliseconds of processor time from the click until something is
    painted, of the page's main thread and of all threads of the browser."""
    browser = page.context.browser
    browser.start_tracing(page=page, path=file, categories=TRACED)
    turn_to(page, name)
    browser.stop_tracing()
    events = json.loads(file.read_text())["traceEvents"]

    began = max(
        float(each["ts"]) for each in events
        if each["name"] == "navigationStart"
        and each["args"]["data"]["documentLoaderURL"] == page.url
    )  # fmt: skip
    painted = max(float(each["ts"]) for each in events if each["name"] == "firstContentfulPaint")
    main = {
        (each["pid"], each["tid"]) for each in events
        if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
    }  # fmt: skip
    tasks = [
        ((each["pid"], each["tid"]) in main, each.get("tdur", 0) / 1000) for each in events
        if each["name"] == "ThreadControllerImpl::RunTask" and began <= each["ts"] < painted
    ]  # fmt: skip
    return sum(took for is_main, took in tasks if is_main), sum(took for _, took in tasks)


def turn_to(page: Any, name: str) -> None:
    """Click on a page in the menu, and wait until its answers are shown."""
    page.locator(f"#menu li.{name} a").click()
    page.wait_for_load_state("load")
    page.wait_for_timeout(1500)  # nothing new is told yet


def switch(bench: management.Bench) -> Result:
    """How long the pages of the menu take."""
    painted: dict[str, list[float]] = {}
    shown: dict[str, list[float]] = {}
    with bench.broker(tls=False) as broker, tab(bench) as page:
        bench.declare(broker.port)
        page.add_init_script(NOTE_SHOWN)
        page.goto("/")
        for _ in range(3):
            for name in SWITCHED:
                turn_to(page, name)
                paint, last = page.evaluate(TIMES)
                painted.setdefault(name, []).append(paint)
                shown.setdefault(name, []).append(last)
        used: dict[str, list[tuple[float, float]]] = {}
        with tempfile.TemporaryDirectory() as place:
            for name in SWITCHED * bench.options.traced:
                used.setdefault(name, []).append(work(page, name, Path(place) / "trace.json"))
    warm = [time for times in painted.values() for time in times[1:]]
    every = [one for several in used.values() for one in several]
    return {
        "painted_ms": painted, "shown_ms": shown,
        "warm_painted_median_ms": statistics.median(warm), "warm_painted_longest_ms": max(warm),
        "main_thread_cpu_median_ms": statistics.median(main for main, _ in every),
        "all_threads_cpu_median_ms": statistics.median(all_ for _, all_ in every),
        "cpu_by_page_ms": {
            name: [statistics.median(main for main, _ in several),
                   statistics.median(all_ for _, all_ in several)]
            for name, several in used.items()
        },
    }  # fmt: skip


def first(bench: management.Bench) -> Result:
    """First paints of pages in a browser that has not seen them, and of the same again."""
    cold: list[float] = []
    again: list[float] = []
    with bench.broker(tls=False) as broker:
        bench.declare(broker.port)
        for address in ("/login", "/", "/queues", "/nodes"):
            with tab(bench) as page:
                for several in (cold, again):
                    page.goto("about:blank")
                    page.goto(address)
                    page.wait_for_timeout(1500)
                    several.append(page.evaluate(TIMES)[0])
    return {"cold_ms": cold, "again_ms": again}


PARTS: dict[str, Callable[[management.Bench], Result]] = {
    "switch": switch, "first": first, "heap": heap,
}  # fmt: skip


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--traced", type=int, default=2, help="looks at the work for each page")
    return management.run_parts(parser, PARTS)


if __name__ == "__main__":
    sys.exit(main())
