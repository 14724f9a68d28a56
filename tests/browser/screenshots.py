"""Pictures of all management pages, with a broker behind them that has something to do.

`make screenshots` runs it: `python -m tests.browser.screenshots [NAME...]`, all pages or some. Each
is taken in both themes and two widths, into build/screenshots; those that README and the documents
show go into docs/screenshots as well.
"""

from __future__ import annotations

import base64
import json
import math
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.browser.conftest import NAMES, TWO_FRAMES, Visit, log_in
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5, V311, block
from tests.support.mqtt_peer import Peer
from tests.support.raw_connection import Address, Connection
from tests.support.raw_wire import ClientError, ConnectionLost, Properties

ROOT = Path(__file__).resolve().parents[2]
ALL = ROOT / "build" / "screenshots"
KEPT = ROOT / "docs" / "screenshots"
SHOWN = ("overview-light-1400", "queues-dark-1400", "map-light-1400", "messages-light-1400",
         "overview-dark-360", "mqtt-light-1400", "mqtt-session-light-1400")  # fmt: skip
WIDTHS = {360: 800, 1400: 900}
LONGEST = 2400
QUALITY = 70
WARM_UP_S = 45
PAGES = {
    "login": "/login", "overview": "/", "nodes": "/nodes", "logs": "/logs",
    "connections": "/connections", "channels": "/channels", "consumers": "/consumers",
    "mqtt": "/mqtt", "mqtt-session": "/mqtt-session#vhost=%2F&client_id=dashboard",
    "map": "/map", "exchanges": "/exchanges",
    "exchange": "/exchange#vhost=%2F&name=orders",
    "queues": "/queues", "queue": "/queue#vhost=%2F&name=orders.paid",
    "queue-consumers": "/queue#vhost=%2F&name=orders.paid&tab=consumers",
    "queue-bindings": "/queue#vhost=%2F&name=orders.paid&tab=bindings",
    "messages": "/queue#vhost=%2F&name=mail.failed&tab=messages",
    "unacked": "/unacked#vhost=%2F&name=orders.paid",
    "stream": "/stream#vhost=%2F&name=audit", "shovels": "/shovels", "federation": "/federation",
    "vhosts": "/vhosts", "vhost": "/vhost#name=%2F", "policies": "/policies",
    "operator-policies": "/operator-policies", "users": "/users", "user": "/user#name=shop",
    "docs": "/docs/", "404": "/404",
}  # fmt: skip
QUEUES = ("orders.created", "orders.paid", "orders.shipped", "payments.eu", "payments.us",
          "mail.welcome", "mail.receipt", "images.resize")  # fmt: skip


def seed(api: Api) -> None:
    """What a small shop has."""
    rights = {"configure": "^shop", "write": ".*", "read": ".*"}
    everything = dict.fromkeys(("configure", "write", "read"), ".*")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "mail.failed"}
    stream = {"x-queue-type": "stream", "x-max-age": "7D"}
    limit = {"pattern": "^mail[.]", "definition": {"max-length": 100_000}, "apply-to": "queues"}
    old = {"pattern": "^payments[.]", "definition": {"message-ttl": 86_400_000}, "priority": 5}
    shovel = {"src-uri": "amqp://", "src-queue": "audit", "dest-uri": "amqps://archive.example",
              "dest-queue": "audit"}  # fmt: skip
    for path, body in (
        ("vhosts/staging", {"description": "For trying things out", "tags": "test"}),
        ("users/shop", {"password": "not-so-secret", "tags": "management"}),
        ("users/dashboards", {"password": "not-so-secret", "tags": "monitoring"}),
        ("permissions/%2F/shop", rights), ("permissions/staging/shop", everything),
        ("exchanges/%2F/orders", {"type": "topic", "durable": True}),
        ("exchanges/%2F/events", {"type": "fanout", "durable": True}),
        ("exchanges/%2F/mail", {"type": "direct", "durable": True}),
        ("policies/%2F/short-mail", {**limit, "priority": 1}), ("policies/%2F/one-day", old),
        ("operator-policies/%2F/bounded", {**limit, "pattern": ".*", "priority": 0}),
        ("parameters/shovel/%2F/archive", {"value": shovel}),
        ("parameters/federation-upstream/%2F/berlin", {"value": {"uri": "amqps://berlin.example"}}),
        ("vhost-limits/staging/max-queues", {"value": 100}),
        *((f"queues/%2F/{name}", {"durable": True, "arguments": dead if "mail" in name else {}})
          for name in QUEUES),
        ("queues/%2F/mail.failed", {"durable": True}), ("queues/%2F/reports", {"durable": True}),
        ("queues/%2F/audit", {"durable": True, "arguments": stream}),
        ("queues/staging/trial", {"durable": True}),
    ):  # fmt: skip
        answer = api("PUT", f"/api/{path}", body)
        assert answer.status in (201, 204), (path, answer)
    for source, target, key in (
        *(("orders", name, name) for name in QUEUES[:3]), ("orders", "payments.eu", "orders.#"),
        ("orders", "payments.us", "orders.#"), ("events", "audit", ""), ("events", "reports", ""),
        ("mail", "mail.welcome", "welcome"), ("mail", "mail.receipt", "receipt"),
    ):  # fmt: skip
        path = f"/api/bindings/%2F/e/{source}/q/{target}"
        assert api("POST", path, {"routing_key": key}).status == 201
    assert api("POST", "/api/bindings/%2F/e/orders/e/events", {"routing_key": "#"}).status == 201


