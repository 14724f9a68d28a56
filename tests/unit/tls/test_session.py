"""TLS of a link by OpenSSL: what a peer may send behind its handshake, and what it cannot do."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from lavinmq.config.values import defaults
from lavinmq.listeners.certificate import distinguished_name, subject_alternative_name
from lavinmq.listeners.secure import SecureSocket, secured
from lavinmq.listeners.tls import Contexts
from tests.support import tls_peer
from tests.support.certificates import Authority, Identity
from tests.support.core import Bench, publish
from tests.support.tls_peer import Peer

MAX_STRAY = 32
pytestmark = pytest.mark.skipif(tls_peer.library() is None, reason="needs OpenSSL's library")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Identity:
    return authority.issue("server", ("localhost",))


def contexts_of(server: Identity, authority: Authority | None = None) -> Contexts:
    config = defaults()
    config.tls_cert, config.tls_key = str(server.cert), str(server.key)
    if authority is not None:
        config.tls_verify_peer, config.tls_ca_cert = True, str(authority.path)
    contexts = Contexts(config)
    contexts.load()
    return contexts


def server_end(contexts: Contexts, sock: socket.socket) -> SecureSocket:
    made = secured(contexts.choose("amqp", None), sock)
    assert isinstance(made, SecureSocket)
    return made


class TlsBench(Bench):
    """A bench whose client speaks TLS."""

    def __init__(self, directory: Path, contexts: Contexts, newest: int = 0) -> None:
        super().__init__(directory)
        self.secure = server_end(contexts, self._server)
        self._server = self.secure
        self.peer = Peer(self.client, newest)
        is_over = False
        while not is_over:
            is_over = self.peer.shake_hands()
            with suppress(ssl.SSLWantReadError):
                self.secure.do_handshake()
        self.link.use_tls(self.secure.session)
        self.link.start(0)

    def close(self) -> None:
        self.link.close()
        self.peer.close()
        super().close()

    def turns(self, most: int = 100) -> None:
        """Let the link read what there is."""
        for _ in range(most):
            self.link.on_readable()
            self.run()

    @property
    def losses(self) -> list[str]:
        return [event[1] for event in self.session.events if event[0] == "on_lost"]


@pytest.fixture
def bench(tmp_path: Path, server: Identity) -> Iterator[TlsBench]:
    with closing(TlsBench(tmp_path / "bench", contexts_of(server))) as made:
        yield made


@pytest.fixture
def old_bench(tmp_path: Path, server: Identity) -> Iterator[TlsBench]:
    """One whose client knows TLS 1.2 only."""
    with closing(TlsBench(tmp_path / "bench", contexts_of(server), tls_peer.TLS_1_2)) as made:
        yield made


# --- what comes


@pytest.mark.parametrize("size", [1, 7, 16384])
def test_a_message_comes_whole_whatever_the_records(bench: TlsBench, size: int) -> None:
    queue = bench.queue("q")
    data = publish(b"q", b"x" * 3000)
    for at in range(0, len(data), size):
        assert bench.peer.write(data[at : at + size]) > 0
        bench.link.on_readable()
    bench.turns(10)

    assert queue.ready == 1


def test_records_of_one_byte_come_in_portions(bench: TlsBench) -> None:
    """One read takes what is there, but not for as long as the peer likes."""
    queue = bench.queue("q", segment_size=1 << 20)
    data = publish(b"q", b"x" * 5000) * 2
    assert sum(bench.peer.write(data[at : at + 1]) for at in range(len(data))) == len(data)

    bench.turns(50)

    assert queue.ready == 2
    assert not bench.losses


def test_new_keys_with_data_in_between_are_taken(bench: TlsBench) -> None:
    queue = bench.queue("q", segment_size=1 << 20)
    for _ in range(3 * MAX_STRAY):
        bench.peer.change_key()
        assert bench.peer.write(publish(b"q", b"x")) > 0
        bench.turns(2)

    assert queue.ready == 3 * MAX_STRAY
    assert not bench.losses


def test_a_flood_of_new_keys_ends_the_link(bench: TlsBench) -> None:
    for _ in range(2 * MAX_STRAY):
        bench.peer.change_key()

    bench.turns(5)

    assert bench.losses[0] == "TLS: TOO_MANY_RECORDS_WITHOUT_DATA"


def test_another_handshake_is_refused(old_bench: TlsBench) -> None:
    queue = old_bench.queue("q")
    old_bench.peer.renegotiate()
    old_bench.turns(5)

    assert old_bench.peer.read() == b""
    assert not old_bench.peer.shake_hands()  # it was told so, and OpenSSL's clients end then
    assert not old_bench.losses
    assert queue.ready == 0


def test_a_record_that_is_cut_off_is_no_data(bench: TlsBench) -> None:
    bench.client.send(b"\x17\x03\x03\x00\x40" + b"x" * 20)
    bench.turns(2)
    assert not bench.losses
    bench.client.shutdown(socket.SHUT_WR)

    bench.turns(2)

    assert bench.losses[0] == ""
    assert bench.link.received_bytes == 0


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x17\x03\x03\x00\x20" + bytes(32), "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"),
        (b"GET / HTTP/1.1\r\n\r\n", "WRONG_VERSION_NUMBER"),
        (b"\x17\x03\x03\xff\xff" + bytes(64), "PACKET_LENGTH_TOO_LONG"),
    ],
    ids=["sealed wrongly", "plain", "giant"],
)
def test_what_is_no_record_ends_the_link_with_its_reason(
    bench: TlsBench, data: bytes, reason: str
) -> None:
    bench.client.send(data)

    bench.turns(2)

    assert bench.losses[0] == f"TLS: {reason}"


def test_data_before_the_noise_is_taken(bench: TlsBench) -> None:
    queue = bench.queue("q")
    assert bench.peer.write(publish(b"q", b"x")) > 0
    bench.client.send(b"\x17\x03\x03\x00\x20" + bytes(32))

    bench.turns(2)

    assert queue.ready == 1
    assert bench.losses[0] == "TLS: DECRYPTION_FAILED_OR_BAD_RECORD_MAC"


def test_what_came_with_the_handshake_needs_no_event(tmp_path: Path, server: Identity) -> None:
    with closing(TlsBench(tmp_path / "bench", contexts_of(server), tls_peer.TLS_1_2)) as bench:
        queue = bench.queue("q", segment_size=1 << 22)
        body = b"x" * 16000
        assert sum(bench.peer.write(publish(b"q", body)) > 0 for _ in range(40)) == 40
        bench.link.on_readable()  # as much as one turn takes
        bench.run()  # the rest by itself, as far as it was taken from the kernel
        bench.turns(10)

        assert queue.ready == 40


# --- what goes


def test_a_slow_reader_gets_everything(bench: TlsBench) -> None:
    bench.narrow()
    data = b"".join(b"%07d" % number for number in range(300_000))
    bench.link.write(data)
    bench.run()
    assert bench.link.unsent_bytes > 0

    got = b""
    while bench.link.unsent_bytes:
        got += bench.peer.read()
        bench.link.on_writable()
        bench.run()
    while more := bench.peer.read():
        got += more

    assert got == data


def test_nothing_is_sent_twice_to_who_stops_reading_in_a_record(bench: TlsBench) -> None:
    bench.narrow()
    bench.link.write(b"a" * 100_000)
    bench.run()
    bench.link.write(b"b" * 100_000)
    got = b""
    while bench.link.unsent_bytes:
        got += bench.peer.read(1)
        got += bench.peer.read(10_000)
        bench.link.on_writable()
        bench.run()
    while more := bench.peer.read():
        got += more

    assert got == b"a" * 100_000 + b"b" * 100_000


def test_the_end_is_said(bench: TlsBench) -> None:
    bench.link.write(b"last")
    bench.link.flush()
    bench.link.cut()
    bench.secure.say_goodbye()

    assert bench.peer.read() == b"last"
    assert bench.peer.read() == b""


def test_a_peer_that_has_gone_is_noticed_when_writing(bench: TlsBench) -> None:
    bench.client.close()
    bench.link.write(b"x" * 100_000)
    bench.run()
    bench.turns(1)

    assert bench.losses[0] == "TLS: Broken pipe"


# --- handshakes


def finished(contexts: Contexts, client: ssl.SSLContext, session: ssl.SSLSession | None = None):  # type: ignore[no-untyped-def]
    """Both ends behind a handshake, the client's with a ticket."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    far = client.wrap_socket(
        theirs, server_hostname="localhost", do_handshake_on_connect=False, session=session
    )
    near = server_end(contexts, ours)
    for _ in range(5):
        for end in (far, near):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    with suppress(ssl.SSLWantReadError):
        far.read(1)
    return near, far


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_who_comes_back_with_a_ticket_is_who_they_were(
    authority: Authority, server: Identity, newest: ssl.TLSVersion
) -> None:
    contexts = contexts_of(server, authority)
    client = authority.client_context(authority.issue("carol"))
    client.maximum_version = newest
    first, their_first = finished(contexts, client)

    again, their_again = finished(contexts, client, their_first.session)

    assert (first.session.is_resumed, again.session.is_resumed) == (False, True)
    assert distinguished_name(again.getpeercert()) == r"CN=carol,O=Acme\, Inc."
    assert again.getpeercert() == first.getpeercert()
    for each in (first, again, their_first, their_again):
        each.close()


