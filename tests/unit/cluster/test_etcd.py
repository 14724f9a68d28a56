"""The client of etcd against one that lies, is silent, breaks off, or is not there."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from lavinmq.cluster import etcd_wire
from lavinmq.cluster.etcd import (
    Compare,
    Delete,
    Entry,
    Etcd,
    EtcdError,
    Event,
    NoLease,
    Put,
    Unreachable,
    prefix_end,
)
from tests.support.certificates import Authority
from tests.support.lying_etcd import (
    CREATED,
    END,
    HEADER,
    STREAM,
    Answer,
    LyingEtcd,
    chunk,
    coded,
    http,
    refusal,
    reset,
    result,
    says,
    sends,
    silence,
    truth,
)
from tests.support.ports import free_port

ROW = {"key": coded("a"), "value": coded("x"), "create_revision": "3", "mod_revision": "4",
       "version": "2", "lease": "5"}  # fmt: skip
ENTRY = Entry("a", b"x", 3, 4, 5)
LONGEST_S = 15.0
HUGE = (1 << 20) + 1
Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test on a loop, and sees that it leaves nothing behind."""

    def go(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        gc.freeze()  # what is there already costs the collector nothing below
        complaints: list[dict[str, Any]] = []
        free_port()  # has a socket of its own from the first time on

        async def watched() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, complaint: complaints.append(complaint))
            before = n_sockets()
            async with asyncio.timeout(LONGEST_S):
                await main()
            async with asyncio.timeout(1):
                while len(asyncio.all_tasks()) > 1 or n_sockets() > before:
                    await asyncio.sleep(0.01)
            gc.collect()

        make = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop
        with asyncio.Runner(loop_factory=make) as runner:
            runner.run(watched())
        gc.collect()
        assert complaints == []

    return go