class Shop:
    """Clients that publish and consume until the end. Each is a thread with a connection."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._publish, args=("web-1", "orders", QUEUES[:3], 300)),
            threading.Thread(target=self._publish, args=("web-2", "mail", ("receipt",), 80)),
            *(threading.Thread(target=self._consume, args=(f"worker-{n}", name, 0.004))
              for n, name in enumerate(QUEUES) if name != "orders.shipped"),
            threading.Thread(target=self._consume, args=("packing", "orders.shipped", 0.012)),
            *(threading.Thread(target=self._sense, args=(f"thermostat-{room}", room))
              for room in ("hall", "store", "yard")),
            threading.Thread(target=self._show),
        ]  # fmt: skip

    def __enter__(self) -> Shop:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _publish(self, name: str, exchange: str, keys: tuple[str, ...], most: int) -> None:
        properties = Properties(content_type="application/json", delivery_mode=2)
        with self._connected(name) as channel:
            n = 0
            while not self._over.wait(0.05):
                wave = 0.55 + 0.45 * math.sin(time.monotonic() / 6 + len(name))
                for _ in range(int(most * wave * 0.05) + 1):
                    n += 1
                    order = {"order": 10_000 + n, "total": round(9.9 + n * 7 % 400, 2)}
                    body = json.dumps(order | {"lines": [{"item": "lamp", "n": n % 3 + 1}]})
                    channel.publish(exchange, keys[n % len(keys)], body.encode(), properties)

    def _consume(self, name: str, queue: str, work_s: float) -> None:
        with self._connected(name) as channel:
            channel.qos(50)
            channel.consume(queue, name)
            n = 0
            while not self._over.is_set():
                with suppress(ClientError, ConnectionLost):
                    delivery = channel.receive(0.5)
                    n += 1
                    if queue == "mail.receipt" and n % 97 == 0:
                        channel.nack(delivery.delivery_tag, requeue=False)
                    elif n % 20 == 0:
                        channel.ack(delivery.delivery_tag, multiple=True)
                    time.sleep(work_s)

    def _sense(self, name: str, room: str) -> None:
        """Of a device that speaks MQTT."""
        with Peer(self._broker.mqtt_port, V5) as device:
            device.connect(name, keep_alive=60)
            device.publish(f"rooms/{room}/state", b"on", 1, retain=True)
            n = 0
            while not self._over.wait(0.2):
                n += 1
                reading = {"celsius": round(20 + 3 * math.sin(n / 9 + len(room)), 1)}
                device.publish(f"rooms/{room}/temperature", json.dumps(reading).encode(), 1)

    def _show(self) -> None:
        """What those devices tell: one who is here, one who has gone away, and two who share."""
        port, kept = self._broker.mqtt_port, block(b"\x11\0\1\x51\x80")
        with Peer(port, V5) as away:
            away.connect("van-7", clean=False, properties=kept)
            away.subscribe(("rooms/yard/#", 1))
            away.disconnect()
        with ExitStack() as stack:
            here, *sharing = (stack.enter_context(Peer(port, level)) for level in (V5, V311, V311))
            here.connect("dashboard", keep_alive=60)
            here.subscribe(("rooms/+/temperature", 1), ("rooms/+/state", 0))
            for number, each in enumerate(sharing):
                each.connect(f"meter-{number}", keep_alive=0)
                each.subscribe(("$share/billing/rooms/#", 0))
            while not self._over.is_set():
                with suppress(TimeoutError):
                    here.message()

    @contextmanager
    def _connected(self, name: str) -> Iterator[Any]:
        with Connection.open(Address("127.0.0.1", self._broker.port), name=name) as connection:
            yield connection.channel()


def take(page: Any, name: str, width: int) -> None:
    """A picture of all of the page, as long as it is not very long."""
    page.evaluate("scrollTo(0, 0)")
    page.evaluate(TWO_FRAMES)
    reached = page.evaluate("document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": min(reached, LONGEST), "scale": 1}
    devtools = page.context.new_cdp_session(page)
    taken = devtools.send("Page.captureScreenshot", {
        "format": "webp", "quality": QUALITY, "clip": clip, "captureBeyondViewport": True,
    })  # fmt: skip
    (ALL / f"{name}.webp").write_bytes(base64.b64decode(taken["data"]))
    devtools.detach()


def look(page: Any, visit: Visit, name: str) -> None:
    """Go to a page, and have it show what it can."""
    visit(PAGES[name])
    if name == "messages":
        page.locator("#browseMessages [name=n]").fill("3")
        page.get_by_role("button", name="Browse messages").click()
        visit.settle()


def main() -> None:
    """Take all, or those that are named."""
    wanted = sys.argv[1:] or list(PAGES)
    for place in (ALL, KEPT):
        place.mkdir(parents=True, exist_ok=True)
    path = next(filter(None, map(shutil.which, NAMES)))
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        settings = Path(place) / "lavinmq.ini"
        settings.write_text("[main]\nstats_interval = 1000\n")
        broker = Broker(Path(place) / "data", ("-c", str(settings)), http=True, mqtt=True)
        broker.start()
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            seed(Api(broker))
            with Shop(broker):
                time.sleep(WARM_UP_S)
                for theme in ("light", "dark"):
                    for width, height in WIDTHS.items():
                        context = browser.new_context(
                            base_url=broker.http_url, color_scheme=theme,
                            viewport={"width": width, "height": height},
                        )  # fmt: skip
                        page = context.new_page()
                        log_in(page)
                        visit = Visit(page)
                        for name in wanted:
                            look(page, visit, name)
                            take(page, f"{name}-{theme}-{width}", width)
                        context.close()
        finally:
            browser.close()
            broker.close()
    for name in SHOWN:
        if name.partition("-light")[0].partition("-dark")[0] in wanted:
            shutil.copy(ALL / f"{name}.webp", KEPT / f"{name}.webp")


if __name__ == "__main__":
    main()
