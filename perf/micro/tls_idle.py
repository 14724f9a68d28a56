"""Memory of idle AMQPS connections: `python perf/micro/tls_idle.py [connections]`.

Starts a broker with a certificate made by the openssl command, opens connections with a channel
each, first plainly and then through TLS, lets them be, and prints how much the broker's resident
memory has grown for each.
"""

from __future__ import annotations

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

from lavinmq.amqp import methods as m

HOST = "127.0.0.1"
SETTLE_S = 2.0


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


def hello() -> bytes:
    """Everything up to a channel."""
    said: list[tuple[int, object]] = [
        (0, commands.Connection.StartOk(mechanism="PLAIN", response="\0guest\0guest")),
        (0, commands.Connection.TuneOk(100, 131072, 0)),
        (0, commands.Connection.Open(virtual_host="/")),
        (1, commands.Channel.Open()),
    ]
    return b"AMQP\x00\x00\x09\x01" + b"".join(frame.marshal(each, n) for n, each in said)  # type: ignore[arg-type]


def opened(port: int, context: ssl.SSLContext | None) -> socket.socket:
    sock = socket.create_connection((HOST, port), 10)
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


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with tempfile.TemporaryDirectory() as directory:
        cert, key = certificate(Path(directory))
        port, tls_port = free_port(), free_port()
        broker = subprocess.Popen(
            [sys.executable, "-m", "lavinmq", "-D", f"{directory}/data", "-l", "error",
             "-p", str(port), "--amqps-port", str(tls_port), "--cert", cert, "--key", key],
            stdout=subprocess.DEVNULL, env={**os.environ, "SSLKEYLOGFILE": ""},
        )  # fmt: skip
        try:
            time.sleep(SETTLE_S)
            held = [opened(port, None), opened(tls_port, context)]
            for name, to, by in (("plain", port, None), ("tls", tls_port, context)):
                before = resident_kib(broker.pid)
                held += [opened(to, by) for _ in range(count)]
                time.sleep(SETTLE_S)
                grown = resident_kib(broker.pid) - before
                print(f"{name}: {count} connections, {grown} KiB, {grown / count:.1f} KiB each")
        finally:
            broker.terminate()
            broker.wait()


if __name__ == "__main__":
    main()