def n_sockets() -> int:
    """Sockets of this process that are open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


def client(*servers: LyingEtcd, **options: Any) -> Etcd:
    options = {"timeout_s": 5.0} | options
    return Etcd([f"127.0.0.1:{each.port}" for each in servers], **options)


async def failure(call: Awaitable[object]) -> EtcdError:
    """What a call fails with."""
    with pytest.raises(EtcdError) as caught:
        await call
    return caught.value


async def first(watch: AsyncGenerator[Any, None]) -> Any:
    """The first batch of a watch, which ends with it."""
    try:
        return await anext(watch)
    finally:
        await watch.aclose()


# ---- places


@pytest.mark.parametrize(
    ("text", "host", "port", "is_tls", "shown"),
    [
        ("etcd1", "etcd1", 2379, False, "etcd1:2379"),
        ("etcd-1.example:4", "etcd-1.example", 4, False, "etcd-1.example:4"),
        ("http://10.0.0.1", "10.0.0.1", 2379, False, "10.0.0.1:2379"),
        ("https://a:1/", "a", 1, True, "a:1"),
        ("[::1]", "::1", 2379, False, "[::1]:2379"),
        ("https://[fe80::1%eth0]:99", "fe80::1%eth0", 99, True, "[fe80::1%eth0]:99"),
    ],
)
def test_an_endpoint_is_read(text: str, host: str, port: int, is_tls: bool, shown: str) -> None:
    found = etcd_wire.Endpoint(text)

    assert (found.host, found.port, found.is_tls, str(found)) == (host, port, is_tls, shown)


def test_who_and_password_of_an_endpoint_may_be_any_text() -> None:
    found = etcd_wire.Endpoint("https://an%40na:p://:@%25x@host")

    assert (found.user, found.password, found.host) == ("an@na", "p://:@%x", "host")


@pytest.mark.parametrize(
    "text",
    [
        "", "a b", "host:", "host:0", "host:65536", "host:x", "ftp://host", "http://", "::1",
        "[::1", "host/path", "http://host?x", "a,b", "http://@host", "http://anna:secret@",
        "http://anna:secret@host:port", "anna:secret@host", "http://anna:secret",
        "ftp://anna:secret@host", "http://anna:secret@ho st", "anna:secret@x://host",
        "http://anna:secret/", "a\nb", "hôst",
    ],
)  # fmt: skip
def test_what_is_no_endpoint_is_named_without_its_password(text: str) -> None:
    with pytest.raises(ValueError, match="is no etcd endpoint") as caught:
        Etcd(["good", text])

    assert "secret" not in str(caught.value)
    assert ":" in text or "@" in text or repr(text) in str(caught.value)


def test_there_has_to_be_an_endpoint() -> None:
    with pytest.raises(ValueError, match="no etcd endpoint"):
        Etcd([])


def test_files_of_tls_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("bad")

    with pytest.raises(ValueError, match="missing"):
        Etcd(["https://a"], ca=str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="bad"):
        Etcd(["https://a"], ca=str(tmp_path / "bad"))
    with pytest.raises(ValueError, match="bad"):
        Etcd(["https://a"], cert=str(tmp_path / "bad"))


@pytest.mark.parametrize(
    ("prefix", "end"), [("a", "b"), ("a/", "a0"), ("é", "ê"), ("", "\0"), ("~\x7f", "~\udc80")]
)
def test_a_prefix_has_an_end(prefix: str, end: str) -> None:
    assert prefix_end(prefix) == end


# ---- the truth


def test_entries_are_read(run: Run) -> None:
    async def main() -> None:
        other = {"key": coded(b"\xff"), "create_revision": 1, "mod_revision": 1}
        answers: list[Answer] = [truth(), truth(kvs=[ROW], count="1"), truth(kvs=[other, ROW])]
        async with LyingEtcd({"kv/range": list(answers)}) as server:
            etcd = client(server)

            assert await etcd.get("a") is None
            assert await etcd.get("a") == ENTRY
            assert await etcd.get_prefix("a") == ([ENTRY, Entry("\udcff", b"", 1, 1, 0)], 9)

        assert server.asked[0].fields == {"key": coded("a")}
        assert server.asked[2].fields == {"key": coded("a"), "range_end": coded("b")}

    run(main)


def test_a_transaction_is_sent(run: Run) -> None:
    async def main() -> None:
        async with LyingEtcd({"kv/txn": [truth(succeeded=True), truth()]}) as server:
            etcd = client(server)
            compares = [
                Compare("a", "CREATE", 0, "b"), Compare("a", "MOD", 7),
                Compare("a", "VALUE", b"x"), Compare("a", "LEASE", 5),
            ]  # fmt: skip

            done = await etcd.transact(compares, [Put("a", b"x", 5), Delete("a"), Delete("a", "b")])

            assert done == (True, 9)
            assert await etcd.transact([], []) == (False, 9)
        common = {"key": coded("a"), "result": "EQUAL"}
        assert server.asked[0].fields == {
            "compare": [
                common | {"target": "CREATE", "create_revision": "0", "range_end": coded("b")},
                common | {"target": "MOD", "mod_revision": "7"},
                common | {"target": "VALUE", "value": coded("x")},
                common | {"target": "LEASE", "lease": "5"},
            ],
            "success": [
                {"request_put": {"key": coded("a"), "value": coded("x"), "lease": "5"}},
                {"request_delete_range": {"key": coded("a")}},
                {"request_delete_range": {"key": coded("a"), "range_end": coded("b")}},
            ],
        }

    run(main)


def test_a_value_is_compared_with_bytes_only(run: Run) -> None:
    async def main() -> None:
        for compare in (Compare("a", "VALUE", 3), Compare("a", "MOD", b"3")):
            with pytest.raises(ValueError, match="is not compared"):
                await Etcd(["a"]).transact([compare], [])

    run(main)


def test_leases_live_and_end(run: Run) -> None:
    async def main() -> None:
        gone = refusal("etcdserver: requested lease not found", 5, 404)
        kept: list[Answer] = [
            says({"result": {"header": HEADER, "ID": "77", "TTL": "8"}}),
            says({"result": {"header": HEADER, "ID": "77"}}),
            gone,
        ]
        answers: dict[str, Any] = {
            "lease/grant": truth(ID="77", TTL="10"), "lease/keepalive": kept,
            "lease/revoke": [truth(), gone], "kv/txn": gone,
        }  # fmt: skip
        async with LyingEtcd(answers) as server:
            etcd = client(server)

            assert await etcd.grant(5) == (77, 10)
            assert await etcd.keep_alive(77) == 8
            for _ in range(2):
                with pytest.raises(NoLease):
                    await etcd.keep_alive(77)
            with pytest.raises(NoLease) as caught:
                await etcd.transact([], [Put("a", b"", 77)])
            assert not caught.value.maybe_done
            await etcd.revoke(77)
            await etcd.revoke(77)

    run(main)


# ---- nonsense

NONSENSE: list[tuple[bytes, str]] = [
    (http(b""), "no JSON"),
    (http(b"{"), "no JSON"),
    (http(b"[" * 100_000), "no JSON"),
    (http(b'{"header": "\xff"}'), "no JSON"),
    (http(b"[]"), "no object"),
    (http(b"{}"), "'header' is missing"),
    (says({"header": 3}), "'header' is missing"),
    (says({"result": 3}), "'result' is no object"),
    (says({"header": {"revision": "9"}}), "'cluster_id' is missing"),
    (says({"header": HEADER | {"cluster_id": str(1 << 64)}}), "'cluster_id' is no such number"),
    (says({"header": HEADER | {"cluster_id": 0}}), "'cluster_id' is no such number"),
    (says({"header": {"cluster_id": "5"}}), "'revision' is missing"),
    (says({"header": HEADER | {"revision": str(1 << 63)}}), "'revision' is no such number"),
    (says({"header": HEADER | {"revision": 10**30}}), "'revision' is no such number"),
    (says({"header": HEADER | {"revision": "9" * 5000}}), "'revision' is no such number"),
    (says({"header": HEADER | {"revision": "-4"}}), "'revision' is no such number"),
    (says({"header": HEADER | {"revision": "٣"}}), "'revision' is no such number"),
    (says({"header": HEADER | {"revision": True}}), "'revision' is no such number"),
    (says({"header": HEADER | {"revision": 1.5}}), "'revision' is no such number"),
    (says({"header": HEADER | {"revision": []}}), "'revision' is no such number"),
    (truth(kvs={}), "'kvs' is no list"),
    (truth(kvs=[3]), "'kvs' is no list"),
    (truth(kvs=[{}]), "'key' is missing"),
    (truth(kvs=[ROW | {"key": 3}]), "'key' is no text"),
    (truth(kvs=[ROW | {"key": "a"}]), "'key' is no base64"),
    (truth(kvs=[ROW | {"value": "YQ=\n="}]), "'value' is no base64"),
    (truth(kvs=[ROW | {"value": "é"}]), "'value' is no base64"),
    (truth(kvs=[ROW | {"create_revision": None}]), "'create_revision' is missing"),
    (truth(kvs=[ROW | {"mod_revision": "x"}]), "'mod_revision' is no such number"),
    (truth(kvs=[ROW | {"lease": {}}]), "'lease' is no such number"),
    (b"nonsense\r\n\r\n", "no HTTP"),
    (b"HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "no HTTP"),
    (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 40_000 + b"\r\n", "the head has more"),
    (b"HTTP/1.1 100 Go\r\n\r\n" * 10_000, "the head has more"),
    (http(b"x" * HUGE), "more than 1048576 bytes"),
    (STREAM + chunk(b"x" * HUGE) + END, "more than 1048576 bytes"),
]


@pytest.mark.parametrize(("answer", "text"), NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_is_an_error_that_names_call_and_endpoint(
    run: Run, answer: bytes, text: str
) -> None:
    async def main() -> None:
        async with LyingEtcd({"kv/range": answer, "kv/txn": answer}) as server:
            etcd = client(server)

            error = await failure(etcd.get_prefix("a"))

            assert text in str(error)
            assert f"kv/range at 127.0.0.1:{server.port}" in str(error)
            assert type(error) is EtcdError
            assert not error.maybe_done
            if "kvs" not in text and "'" not in text:
                assert (await failure(etcd.transact([], []))).maybe_done

    run(main)


@pytest.mark.parametrize(
    "fields",
    [{}, {"ID": "7"}, {"TTL": "7"}, {"ID": "0", "TTL": "7"}, {"ID": "x", "TTL": "7"},
     {"ID": str(1 << 63), "TTL": "7"}, {"ID": "7", "TTL": []}, {"ID": "8", "TTL": "-1"}],
)  # fmt: skip
def test_a_lease_that_is_none_is_an_error(run: Run, fields: dict[str, object]) -> None:
    async def main() -> None:
        answers = {"lease/grant": truth(**fields), "lease/keepalive": truth(**fields)}
        async with LyingEtcd(dict(answers)) as server:
            etcd = client(server)

            assert type(await failure(etcd.grant(5))) is EtcdError
            error = await failure(etcd.keep_alive(8))

        assert type(error) is EtcdError

    run(main)


def test_whether_a_transaction_succeeded_is_true_or_false(run: Run) -> None:
    async def main() -> None:
        async with LyingEtcd({"kv/txn": truth(succeeded="yes")}) as server:
            error = await failure(client(server).transact([], []))

        assert "'succeeded' is neither" in str(error)
        assert error.maybe_done

    run(main)


def test_an_answer_of_another_cluster_is_refused(run: Run) -> None:
    async def main() -> None:
        other = says({"header": HEADER | {"cluster_id": "5"}})
        async with LyingEtcd({"kv/range": [truth(), other, truth()]}) as server:
            etcd = client(server)
            await etcd.get("a")

            error = await failure(etcd.get("a"))

            assert "it is of cluster 5, ours is deadbeefdeadbeef" in str(error)
            assert await etcd.get("a") is None

    run(main)


def test_a_refusal_has_the_reason_that_etcd_gives(run: Run) -> None:
    async def main() -> None:
        refused = refusal("etcdserver: duplicate\nkey" + "x" * 1000, 3, 400)
        async with LyingEtcd({"kv/txn": [refused, http(b"<html>", 302)]}) as server:
            etcd = client(server)

            error = await failure(etcd.transact([], []))

            assert "etcdserver: duplicate keyxx" in str(error)
            assert len(str(error)) < 400
            assert not error.maybe_done
            assert "status 302" in str(await failure(etcd.transact([], [])))

    run(main)


# ---- other endpoints

LOST: dict[str, Answer] = {
    "503": refusal("etcdserver: no leader", 14, 503),
    "500 without JSON": http(b"", 500),
    "408": http(b"", 408),
    "no leader": refusal("etcdserver: no leader", 14, 400),
    "leader changed": refusal("etcdserver: leader changed", 14, 400),
    "closed": b"",
    "reset": reset,
    "closed in the head": b"HTTP/1.1 200 OK\r\n",
    "closed in the body": http(b"x" * 99)[:-1],
    "reset in the body": sends(http(b"x" * 99)[:-1], then=reset),
    "silent": silence,
    "silent in the body": sends(http(b"x" * 99)[:-1]),
}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_a_call_goes_on_to_the_next_endpoint_and_stays_there(run: Run, lost: Answer) -> None:
    async def main() -> None:
        bad, good = LyingEtcd({"kv/range": lost}), LyingEtcd({"kv/range": truth()})
        async with bad, good:
            etcd = client(bad, good, timeout_s=0.2)
            while not bad.asked:
                await etcd.get("a")
                etcd._last = None
            await etcd.get("a")
            bad.asked.clear()
            etcd._last = etcd._endpoints[1]
            for _ in range(8):
                assert await etcd.get("a") is None

        assert bad.asked == []

    run(main)


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_a_transaction_whose_answer_is_lost_is_not_sent_again(run: Run, lost: Answer) -> None:
    async def main() -> None:
        one, two = LyingEtcd({"kv/txn": lost}), LyingEtcd({"kv/txn": lost})
        async with one, two:
            error = await failure(client(one, two, timeout_s=0.2).transact([], [Put("a", b"")]))

        assert isinstance(error, Unreachable)
        assert error.maybe_done
        assert one.paths + two.paths == ["kv/txn"]

    run(main)


def test_a_transaction_that_was_not_sent_goes_to_the_next_endpoint(run: Run) -> None:
    async def main() -> None:
        async with LyingEtcd({"kv/txn": truth(succeeded=True)}) as server:
            for _ in range(5):
                etcd = Etcd([f"127.0.0.1:{free_port()}", f"127.0.0.1:{server.port}"])
                assert await etcd.transact([], []) == (True, 9)
            server.answers["kv/txn"] = silence
            etcd.timeout_s = 0.1
            etcd._last = etcd._endpoints[0]
            error = await failure(etcd.transact([], []))
            assert error.maybe_done
            assert all(str(each) in str(error) for each in etcd._endpoints)

    run(main)


def test_who_is_unreachable_is_named_with_reasons(run: Run) -> None:
    async def main() -> None:
        async with LyingEtcd({"kv/txn": silence, "kv/range": silence}) as server:
            closed = free_port()
            etcd = Etcd([f"127.0.0.1:{closed}", f"localhost:{server.port}", "no.invalid"],
                        timeout_s=0.3)  # fmt: skip
            began = time.monotonic()

            error = await failure(etcd.get("a"))

            assert time.monotonic() - began < 3
            assert isinstance(error, Unreachable)
            assert not error.maybe_done
            assert f"127.0.0.1:{closed}: Connect" in str(error)
            assert f"localhost:{server.port}: no answer within 0.3 s" in str(error)
            assert "no.invalid:2379: " in str(error)
            server.stop()
            error = await failure(etcd.transact([], []))
            assert isinstance(error, Unreachable)
            assert not error.maybe_done

    run(main)


def test_endpoints_are_tried_in_random_order() -> None:
    firsts = {str(Etcd(["a", "b", "c"])._order()[0]) for _ in range(100)}

    assert firsts == {"a:2379", "b:2379", "c:2379"}


# ---- who we are

SECRET = "s3cret-p4ss"


def named(server: LyingEtcd) -> Etcd:
    return Etcd([f"http://anna:{SECRET}@127.0.0.1:{server.port}"], timeout_s=5)


def test_a_token_is_fetched_once_and_sent(run: Run) -> None:
    async def main() -> None:
        answers: dict[str, Any] = {"auth/authenticate": truth(token="t0k"), "kv/range": truth()}
        async with LyingEtcd(answers) as server:
            etcd = named(server)
            await etcd.get("a")
            await etcd.get("a")

        assert server.paths == ["auth/authenticate", "kv/range", "kv/range"]
        assert server.asked[0].fields == {"name": "anna", "password": SECRET}
        assert "authorization" not in server.asked[0].headers
        assert [each.headers["authorization"] for each in server.asked[1:]] == ["t0k", "t0k"]

    run(main)


@pytest.mark.parametrize(
    "text", ["etcdserver: invalid auth token", "etcdserver: revision of auth store is old",
             "etcdserver: user name is empty"],
)  # fmt: skip
def test_a_token_that_is_refused_is_replaced_once(run: Run, text: str) -> None:
    async def main() -> None:
        refused = refusal(text, 16, 401)
        tokens: list[Answer] = [truth(token="t1"), truth(token="t2"), truth(token="t3")]
        answers: dict[str, Any] = {
            "auth/authenticate": tokens,
            "kv/txn": [refused, truth(), refused, refused],
        }
        async with LyingEtcd(answers) as server:
            etcd = named(server)
            assert await etcd.transact([], []) == (False, 9)

            error = await failure(etcd.transact([], []))

        assert text in str(error)
        assert not error.maybe_done
        used = [each.headers["authorization"] for each in server.asked if each.path == "kv/txn"]
        assert used == ["t1", "t2", "t2", "t3"]

    run(main)


def test_no_token_is_sent_where_authentication_is_not_enabled(run: Run) -> None:
    async def main() -> None:
        off = refusal("etcdserver: authentication is not enabled", 9, 412)
        async with LyingEtcd({"auth/authenticate": off, "kv/range": truth()}) as server:
            etcd = named(server)
            await etcd.get("a")
            await etcd.get("a")

        assert server.paths == ["auth/authenticate", "kv/range", "kv/range"]

    run(main)


@pytest.mark.parametrize("token", [None, "", 3, "a b", "a\r\nb", "é", "x" * 9000])
def test_a_token_that_is_none_is_an_error(run: Run, token: object) -> None:
    async def main() -> None:
        async with LyingEtcd({"auth/authenticate": truth(token=token)}) as server:
            error = await failure(named(server).transact([], []))

        assert "login of 'anna': there is no token" in str(error)
        assert not error.maybe_done

    run(main)


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_a_lost_login_is_no_transaction_that_may_be_done(run: Run, lost: Answer) -> None:
    async def main() -> None:
        async with LyingEtcd({"auth/authenticate": lost}) as server:
            etcd = named(server)
            etcd.timeout_s = 0.2
            error = await failure(etcd.transact([], []))

        assert isinstance(error, Unreachable)
        assert not error.maybe_done

    run(main)


def test_secrets_that_etcd_repeats_are_not_told(run: Run) -> None:
    async def main() -> None:
        token = "t0k3n-" * 20
        text = "x" * 190 + f"{SECRET} {token}"
        cancelled = STREAM + result(created=True, canceled=True, cancel_reason=text)
        answers: dict[str, Any] = {
            "auth/authenticate": [refusal("x" * 190 + SECRET, 3, 400), truth(token=token)],
            "kv/range": [refusal(text, 3, 400), refusal(text, 3, 500), truth()],
            "watch": cancelled,
        }
        async with LyingEtcd(answers) as server:
            etcd = named(server)
            errors = [await failure(etcd.get("a")) for _ in range(3)]
            errors.append(await failure(first(etcd.watch("a", 1))))

        for error in errors:
            assert "xxx" in str(error)
            assert SECRET[:3] not in str(error)
            assert token[:3] not in str(error)
        assert SECRET not in repr(etcd) + repr(vars(etcd))

    run(main)


# ---- TLS


def test_tls_asks_for_a_certificate_that_is_trusted(run: Run, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    server_files = authority.issue("etcd", ("127.0.0.1",))
    ours = authority.issue("broker")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.path))
    context.load_cert_chain(server_files.cert, server_files.key)
    context.verify_mode = ssl.CERT_REQUIRED

    async def main() -> None:
        answers: dict[str, Any] = {"kv/range": truth(), "kv/txn": silence}
        async with LyingEtcd(answers, context) as server:
            place = [f"https://127.0.0.1:{server.port}"]
            good: dict[str, Any] = {"cert": str(ours.cert), "key": str(ours.key)}
            etcd = Etcd(place, ca=str(authority.path), **good, timeout_s=0.5)

            assert await etcd.get("a") is None
            assert (await failure(etcd.transact([], []))).maybe_done
            distrusting = Etcd(place, ca=str(stranger.path), **good)
            error = await failure(distrusting.transact([], []))
            assert "the certificate is refused" in str(error)
            assert not error.maybe_done
            nobody = Etcd(place, ca=str(authority.path))
            assert isinstance(await failure(nobody.get("a")), Unreachable)

    run(main)


# ---- watches

PUT = {"kv": ROW}
DELETE = {"type": "DELETE", "kv": {"key": coded("b"), "mod_revision": "6"}}


def watched(*pieces: bytes, then: Any = silence) -> LyingEtcd:
    """A server with a watch that sends pieces after the line with which it begins."""
    return LyingEtcd({"kv/range": truth(), "watch": sends(CREATED, *pieces, then=then)})


def test_a_watch_gives_batches_of_events(run: Run) -> None:
    async def main() -> None:
        line = result(events=[PUT, DELETE])
        # Lines need not come in one piece each.
        pieces = [result(), *(chunk(bytes([c])) for c in line.split(b"\r\n")[1])]
        async with watched(*pieces, line, result(events=[PUT | {"type": "PUT"}])) as server:
            etcd = client(server)
            watch = etcd.watch("a", 4)

            found = [await anext(watch) for _ in range(3)]

            await watch.aclose()
            await server.until_gone()
        assert found == [
            ([Event("a", ENTRY), Event("b", None)], 6), ([Event("a", ENTRY), Event("b", None)], 6),
            ([Event("a", ENTRY)], 4),
        ]  # fmt: skip
        asked = next(each for each in server.asked if each.path == "watch")
        assert asked.fields == {
            "create_request": {"key": coded("a"), "range_end": coded("b"), "start_revision": "4",
                               "progress_notify": True},
        }  # fmt: skip
        assert asked.headers["grpc-metadata-hasleader"] == "true"

    run(main)


def error_line(text: str, end: bytes = b"\n") -> bytes:
    return chunk(json.dumps({"error": {"grpc_code": 14, "message": text}}).encode() + end)


async def close(line: object) -> None:
    """Nothing more: the connection is closed."""


ENDINGS: dict[str, tuple[bytes, str]] = {
    "end": (END, "the stream has ended"),
    "cut": (b"", "the connection ended"),
    "cut in a line": (result(events=[PUT])[:40], "the connection ended"),
    "end in a line": (chunk(b'{"result"') + END, "no JSON"),
    "last words": (error_line("etcdserver: no leader", b"") + END, "etcdserver: no leader"),
    "cancelled": (result(canceled=True, cancel_reason="why\n"), "cancelled it: why "),
    "no reason": (result(canceled=True), "cancelled it: no reason given"),
    "compacted": (
        result(canceled=True, compact_revision="8"), "revision 4 is compacted, the oldest is 8",
    ),
    "no leader": (error_line("etcdserver: no leader"), "etcdserver: no leader"),
    "no JSON": (chunk(b"{\n"), "no JSON"),
    "empty": (chunk(b"\n"), "no JSON"),
    "no object": (chunk(b"[]\n"), "no object"),
    "no header": (chunk(b'{"result": {}}\n'), "'header' is missing"),
    "other cluster": (
        chunk(b'{"result": {"header": {"cluster_id": "5"}}}\n'), "it is of cluster 5",
    ),
    "events": (result(events=3), "'events' is no list"),
    "no kv": (result(events=[{}]), "an event is none"),
    "type": (result(events=[PUT | {"type": "MOVE"}]), "an event is none"),
    "types": (result(events=[PUT | {"type": []}]), "an event is none"),
    "key": (result(events=[{"type": "DELETE", "kv": {"mod_revision": "6"}}]), "'key' is missing"),
    "revision": (
        result(events=[{"type": "DELETE", "kv": {"key": coded("a")}}]), "'mod_revision' is missing",
    ),
    "long line": (chunk(b"x" * HUGE), "a line has more than"),
    "whole long line": (chunk(b"x" * HUGE + b"\n"), "a line has more than"),
    "no chunk": (b"nonsense", "no HTTP"),
}  # fmt: skip


@pytest.mark.parametrize(("piece", "text"), ENDINGS.values(), ids=ENDINGS)
def test_a_watch_ends_with_an_error_that_says_why(run: Run, piece: bytes, text: str) -> None:
    async def main() -> None:
        async with watched(piece, then=close) as server:
            error = await failure(first(client(server).watch("a", 4)))

            assert text in str(error)
            assert f"watch at 127.0.0.1:{server.port}" in str(error)
            await server.until_gone()

    run(main)


def test_a_watch_of_a_connection_that_is_reset_ends(run: Run) -> None:
    async def main() -> None:
        async with watched(then=reset) as server:
            error = await failure(first(client(server).watch("a", 4)))

        assert "connection" in str(error).lower()

    run(main)


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_a_watch_begins_at_the_next_endpoint(run: Run, lost: Answer) -> None:
    async def main() -> None:
        bad = LyingEtcd({"kv/range": truth(), "watch": lost})
        async with bad, watched(result(events=[PUT])) as good:
            etcd = client(bad, good, timeout_s=0.2)
            etcd._last = etcd._endpoints[0]

            assert await first(etcd.watch("a", 4)) == ([Event("a", ENTRY)], 4)

        assert "watch" in bad.paths

    run(main)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (result(), "it does not begin with a watch that was created"),
        (result(created=True, events=[PUT]), "it does not begin with a watch that was created"),
        (result(created="yes"), "'created' is neither true nor false"),
        (result(created=True, canceled=True, cancel_reason="permission denied"), "permission"),
    ],
)
def test_a_watch_begins_with_its_creation(run: Run, line: bytes, text: str) -> None:
    async def main() -> None:
        async with LyingEtcd({"kv/range": truth(), "watch": STREAM + line}) as server:
            assert text in str(await failure(first(client(server).watch("a", 4))))

    run(main)


def test_a_silent_watch_goes_on_while_its_endpoint_answers(run: Run) -> None:
    async def main() -> None:
        enough = asyncio.Event()

        async def later(line: Any) -> None:
            await enough.wait()
            await line.send(result(events=[PUT]))

        async with watched(then=later) as server:
            etcd = client(server)
            etcd.silence_s = 0.06
            task = asyncio.ensure_future(first(etcd.watch("a", 4)))
            while len(server.asked) < 12:
                await asyncio.sleep(0.01)
            enough.set()

            assert (await task)[1] == 4

    run(main)


def test_a_watch_of_a_dead_endpoint_ends(run: Run) -> None:
    async def main() -> None:
        async with watched() as server:
            etcd = client(server, timeout_s=0.1)
            etcd.silence_s = 0.3
            server.answers["kv/range"] = [truth(), silence]

            error = await failure(first(etcd.watch("a", 4)))

            assert "it stands still: no answer within 0.1 s" in str(error)
            await server.until_gone()

    run(main)


# ---- ends


@pytest.mark.parametrize("call", ["get", "watch", "watching"])
def test_a_call_that_is_cancelled_leaves_nothing(run: Run, call: str) -> None:
    async def main() -> None:
        answers: dict[str, Any] = {
            "kv/range": silence if call == "get" else truth(),
            "watch": silence if call == "watch" else sends(CREATED),
        }
        async with LyingEtcd(answers) as server:
            etcd = client(server)
            task = asyncio.ensure_future(
                etcd.get("a") if call == "get" else first(etcd.watch("a", 1))
            )
            await server.until_asked("kv/range" if call == "get" else "watch")

            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            await server.until_gone()

    run(main)


def test_a_call_may_be_cancelled_at_any_moment(run: Run) -> None:
    async def main() -> None:
        async with watched(result(events=[PUT])) as server:
            etcd = client(server)
            for n_turns in range(60):
                for make in (etcd.get("a"), first(etcd.watch("a", 1))):
                    task = asyncio.ensure_future(make)
                    for _ in range(n_turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
            await server.until_gone()

    run(main)


def test_closing_ends_what_runs(run: Run) -> None:
    async def main() -> None:
        async with watched(result(events=[PUT])) as server:
            etcd = client(server)
            watch = etcd.watch("a", 1)
            await anext(watch)
            server.answers["kv/range"] = silence
            server.answers["kv/txn"] = silence
            calls = [asyncio.ensure_future(failure(each)) for each in
                     (anext(watch), etcd.get("a"), etcd.transact([], []))]  # fmt: skip
            await server.until_asked("kv/txn")

            await etcd.close()

            errors = [await each for each in calls]
            assert all("the client was closed" in str(each) for each in errors)
            assert [each.maybe_done for each in errors] == [False, False, True]
            await server.until_gone()
            assert "the client was closed" in str(await failure(etcd.get("a")))
            assert "the client was closed" in str(await failure(first(etcd.watch("a", 1))))
            await etcd.close()

    run(main)


def test_closing_ends_a_call_that_connects(run: Run) -> None:
    async def main() -> None:
        async with LyingEtcd({"kv/range": silence}) as server:
            for n_turns in range(20):
                etcd = client(server)
                call = asyncio.ensure_future(failure(etcd.get("a")))
                for _ in range(n_turns):
                    await asyncio.sleep(0)
                await etcd.close()

                assert "the client was closed" in str(await call)
            await server.until_gone()

    run(main)


def test_a_watch_that_is_left_alone_ends(run: Run) -> None:
    async def main() -> None:
        async with watched(result(events=[PUT]), result(events=[PUT])) as server:
            async for _ in client(server).watch("a", 1):
                break
            gc.collect()
            await server.until_gone()

    run(main)