def test_a_ticket_is_good_for_the_terms_it_was_given_under(
    authority: Authority, server: Identity
) -> None:
    """After a reload, and for a host with terms of its own, the certificate is asked for again."""
    contexts = contexts_of(server, authority)
    client = authority.client_context(authority.issue("carol"))
    first, theirs = finished(contexts, client)
    contexts.load()

    again, their_again = finished(contexts, client, theirs.session)

    assert not again.session.is_resumed
    for each in (first, theirs, again, their_again):
        each.close()


def test_a_reload_leaves_handshakes_that_have_begun(authority: Authority, server: Identity) -> None:
    contexts = contexts_of(server)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    far = authority.client_context().wrap_socket(
        theirs, server_hostname="localhost", do_handshake_on_connect=False
    )
    near = server_end(contexts, ours)
    with suppress(ssl.SSLWantReadError):
        far.do_handshake()
    contexts.load()

    with suppress(ssl.SSLWantReadError):
        near.do_handshake()
    far.do_handshake()
    near.do_handshake()

    assert near.version() == "TLSv1.3"
    far.close()
    near.close()


def test_a_protocol_that_is_offered_is_ignored(authority: Authority, server: Identity) -> None:
    client = authority.client_context()
    client.set_alpn_protocols(["h2", "amqp"])

    near, far = finished(contexts_of(server), client)

    assert far.selected_alpn_protocol() is None
    near.close()
    far.close()


