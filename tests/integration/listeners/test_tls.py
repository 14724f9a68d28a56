"""AMQPS as clients see it: who gets in and as whom, all sizes, slow and hostile peers, reload."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import aio_pika
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from lavinmq.listeners.endpoints import TlsInfo
from tests.conftest import BrokerFactory
from tests.support.broker import Broker
from tests.support.certificates import Authority, Identity
from tests.support.inside import Inside, inside
from tests.support.ports import HOST, free_port
from tests.support.waiting import wait_for

TIMEOUT_S = 20.0
HEADER = b"AMQP\x00\x00\x09\x01"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Identity:
    return authority.issue("server", ("localhost", HOST))


@pytest.fixture(scope="module")
def open_broker(server: Identity) -> Iterator[Inside]:
    """A broker that asks for no client certificate."""
    with inside(tls_cert=server.cert, tls_key=server.key) as made:
        yield made


@pytest.fixture(scope="module")
def strict_broker(authority: Authority, server: Identity) -> Iterator[Inside]:
    """A broker that lets nobody in without a certificate, nor with one that was revoked."""
    revoked = authority.issue("revoked")
    with inside(
        tls_cert=server.cert, tls_key=server.key, tls_verify_peer=True,
        tls_ca_cert=authority.path, tls_crl=authority.revoke(revoked),
    ) as made:  # fmt: skip
        made.add_user("carol", rights=(".*", ".*", ".*"))
        yield made


def port_of(broker: Inside) -> int:
    return broker.server.tls_port


def parameters(
    port: int, context: ssl.SSLContext, *, external: bool = False, name: str = "localhost",
    **more: Any,
) -> pika.ConnectionParameters:  # fmt: skip
    plain, proven = pika.PlainCredentials("guest", "guest"), pika.credentials.ExternalCredentials()
    return pika.ConnectionParameters(
        HOST, port, credentials=proven if external else plain, connection_attempts=1,
        ssl_options=pika.SSLOptions(context, name), blocked_connection_timeout=TIMEOUT_S, **more,
    )  # fmt: skip


@contextmanager
def channel_on(port: int, context: ssl.SSLContext, **more: Any) -> Iterator[BlockingChannel]:
    with closing(pika.BlockingConnection(parameters(port, context, **more))) as connection:
        yield connection.channel()


def connect(port: int, context: ssl.SSLContext, name: str = "localhost") -> ssl.SSLSocket:
    return context.wrap_socket(
        socket.create_connection((HOST, port), TIMEOUT_S), server_hostname=name
    )


def is_let_in(port: int, context: ssl.SSLContext, name: str = "localhost") -> bool:
    """Whether the broker answers the protocol header."""
    try:
        with connect(port, context, name) as sock:
            sock.sendall(HEADER)
            return sock.recv(1) == b"\x01"
    except (ssl.SSLError, ConnectionError):
        return False


def mechanisms(port: int, context: ssl.SSLContext) -> bytes:
    """Whatever connection.start says."""
    with connect(port, context) as sock:
        sock.sendall(HEADER)
        return sock.recv(4096)


def maps_of(broker: Broker) -> str:
    return Path(f"/proc/{broker.pid}/maps").read_text()


def has_loaded_tls(broker: Broker) -> bool:
    """Whether the module is in memory that brings OpenSSL along."""
    return "/_tls." in maps_of(broker)


def is_one_file(broker: Broker) -> bool:
    """Whether all modules are in one executable, where nobody sees which are used."""
    return "/_core." not in maps_of(broker)


# --- certificates


def test_a_connection_knows_its_ends_and_its_tls(open_broker: Inside, authority: Authority) -> None:
    with channel_on(port_of(open_broker), authority.client_context()) as channel:
        (ours,) = [each for each in open_broker.inner.connections if each.ends.tls]

        assert (ours.ends.peer_host, ours.ends.host, ours.ends.port) == (
            HOST,
            HOST,
            port_of(open_broker),
        )
        assert ours.name == f"{HOST}:{ours.ends.peer_port} -> {HOST}:{ours.ends.port}"
        assert ours.ends.tls == TlsInfo("TLSv1.3", "TLS_AES_256_GCM_SHA384")
        assert channel.is_open


def test_a_connection_is_logged_with_the_state_of_ktls(
    authority: Authority, server: Identity, broker_factory: BrokerFactory
) -> None:
    """edge-cases.md 16"""
    port = free_port()
    flags = ["--cert", str(server.cert), "--key", str(server.key), "--amqps-port", str(port)]
    broker = broker_factory(flags)

    assert is_let_in(port, authority.client_context())

    assert "version=TLSv1.3, cipher=TLS_AES_256_GCM_SHA384, kTLS=off" in broker.log_text()
    assert has_loaded_tls(broker) or is_one_file(broker)


def test_kernel_tls_works_or_is_said_not_to(
    authority: Authority, server: Identity, broker_factory: BrokerFactory
) -> None:
    port = free_port()
    flags = ["--cert", str(server.cert), "--key", str(server.key), "--amqps-port", str(port)]
    broker = broker_factory([*flags, "--tls-ktls", "true"])

    assert is_let_in(port, authority.client_context())

    log = broker.log_text()
    assert "kTLS=on" in log or "'tls_ktls' has no effect" in log


def test_a_connection_without_tls_says_so(open_broker: Inside) -> None:
    with closing(pika.BlockingConnection(pika.ConnectionParameters(HOST, open_broker.port))):
        (ours,) = [each for each in open_broker.inner.connections if not each.ends.tls]

        assert ours.ends.tls is None
        assert ours.ends.peer_port > 0


def test_a_client_refuses_a_broker_of_another_name(
    open_broker: Inside, authority: Authority
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        connect(port_of(open_broker), authority.client_context(), "mq.example.com")


def test_a_client_refuses_an_expired_broker(authority: Authority) -> None:
    expired = authority.issue("expired-server", ("localhost",), expires=-timedelta(days=1))
    with (
        inside(tls_cert=expired.cert, tls_key=expired.key) as broker,
        pytest.raises(ssl.SSLCertVerificationError, match="expired"),
    ):
        connect(port_of(broker), authority.client_context())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tls_1_1_is_refused(open_broker: Inside, authority: Authority) -> None:
    context = authority.client_context()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1

    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        connect(port_of(open_broker), context)


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_only_a_client_with_a_good_certificate_gets_in(
    strict_broker: Inside, authority: Authority, tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    stranger = Authority(tmp_path / "stranger").issue("carol")
    identities: dict[str, tuple[Identity | None, bool]] = {
        "good": (authority.issue("good"), True),
        "none": (None, False),
        "expired": (authority.issue("expired", expires=-timedelta(days=1)), False),
        "stranger": (stranger, False),
        "revoked": (
            Identity(authority.directory / "revoked.pem", authority.directory / "revoked.key", 0),
            False,
        ),
    }
    for name, (identity, expected) in identities.items():
        context = authority.client_context(identity)
        context.maximum_version = newest
        assert is_let_in(port_of(strict_broker), context) == expected, name


def test_a_refused_client_is_told_why(strict_broker: Inside, authority: Authority) -> None:
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        mechanisms(port_of(strict_broker), authority.client_context())


def test_a_host_has_its_own_certificate_and_demands_its_own(
    authority: Authority, server: Identity, broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    host = authority.issue("host", ("mq.example.com",))
    port, ini = free_port(), tmp_path / "lavinmq.ini"
    ini.write_text(
        f"[main]\ntls_cert = {server.cert}\ntls_key = {server.key}\n"
        f"[sni:mq.example.com]\ntls_cert = {host.cert}\ntls_key = {host.key}\n"
        f"amqp_tls_verify_peer = true\ntls_ca_cert = {authority.path}\n"
    )
    broker_factory(["--config", str(ini), "--amqps-port", str(port)])
    nobody, client = authority.client_context(), authority.client_context(authority.issue("c"))

    assert is_let_in(port, nobody)
    assert is_let_in(port, client, "mq.example.com")
    assert not is_let_in(port, nobody, "mq.example.com")
    with connect(port, client, "mq.example.com") as sock:
        certificate = sock.getpeercert(binary_form=True)
    assert certificate == ssl.PEM_cert_to_DER_cert(host.cert.read_text())


# --- EXTERNAL


def test_a_certificate_logs_in_the_user_that_it_names(
    strict_broker: Inside, authority: Authority
) -> None:
    context = authority.client_context(authority.issue("carol"))
    with channel_on(port_of(strict_broker), context, external=True):
        (ours,) = [each for each in strict_broker.inner.connections if each.is_member]

        assert ours.user.name == "carol"


@pytest.mark.parametrize("name", ["nobody", "__direct"])
def test_a_certificate_of_nobody_we_know_does_not_log_in(
    strict_broker: Inside, authority: Authority, name: str
) -> None:
    context = authority.client_context(authority.issue(name))

    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(parameters(port_of(strict_broker), context, external=True))


def test_external_is_offered_only_with_a_certificate(
    strict_broker: Inside, open_broker: Inside, authority: Authority
) -> None:
    context = authority.client_context(authority.issue("carol"))

    assert b"PLAIN EXTERNAL" in mechanisms(port_of(strict_broker), context)
    assert b"EXTERNAL" not in mechanisms(port_of(open_broker), context)
    unclear = authority.client_context(authority.issue("two", common_names=("carol", "guest")))
    assert b"EXTERNAL" not in mechanisms(port_of(strict_broker), unclear)


def test_external_without_being_offered_does_not_log_in(
    open_broker: Inside, authority: Authority
) -> None:
    context = authority.client_context(authority.issue("guest"))

    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(parameters(port_of(open_broker), context, external=True))


def test_the_user_may_be_named_by_the_whole_subject(authority: Authority, server: Identity) -> None:
    with inside(
        tls_cert=server.cert, tls_key=server.key, tls_verify_peer=True,
        tls_ca_cert=authority.path, tls_cert_login_from="distinguished_name",
    ) as broker:  # fmt: skip
        broker.add_user(r"CN=dora,O=Acme\, Inc.", rights=(".*", ".*", ".*"))
        context = authority.client_context(authority.issue("dora"))

        with channel_on(port_of(broker), context, external=True) as channel:
            assert channel.is_open


# --- bytes


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("size", [0, 1, 16_384, 131_072, 1_000_003, 30_000_000])
def test_messages_of_any_size_pass_both_ways(
    open_broker: Inside, authority: Authority, size: int, newest: ssl.TLSVersion
) -> None:
    context = authority.client_context()
    context.maximum_version = newest
    body = os.urandom(1009) * (size // 1009 + 1)
    with channel_on(port_of(open_broker), context) as channel:
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.confirm_delivery()
        for _ in range(2):
            channel.basic_publish("", queue, body[:size])
        for _ in range(2):
            assert channel.basic_get(queue, auto_ack=True)[2] == body[:size]


def test_a_stream_of_messages_arrives_in_order(open_broker: Inside, authority: Authority) -> None:
    with channel_on(port_of(open_broker), authority.client_context()) as channel:
        queue = channel.queue_declare("", exclusive=True).method.queue
        for number in range(3000):
            channel.basic_publish("", queue, b"%d " % number + b"x" * (number % 700))
        seen = []
        for _, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=TIMEOUT_S):
            assert body is not None, f"nothing after {len(seen)}"
            seen.append(int(body.split()[0]))
            if len(seen) == 3000:
                break
    assert seen == list(range(3000))


def test_writes_of_one_byte_are_put_together(open_broker: Inside, authority: Authority) -> None:
    with connect(port_of(open_broker), authority.client_context()) as sock:
        for byte in HEADER:
            sock.sendall(bytes((byte,)))
        assert sock.recv(1) == b"\x01"


def test_a_slow_reader_gets_everything(open_broker: Inside, authority: Authority) -> None:
    body, count = os.urandom(100_000), 200
    context = authority.client_context()
    with channel_on(port_of(open_broker), context) as channel:
        channel.queue_declare("slow")
        for _ in range(count):
            channel.basic_publish("", "slow", body)
        with channel_on(port_of(open_broker), context) as reader:
            seen = []
            reader.basic_consume("slow", lambda *args: seen.append(args[3]), auto_ack=True)
            queue = open_broker.queue("slow")
            assert open_broker.call(lambda: queue.core.ready) > 0, "it would all fit in between"
            deadline = time.monotonic() + TIMEOUT_S
            while len(seen) < count and time.monotonic() < deadline:
                reader.connection.process_data_events(0.001)
        channel.queue_delete("slow")
    assert len(seen) == count
    assert all(each == body for each in seen)


def test_many_clients_at_once_get_in(open_broker: Inside, authority: Authority) -> None:
    context, results = authority.client_context(), []

    def client() -> None:
        results.append(is_let_in(port_of(open_broker), context))

    threads = [threading.Thread(target=client) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)

    assert results == [True] * 40


# --- the end


def test_both_sides_say_goodbye(open_broker: Inside, authority: Authority) -> None:
    with connect(port_of(open_broker), authority.client_context()) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sock.recv(8) == HEADER
        # Without close_notify an attacker could have cut the answer off; ours says it is whole.
        sock.suppress_ragged_eofs = False
        assert sock.recv(1) == b""
        sock.unwrap()


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_the_end_of_a_client_is_noticed(
    open_broker: Inside, authority: Authority, says_goodbye: bool
) -> None:
    sock = connect(port_of(open_broker), authority.client_context())
    sock.sendall(HEADER)
    assert sock.recv(65536)[:1] == b"\x01"
    (ours,) = [each for each in open_broker.inner.connections if each.ends.tls]

    if says_goodbye:
        sock.settimeout(TIMEOUT_S)
        raw = sock.unwrap()
        raw.close()
    sock.close()

    wait_for(lambda: ours not in open_broker.inner.connections, "it lives on")


# --- hostile peers


def arrivals(broker: Inside) -> int:
    """Connections that are not through."""
    return sum(len(listener.reception) for listener in broker.server.listeners)


HELLO_CUT = bytes.fromhex("1603010200010001fc0303")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        HEADER,
        os.urandom(4096),
        HELLO_CUT,
        HELLO_CUT + bytes(600),
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
        b"\x15\x03\x03\x00\x02\x02\x28",
    ],
    ids=["nothing", "zero", "plain", "noise", "half", "nonsense", "giant", "alert"],
)
def test_what_is_no_handshake_is_closed_and_others_go_on(
    open_broker: Inside, authority: Authority, data: bytes
) -> None:
    with socket.create_connection((HOST, port_of(open_broker)), TIMEOUT_S) as hostile:
        hostile.sendall(data)
        assert is_let_in(port_of(open_broker), authority.client_context())
        hostile.shutdown(socket.SHUT_WR)
        try:
            while hostile.recv(65536):
                pass
        except ConnectionError:
            pass
    wait_for(
        lambda: not any(len(each.reception) for each in open_broker.server.listeners),
        "no answer to nonsense",
    )


def test_noise_after_the_handshake_ends_that_connection(
    open_broker: Inside, authority: Authority
) -> None:
    sock = connect(port_of(open_broker), authority.client_context())
    sock.sendall(HEADER)
    assert sock.recv(1) == b"\x01"
    (ours,) = [each for each in open_broker.inner.connections if each.ends.tls]
    with socket.socket(fileno=os.dup(sock.fileno())) as raw:
        raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))

        wait_for(lambda: ours not in open_broker.inner.connections, "it lives on")
    sock.close()
    assert is_let_in(port_of(open_broker), authority.client_context())


def test_a_stop_does_not_wait_for_those_in_their_handshake(
    authority: Authority, server: Identity
) -> None:
    with inside(tls_cert=server.cert, tls_key=server.key) as broker:
        hostile = socket.create_connection((HOST, port_of(broker)), TIMEOUT_S)
        hostile.sendall(HELLO_CUT)
        wait_for(
            lambda: any(len(each.reception) for each in broker.server.listeners), "no handshake"
        )
        broker.broker.stop(timeout_s=TIMEOUT_S)

        with suppress(ConnectionResetError):  # of what it had sent, nobody has read the rest
            assert hostile.recv(1) == b""
        hostile.close()


# --- other programs


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_the_openssl_command_gets_an_answer(open_broker: Inside, authority: Authority) -> None:
    command = [
        "openssl", "s_client", "-connect", f"{HOST}:{port_of(open_broker)}", "-quiet",
        "-servername", "localhost", "-CAfile", str(authority.path), "-verify_return_error",
    ]  # fmt: skip

    done = subprocess.run(
        command, input=b"GET / HTTP/1.1\r\n\r\n", capture_output=True, timeout=60, check=False
    )

    assert done.stdout == HEADER


async def converse(port: int, context: ssl.SSLContext) -> bytes:
    connection = await aio_pika.connect(
        f"amqps://guest:guest@localhost:{port}/", ssl_context=context
    )
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        body = b"x" * 1_000_000
        await channel.default_exchange.publish(aio_pika.Message(body), queue.name)
        message = await queue.get(timeout=TIMEOUT_S)
        await message.ack()
        return message.body


def test_aio_pika_publishes_and_consumes(open_broker: Inside, authority: Authority) -> None:
    body = asyncio.run(converse(port_of(open_broker), authority.client_context()))

    assert body == b"x" * 1_000_000


# --- reload


def certificate_at(port: int, context: ssl.SSLContext) -> bytes | None:
    with connect(port, context) as sock:
        return sock.getpeercert(binary_form=True)


def test_a_reload_gives_new_connections_the_new_certificate(
    authority: Authority, server: Identity, broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    cert, key, port = tmp_path / "cert.pem", tmp_path / "key.pem", free_port()
    context = authority.client_context()

    def install(identity: Identity) -> bytes:
        shutil.copy(identity.cert, cert)
        shutil.copy(identity.key, key)
        return ssl.PEM_cert_to_DER_cert(identity.cert.read_text())

    first = install(server)
    broker = broker_factory(["--cert", str(cert), "--key", str(key), "--amqps-port", str(port)])
    assert certificate_at(port, context) == first
    with channel_on(port, context) as channel:
        second = install(authority.issue("second", ("localhost",)))
        os.kill(broker.pid, signal.SIGHUP)
        wait_for(lambda: certificate_at(port, context) == second, "no new certificate")

        cert.write_text("broken")
        os.kill(broker.pid, signal.SIGHUP)
        wait_for(lambda: "Configuration not reloaded: 'tls_cert'" in broker.log_text(), "no word")
        assert certificate_at(port, context) == second
        channel.queue_declare("still-there", exclusive=True)


def test_a_broken_certificate_stops_the_start(
    broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    (tmp_path / "bad.pem").write_text("broken")
    broker = broker_factory(["--cert", str(tmp_path / "bad.pem")], start=False)

    with pytest.raises(Exception, match="exit code 1"):
        broker.start()

    assert "'tls_cert' in [main]" in broker.log_text()


def test_turning_tls_on_needs_a_restart_and_off_leaves_it_on(
    server: Identity, broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    ini = tmp_path / "lavinmq.ini"
    ini.write_text("[main]\n")
    broker = broker_factory(["--config", str(ini), "--amqps-port", str(free_port())])
    assert not has_loaded_tls(broker)

    ini.write_text(f"[main]\ntls_cert={server.cert}\ntls_key={server.key}\n")
    os.kill(broker.pid, signal.SIGHUP)

    wait_for(lambda: "turning TLS on or off" in broker.log_text(), "no warning")
