"""What idle connections take: `perf/micro/idle.py [--mqtt] [--tls N] [--wait S] [COUNT ...]`.

Starts a broker with a certificate made by the openssl command, opens connections with a heartbeat
and a channel each, until there are COUNT of them (1000 10000 19000), lets them be, and prints how
much the broker's resident memory has grown for each, and what its loop took at a time meanwhile
(`perf/turns.py`). Then the same of N connections (500) through TLS. With `--mqtt`: clients of MQTT
3.1.1 with a clean session each; with `--used` these have published a message, and got one. Of those
it prints the processor's time a second while they do nothing, and of a PINGREQ with its answer, and
not what the loop took: who looks at that is never idle.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pamqp import commands, frame
from pamqp.common import FieldTable

from lavinmq.amqp import methods as m

HOST = "127.0.0.1"
START_S, LEFT_OUT_S = 120.0, 3.0
ANSWER_S = 120.0
"""On a machine with much other work."""
HEARTBEAT_S = 3600
PINGS = 3
"""Of each client: the clock of processes has steps of 10 ms."""
REPOSITORY = Path(__file__).resolve().parents[2]
CLIENT: FieldTable = {
    "product": "a client", "version": "1.2.3", "platform": "Python 3.11",
    "capabilities": {
        "publisher_confirms": True, "consumer_cancel_notify": True, "basic.nack": True,
        "connection.blocked": True, "authentication_failure_close": True,
    },
}  # fmt: skip
"""What they say of themselves, all the same."""


def certificate(directory: Path) -> tuple[str, str]:
    cert, key = directory / "cert.pem", directory / "key.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-days", "1", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return str(cert), str(key)


def free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def await_listener(port: int) -> None:
    """Return once a broker takes connections."""
    until = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection((HOST, port), ANSWER_S).close()
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def hello() -> bytes:
    """Everything up to a channel."""
    said: list[tuple[int, object]] = [
        (0, commands.Connection.StartOk(CLIENT, "PLAIN", "\0guest\0guest")),
        (0, commands.Connection.TuneOk(100, 131072, HEARTBEAT_S)),
        (0, commands.Connection.Open(virtual_host="/")),
        (1, commands.Channel.Open()),
    ]
    return b"AMQP\x00\x00\x09\x01" + b"".join(frame.marshal(each, n) for n, each in said)  # type: ignore[arg-type]


def text(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


def packet(first: int, body: bytes) -> bytes:
    """Of MQTT, up to 127 bytes of it."""
    return bytes([first, len(body)]) + body


def device(port: int, number: int, *, is_used: bool) -> socket.socket:
    """A client of MQTT; one that is used has heard what it has said."""
    sock = socket.create_connection((HOST, port), ANSWER_S, (f"127.0.{2 + number // 5000}.1", 0))
    name = b"device-%07d" % number
    said = packet(0x10, text(b"MQTT") + b"\x04\xc2\0\0" + text(name) + 2 * text(b"guest"))
    expected = b"\x20\x02\0\0"
    if is_used:
        told = packet(0x30, text(name) + b"here")
        said += packet(0x82, b"\0\1" + text(name) + b"\0") + told
        expected += b"\x90\x03\0\1\0" + told
    sock.sendall(said)
    answer = b""
    while len(answer) < len(expected):
        answer += sock.recv(65536) or sys.exit(f"the broker has closed it after {answer!r}")
    if answer != expected:
        sys.exit(f"the broker says {answer!r}")
    return sock


def opened(port: int, context: ssl.SSLContext | None, number: int) -> socket.socket:
    """The connection of that number; no address of ours may have too many of them."""
    source = f"127.0.{2 + number // 5000}.1", 0
    sock = socket.create_connection((HOST, port), ANSWER_S, source)
    if context is not None:
        sock = context.wrap_socket(sock)
    sock.sendall(hello())
    answer, end = b"", m.payload_frame(1, m.encode(m.ChannelOpenOk()))
    while end not in answer:
        more = sock.recv(65536)
        if not more:
            raise RuntimeError(f"the broker has closed the connection: {answer[-200:]!r}")
        answer += more
    return sock


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError("no VmRSS")


def processor_s(pid: int) -> float:
    """What a process has taken of the processor, the kernel's part included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ping(devices: list[socket.socket]) -> None:
    """Have each say PINGREQ, a hundred at a time, and hear the answer."""
    for first in range(0, len(devices), 100):
        some = devices[first : first + 100]
        for sock in some:
            sock.sendall(b"\xc0\0")
        for sock in some:
            answer = sock.recv(16)
            if answer != b"\xd0\0":
                sys.exit(f"the broker says {answer!r}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("counts", nargs="*", type=int, metavar="COUNT")
    parser.add_argument("--tls", type=int, default=500, metavar="N")
    parser.add_argument("--mqtt", action="store_true")
    parser.add_argument("--used", action="store_true")
    parser.add_argument("--wait", type=float, default=20.0, metavar="S")
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        cert, key = certificate(directory)
        port, tls_port, mqtt_port = free_port(), free_port(), free_port()
        other = str(free_port())
        notes = directory / "turns"
        notes.touch()
        started = [sys.executable, str(REPOSITORY / "perf/turns.py"), str(notes)]
        if asked.mqtt:
            started = [sys.executable, "-m", "lavinmq"]
        broker = subprocess.Popen(
            [*started, "-D", directory / "data", "-l", "error",
             "-p", str(port), "--http-port", other,
             "--mqtt-port", str(mqtt_port) if asked.mqtt else "-1", "--mqtts-port", "-1",
             "--metrics-http-port", "-1", "--amqps-port", str(tls_port),
             "--https-port", "-1", "--control-unix-path", directory / "control",
             "--cert", cert, "--key", key],
            stdout=subprocess.DEVNULL, env={**os.environ, "SSLKEYLOGFILE": ""},
        )  # fmt: skip

        kept: list[socket.socket] = []

        def measure(what: str, counts: list[int], to: int, by: ssl.SSLContext | None) -> None:
            held: list[socket.socket] = []
            before = resident_kib(broker.pid)
            for count in counts:
                numbers = range(len(held), count)
                if to == mqtt_port:
                    held += [device(to, number, is_used=asked.used) for number in numbers]
                else:
                    held += [opened(to, by, number) for number in numbers]
                time.sleep(asked.wait / 2)
                n_turns = len(notes.read_text().splitlines())
                began_s = processor_s(broker.pid)
                time.sleep(asked.wait / 2)
                idle_ms = (processor_s(broker.pid) - began_s) / (asked.wait / 2) * 1e3
                grown = resident_kib(broker.pid) - before
                print(f"{what}: {count} connections, {grown} KiB, {grown / count:.2f} KiB each,",
                      end=" ")  # fmt: skip
                if to != mqtt_port:
                    print("turns:", notes.read_text().splitlines()[n_turns:] or "short")
                    continue
                began_s = processor_s(broker.pid)
                for _ in range(PINGS):
                    ping(held)
                each_us = (processor_s(broker.pid) - began_s) / count / PINGS * 1e6
                print(f"idle: {idle_ms:.1f} ms a second, a ping: {each_us:.1f} us")
            kept.extend(held)

        try:
            await_listener(tls_port)
            time.sleep(LEFT_OUT_S)  # as turns.py does
            counts = asked.counts or [1000, 10_000, 19_000]
            if asked.mqtt:
                measure("mqtt", counts, mqtt_port, None)
                return
            measure("plain", counts, port, None)
            if asked.tls:
                measure("tls", [asked.tls], tls_port, context)
        finally:
            broker.terminate()
            broker.wait()


if __name__ == "__main__":
    main()