def test_names_of_a_client_are_those_that_ssl_would_tell(
    authority: Authority, server: Identity
) -> None:
    carol = authority.issue("carol", ("a.example", "b.example", "10.0.0.1"))
    near, far = finished(contexts_of(server, authority), authority.client_context(carol))
    decoded = ssl._ssl._test_decode_cert(str(carol.cert))  # type: ignore[attr-defined]

    assert near.getpeercert()["subject"] == decoded["subject"]
    assert near.getpeercert()["subjectAltName"] == decoded["subjectAltName"][:2]
    near.close()
    far.close()


def test_a_name_that_is_no_text_names_nobody(authority: Authority, server: Identity) -> None:
    """Neither does the one behind it."""
    raw = b"\x82\x02\xc3\x28" + b"\x82\x05admin"
    carol = authority.issue("carol", raw_alternatives=b"\x30" + bytes([len(raw)]) + raw)

    near, far = finished(contexts_of(server, authority), authority.client_context(carol))

    assert subject_alternative_name(near.getpeercert()) is None
    assert distinguished_name(near.getpeercert()) == r"CN=carol,O=Acme\, Inc."
    near.close()
    far.close()


def test_a_session_that_is_closed_says_so(server: Identity) -> None:
    ours, theirs = socket.socketpair()
    made = server_end(contexts_of(server), ours)
    made.close()
    made.close()
    theirs.close()

    with pytest.raises(ValueError, match="closed"):
        made.do_handshake()
