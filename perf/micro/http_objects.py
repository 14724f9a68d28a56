"""What single objects and long lists of the HTTP API cost: requests and rows per second of a core.

Starts a broker, makes queues by HTTP, then asks for one of them again and again, and for all of
them as one list. The rates count the processor time of the broker alone, so they are those of one
core, whatever the client takes. Also how long a short request waits while a long list is made.
Run: .venv/bin/python perf/micro/http_objects.py [queues]
"""

from __future__ import annotations

import base64
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

QUEUES = 10_000
REQUESTS = 3000
LISTS = 5
TICKS = os.sysconf("SC_CLK_TCK")
HEADERS = {
    "Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(),
    "Content-Type": "application/json",
}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def cpu_s(pid: int) -> float:
    """Processor time of a process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Client:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def __call__(self, method: str, path: str, body: str | None = None) -> bytes:
        """Send a request; return the content. Raises RuntimeError for a refusal."""
        self._connection.request(method, path, body=body, headers=HEADERS)
        response = self._connection.getresponse()
        content = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {content!r}")
        return content


def measured(pid: int, title: str, unit: str, n: int, work: Callable[[], object]) -> None:
    """Print how many units of work a core of the broker does in a second."""
    before, began_s = cpu_s(pid), time.perf_counter()
    work()
    used_s, took_s = cpu_s(pid) - before, time.perf_counter() - began_s
    print(
        f"{title}: {n / used_s:,.0f} {unit}/s of one core "
        f"({used_s / n * 1e6:,.1f} µs each; {n / took_s:,.0f}/s for this client)"
    )


def longest_wait(port: int, until: threading.Event) -> float:
    """The longest time that a short request took meanwhile."""
    client, longest_s = Client(port), 0.0
    while not until.is_set():
        began_s = time.perf_counter()
        client("GET", "/api/whoami")
        longest_s = max(longest_s, time.perf_counter() - began_s)
    return longest_s


def run(pid: int, port: int, queues: int) -> None:
    """Measure one after the other."""
    client = Client(port)
    body = '{"durable":false,"arguments":{"x-max-length":1000}}'

    def repeat(method: str, path: str, body: str | None = None, n: int = REQUESTS) -> None:
        for number in range(n):
            client(method, path.format(number), body)

    publish = '{"properties":{},"routing_key":"q0","payload":"x","payload_encoding":"string"}'
    look = '{"count":1,"ack_mode":"ack_requeue_true"}'
    measured(pid, "create a queue", "requests", queues,
             lambda: repeat("PUT", "/api/queues/%2F/q{}", body, queues))  # fmt: skip
    measured(pid, "show a queue", "requests", REQUESTS,
             lambda: repeat("GET", "/api/queues/%2F/q0"))  # fmt: skip
    measured(pid, "publish", "requests", REQUESTS,
             lambda: repeat("POST", "/api/exchanges/%2F/amq.default/publish", publish))  # fmt: skip
    measured(pid, "look at a message", "requests", REQUESTS,
             lambda: repeat("POST", "/api/queues/%2F/q0/get", look))  # fmt: skip
    n = LISTS * min(queues, 10_000)
    measured(pid, "list all queues", "rows", n,
             lambda: repeat("GET", "/api/queues", n=LISTS))  # fmt: skip
    measured(pid, "a page of them, sorted by messages", "lists", LISTS,
             lambda: repeat("GET", "/api/queues?page=1&sort=messages", n=LISTS))  # fmt: skip
    over, waits = threading.Event(), []
    watcher = threading.Thread(target=lambda: waits.append(longest_wait(port, over)))
    watcher.start()
    repeat("GET", "/api/queues?sort=messages", n=LISTS)
    over.set()
    watcher.join()
    print(f"longest wait of a short request meanwhile: {waits[0] * 1e3:.1f} ms")


def main() -> None:
    """Start a broker and measure it."""
    queues = int(sys.argv[1]) if len(sys.argv) > 1 else QUEUES
    port, amqp_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as data_dir:
        command = [
            sys.executable, "-m", "lavinmq", "-D", data_dir, "-p", str(amqp_port),
            "--http-port", str(port), "--metrics-http-port", "-1",
            "--control-unix-path", f"{data_dir}/control.sock", "--mqtt-port", "-1",
        ]  # fmt: skip
        broker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while True:
                try:
                    Client(port)("GET", "/api/whoami")
                    break
                except OSError:
                    time.sleep(0.05)
            run(broker.pid, port, queues)
        finally:
            broker.terminate()
            broker.wait()


if __name__ == "__main__":
    main()
