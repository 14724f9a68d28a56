"""TLS between nodes: who gets in, and what both are told when not."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lavinmq._cluster import Channel
from lavinmq.cluster import certificates, frames
from lavinmq.cluster.certificates import Certificates, HandshakeError, NoTlsError
from lavinmq.cluster.frames import PeerError
from lavinmq.config.values import defaults
from lavinmq.listeners.tls import TlsError
from tests.support.certificates import Authority, Identity
from tests.support.secure_nodes import HOST, Nodes, Pair, at_once, linked, of

SECRET = b"s" * 32
WAIT_S = 20.0


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "other", "another authority")


# ---- who gets in


def test_two_nodes_of_one_authority_speak_tls_1_3(ends: list[Channel]) -> None:
    leader, follower = ends
    assert at_once(
        lambda: frames.greet_follower(leader, SECRET), lambda: frames.greet_leader(follower, SECRET)
    ) == [None, None]
    frames.send(leader, {"a": 1})

    assert frames.receive(follower) == {"a": 1}
    assert {each.session.version() for each in ends} == {"TLSv1.3"}


def greeted(ours: socket.socket, leader: Certificates, theirs: socket.socket,
            follower: Certificates, host: str = HOST) -> tuple[str, str]:  # fmt: skip
    """Why a leader and a follower do not come together, as both tell it."""

    def lead() -> None:
        try:
            frames.greet_follower(leader.accept(ours), SECRET)
        finally:
            frames.part(ours)
            ours.close()

    def follow() -> None:
        try:
            frames.greet_leader(follower.connect(theirs, host), SECRET)
        finally:
            theirs.close()

    found = at_once(lead, follow)
    assert all(found), found
    return frames.words(found[0]), frames.words(found[1])


def test_a_node_of_another_authority_is_refused(pair: Pair, nodes: Nodes, other: Authority) -> None:
    ours, theirs = pair
    stranger = of(nodes.authority, other.issue("stranger", (HOST,)))
    said = greeted(ours, of(nodes.authority, nodes.good), theirs, stranger)

    assert said[0].startswith("TLS: its certificate is not accepted: ")
    assert said[1] == "TLS: it says: unknown ca"


def test_a_leader_of_another_authority_is_not_followed(
    pair: Pair, nodes: Nodes, other: Authority
) -> None:
    ours, theirs = pair
    liar = of(nodes.authority, other.issue("liar", (HOST,)))
    said = greeted(ours, liar, theirs, of(nodes.authority, nodes.good))

    assert said[0] == "TLS: it says: unknown ca"
    assert said[1].startswith("TLS: its certificate is not accepted: ")


def test_a_certificate_that_has_expired_is_refused_by_either(pair: Pair, nodes: Nodes) -> None:
    ours, theirs = pair
    good = of(nodes.authority, nodes.good)
    old = of(nodes.authority, nodes.authority.issue("old", (HOST,), expires=timedelta(seconds=-9)))
    why = "TLS: its certificate is not accepted: certificate has expired"
    assert greeted(ours, good, theirs, old) == (why, "TLS: it says: certificate expired")
    ours, theirs = socket.socketpair()
    assert greeted(ours, old, theirs, good) == ("TLS: it says: certificate expired", why)


def test_a_certificate_that_is_revoked_is_refused_by_either(pair: Pair, nodes: Nodes) -> None:
    """From the next connection on after the list has changed, and others get in."""
    ours, theirs = pair
    stolen = nodes.authority.issue("stolen", (HOST,))
    crl = nodes.authority.revoke(name="nodes")
    careful = of(nodes.authority, nodes.good, tls_crl=str(crl))
    for each in linked(pair, careful, of(nodes.authority, stolen)):
        each.close()
    nodes.authority.revoke(stolen, name="nodes")
    why = "TLS: its certificate is not accepted: certificate revoked"
    ours, theirs = socket.socketpair()
    said = greeted(ours, careful, theirs, of(nodes.authority, stolen))
    assert said == (why, "TLS: it says: certificate revoked")
    ours, theirs = socket.socketpair()
    said = greeted(ours, of(nodes.authority, stolen), theirs, careful)
    assert said == ("TLS: it says: certificate revoked", why)
    for each in linked(socket.socketpair(), careful, of(nodes.authority, nodes.good)):
        each.close()


def test_a_list_of_revoked_certificates_that_is_damaged_leaves_the_one_before(
    nodes: Nodes, tmp_path: Path
) -> None:
    stolen = nodes.authority.issue("stolen", (HOST,))
    crl = nodes.authority.revoke(stolen, name="damaged")
    careful = of(nodes.authority, nodes.good, tls_crl=str(crl))
    crl.write_text("nonsense")
    ours, theirs = socket.socketpair()
    said = greeted(ours, careful, theirs, of(nodes.authority, stolen))
    assert said[0] == "TLS: its certificate is not accepted: certificate revoked"


def test_while_tls_is_optional_nodes_without_get_in(pair: Pair, nodes: Nodes) -> None:
    """And those with TLS by TLS: what they show is looked at as ever."""
    ours, theirs = pair
    mild = of(nodes.authority, nodes.good, tls_optional=True)

    def lead() -> bool:
        sock = mild.accept(ours)
        frames.greet_follower(sock, SECRET)
        return sock is ours

    assert at_once(lead, lambda: frames.greet_leader(theirs, SECRET)) == [True, None]
    for each in linked(socket.socketpair(), mild):
        each.close()


def test_a_leader_that_speaks_no_tls_is_told_from_one_that_is_not_trusted(
    pair: Pair, nodes: Nodes, other: Authority
) -> None:
    """Only with the former a node may go on in clear."""
    ours, theirs = pair
    mild = of(nodes.authority, nodes.good, tls_optional=True)

    def clear() -> None:
        try:
            frames.greet_follower(ours, SECRET)
        except PeerError as error:
            frames.send(ours, {"refused": str(error)})
            raise

    assert isinstance(at_once(clear, lambda: mild.connect(theirs, HOST))[1], NoTlsError)
    liar = of(nodes.authority, other.issue("liar", (HOST,)))
    one, another = socket.socketpair()
    with one, another:
        found = at_once(lambda: liar.accept(one), lambda: mild.connect(another, HOST))[1]
    assert isinstance(found, HandshakeError)
    assert not isinstance(found, NoTlsError)


@pytest.mark.parametrize(
    ("names", "host", "fits"),
    [((HOST,), HOST, True), ((HOST,), "node2.example.com", False), (("127.0.0.1",), HOST, False),
     ((HOST,), "127.0.0.1", False), (("127.0.0.1",), "127.0.0.1", True), (("::1",), "::1", True),
     (("127.0.0.1",), "127.0.0.2", False), (("*.example.com",), HOST, True),
     (("node*.example.com",), HOST, False), (("*.com",), HOST, False), ((), HOST, False)],
)  # fmt: skip
def test_a_leader_has_to_be_the_host_that_was_looked_for(
    pair: Pair, nodes: Nodes, names: tuple[str, ...], host: str, fits: bool
) -> None:
    """Its subject, which is the host's name here, does not count."""
    ours, theirs = pair
    named = nodes.authority.issue("named", names, common_names=(host,))
    leader, follower = of(nodes.authority, named), of(nodes.authority, nodes.good)
    found = at_once(lambda: leader.accept(ours), lambda: follower.connect(theirs, host))

    if fits:
        assert all(isinstance(each, Channel) for each in found), found
    else:
        assert "mismatch" in str(found[1])
        assert isinstance(found[0], HandshakeError)
    for each in found:
        if isinstance(each, Channel):
            each.close()


@pytest.mark.parametrize("host", ["", "a\0b"])
def test_no_host_at_all_is_not_taken_for_any(pair: Pair, nodes: Nodes, host: str) -> None:
    with pytest.raises(ValueError, match="no host"):
        of(nodes.authority, nodes.good).connect(pair[1], host)


def test_a_node_without_a_certificate_is_refused(pair: Pair, nodes: Nodes) -> None:
    ours, theirs = pair
    context = nodes.authority.client_context()

    def come() -> bytes:
        with context.wrap_socket(theirs, server_hostname=HOST) as sock:
            return sock.recv(1)

    leader = of(nodes.authority, nodes.good)
    found = at_once(lambda: leader.accept(ours), come)

    assert str(found[0]) == "TLS: peer did not return a certificate"
    assert "CERTIFICATE_REQUIRED" in str(found[1])


def test_a_node_of_tls_1_2_is_refused(pair: Pair, nodes: Nodes) -> None:
    ours, theirs = pair
    context = nodes.authority.client_context(nodes.good)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    leader = of(nodes.authority, nodes.good)
    found = at_once(
        lambda: leader.accept(ours), lambda: context.wrap_socket(theirs, server_hostname=HOST)
    )

    assert str(found[0]) == "TLS: unsupported protocol"
    assert isinstance(found[1], ssl.SSLError)


# ---- one with, the other without


def test_a_follower_without_tls_is_told_so(pair: Pair, nodes: Nodes) -> None:
    ours, theirs = pair

    def lead() -> None:
        try:
            of(nodes.authority, nodes.good).accept(ours)
        except PeerError as error:
            frames.send(ours, {"refused": str(error)})
            raise

    found = at_once(lead, lambda: frames.greet_leader(theirs, SECRET))
    assert str(found[0]) == "a follower has to speak TLS here: see 'tls_cert' in [clustering]"
    assert str(found[1]) == f"refused: {found[0]}"


def test_a_leader_without_tls_tells_so(pair: Pair, nodes: Nodes) -> None:
    ours, theirs = pair

    def lead() -> None:
        try:
            frames.greet_follower(ours, SECRET)
        except PeerError as error:
            frames.send(ours, {"refused": str(error)})
            raise

    follower = of(nodes.authority, nodes.good)
    found = at_once(lead, lambda: follower.connect(theirs, HOST))
    assert str(found[0]) == "it speaks TLS, for which 'tls_cert' in [clustering] is missing here"
    assert str(found[1]) == "TLS: it speaks without, or is no node at all"


def test_a_leader_that_says_nothing_is_left_after_a_while(
    pair: Pair, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "GREETING_S", 0.1)
    with pytest.raises(HandshakeError, match="no handshake within"):
        of(nodes.authority, nodes.good).connect(pair[1], HOST)


@pytest.mark.parametrize("data", [b"\x16", b"\x16\x03\x01\x00", b"\x16\x03\x01\x02\x00\x01"])
def test_who_begins_and_stops_is_left_after_a_while(
    pair: Pair, nodes: Nodes, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "GREETING_S", 0.1)
    pair[1].sendall(data)
    with pytest.raises(HandshakeError, match="no handshake within"):
        of(nodes.authority, nodes.good).accept(pair[0])


@pytest.mark.parametrize(
    "data", [b"\x16" * 100, b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x01\xff\xff" + b"x" * 70000],
    ids=range(3),
)  # fmt: skip
def test_garbage_is_refused(pair: Pair, nodes: Nodes, data: bytes) -> None:
    ours, theirs = pair
    with ExitStack() as stack:
        stack.callback(ours.close)

        def send() -> None:
            with suppress(OSError):
                theirs.sendall(data)

        thread = threading.Thread(target=send)
        thread.start()
        with pytest.raises(HandshakeError, match="TLS: "):
            of(nodes.authority, nodes.good).accept(ours)
    thread.join()


def test_who_goes_before_the_handshake_is_no_mistake(pair: Pair, nodes: Nodes) -> None:
    pair[1].close()
    with pytest.raises(ConnectionResetError, match="has closed the connection"):
        of(nodes.authority, nodes.good).accept(pair[0])


# ---- files


def test_a_node_without_certificates_loads_no_tls() -> None:
    code = "import lavinmq.cluster.node, sys; sys.exit('lavinmq._tls' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("key", ["cert", "key", "ca_cert", "crl"])
@pytest.mark.parametrize("content", [None, b"nonsense"])
def test_a_file_that_is_none_is_named(
    nodes: Nodes, tmp_path: Path, key: str, content: bytes | None
) -> None:
    config = defaults()
    config.clustering_tls_cert, config.clustering_tls_key = map(str, nodes.good[:2])
    config.clustering_tls_ca_cert = str(nodes.authority.path)
    wrong = tmp_path / "wrong"
    if content is not None:
        wrong.write_bytes(content)
    setattr(config, f"clustering_tls_{key}", str(wrong))

    with pytest.raises(TlsError, match=r"'tls_\w+' in \[clustering\]") as error:
        Certificates(config)
    assert str(wrong) in str(error.value)


def test_a_key_of_another_certificate_is_refused(nodes: Nodes) -> None:
    another = nodes.authority.issue("another", (HOST,))
    with pytest.raises(TlsError, match=r"'tls_cert' in \[clustering\].*key values mismatch"):
        of(nodes.authority, Identity(nodes.good.cert, another.key, 0))


def serial_of(channel: Channel) -> Any:
    return channel.session.peer_names()["subject"][-1][0][1]


def test_files_that_have_changed_count_for_the_next_connection(
    nodes: Nodes, tmp_path: Path
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    held = of(nodes.authority, nodes.good)

    def put(identity: Identity) -> None:
        for source, target in ((identity.cert, cert), (identity.key, key)):
            shutil.copy(source, tmp_path / "new")
            os.replace(tmp_path / "new", target)

    def shown() -> Any:
        ours, theirs = socket.socketpair()
        ends = linked((ours, theirs), changing, held)
        try:
            return serial_of(ends[1])
        finally:
            for each in ends:
                each.close()

    put(nodes.good)
    changing = of(nodes.authority, Identity(cert, key, 0))
    assert shown() == "good"
    put(nodes.authority.issue("newer", (HOST,)))
    assert shown() == "newer"
    key.write_text("nonsense")
    assert shown() == "newer"
    cert.unlink()
    assert shown() == "newer"
    put(nodes.authority.issue("newest", (HOST,)))
    assert shown() == "newest"
