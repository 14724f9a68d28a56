"""The client of etcd against the etcd of Debian: keys, leases, watches, rights, lost members."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from lavinmq.cluster.coordinator import Coordinator
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
from tests.support.etcd import WHY_NOT, EtcdCluster
from tests.support.lying_etcd import coded

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

DEADLINE_S = 90.0
WAIT_S = 20.0


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """An etcd of one member, for all tests of this file: each has a prefix of its own."""
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


def run(main: Coroutine[Any, Any, None]) -> None:
    """On the loop that a broker has."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(WAIT_S):
        while not await condition():
            await asyncio.sleep(0.05)


async def put(etcd: Etcd, key: str, value: bytes, lease: int = 0) -> int:
    """Write a key; its revision."""
    is_done, revision = await etcd.transact([], [Put(key, value, lease)])
    assert is_done
    return revision


def test_what_is_put_is_got(one: EtcdCluster) -> None:
    async def main() -> None:
        etcd = Etcd(one.endpoints)
        value = bytes(range(256))

        first = await put(etcd, "put/é", b"")
        second = await put(etcd, "put/é", value)
        third = await put(etcd, "put/a", b"a")
        await put(etcd, "put0", b"not below the prefix")

        assert await etcd.get("put/é") == Entry("put/é", value, first, second, 0)
        assert await etcd.get("put/") is None
        rows, revision = await etcd.get_prefix("put/")
        assert rows == [
            Entry("put/a", b"a", third, third, 0), Entry("put/é", value, first, second, 0),
        ]  # fmt: skip
        assert revision > third
        assert (await etcd.get_prefix("put/none"))[0] == []
        assert {row.key for row in (await etcd.get_prefix(""))[0]} >= {"put/a", "put0"}

    run(main())


def test_a_transaction_compares_and_does_all_or_nothing(one: EtcdCluster) -> None:
    async def main() -> None:
        etcd = Etcd(one.endpoints)
        lease, _ = await etcd.grant(60)
        revision = await put(etcd, "txn/a", b"1", lease)

        for good in (
            Compare("txn/a", "CREATE", revision), Compare("txn/a", "MOD", revision),
            Compare("txn/a", "VALUE", b"1"), Compare("txn/a", "LEASE", lease),
            Compare("txn/none", "CREATE", 0), Compare("txn/none", "LEASE", 0),
            Compare("txn/n", "CREATE", 0, prefix_end("txn/n")),
        ):  # fmt: skip
            assert (await etcd.transact([good], []))[0], good
        for bad in (
            Compare("txn/a", "CREATE", 0), Compare("txn/a", "MOD", revision - 1),
            Compare("txn/a", "VALUE", b"2"), Compare("txn/a", "LEASE", 5),
            Compare("txn/none", "VALUE", b""), Compare("txn/", "CREATE", 0, prefix_end("txn/")),
        ):  # fmt: skip
            compares = [Compare("txn/a", "MOD", revision), bad]
            assert not (await etcd.transact(compares, [Delete("txn/a")]))[0], bad
        changes: list[Put | Delete] = [Put("txn/b", b"b"), Put("txn/c", b"c"), Delete("txn/a")]
        assert await etcd.transact([], changes) == (True, revision + 1)
        assert [row.key for row in (await etcd.get_prefix("txn/"))[0]] == ["txn/b", "txn/c"]
        await etcd.transact([], [Delete("txn/", prefix_end("txn/"))])
        assert (await etcd.get_prefix("txn/"))[0] == []

    run(main())


def test_a_transaction_that_etcd_refuses_says_why(one: EtcdCluster) -> None:
    async def main() -> None:
        etcd = Etcd(one.endpoints)

        with pytest.raises(EtcdError, match="duplicate key") as caught:
            await etcd.transact([], [Put("a", b""), Put("a", b"")])

        assert not caught.value.maybe_done

    run(main())


def test_a_lease_that_is_not_renewed_takes_its_keys_along(one: EtcdCluster) -> None:
    async def main() -> None:
        etcd = Etcd(one.endpoints)
        kept, ttl_s = await etcd.grant(2)
        left, _ = await etcd.grant(1)
        await put(etcd, "lease/kept", b"", kept)
        revision = await put(etcd, "lease/left", b"", left)

        async def is_left_gone() -> bool:
            assert 1 <= await etcd.keep_alive(kept) <= ttl_s
            return await etcd.get("lease/left") is None

        await until(is_left_gone)

        assert await anext(etcd.watch("lease/left", revision + 1)) == (
            [Event("lease/left", None)], revision + 1,
        )  # fmt: skip
        found = await etcd.get("lease/kept")
        assert found is not None
        assert found.lease == kept
        with pytest.raises(NoLease):
            await etcd.keep_alive(left)
        with pytest.raises(NoLease):
            await put(etcd, "lease/left", b"", left)
        await etcd.revoke(kept)
        await etcd.revoke(kept)
        assert await etcd.get("lease/kept") is None
        with pytest.raises(NoLease):
            await etcd.keep_alive(kept)

    run(main())


def test_a_lease_tells_how_much_of_it_is_left(one: EtcdCluster) -> None:
    async def main() -> None:
        etcd = Etcd(one.endpoints)
        lease, ttl_s = await etcd.grant(60)
        left, granted = await etcd.time_left(lease)
        assert ttl_s - 30 < left <= ttl_s == granted
        await etcd.revoke(lease)
        assert (await etcd.time_left(lease))[0] == -1

    run(main())


def coordinator(one: EtcdCluster, prefix: str, node: str) -> Coordinator:
    """What a node has of etcd."""
    return Coordinator(Etcd(one.endpoints), prefix, node, {"host": node, "directory": "/"})


def test_nodes_that_race_have_one_secret(one: EtcdCluster) -> None:
    async def main() -> None:
        nodes = [coordinator(one, "race", f"n{number}") for number in range(8)]
        secrets = await asyncio.gather(*(each.secret() for each in nodes))
        assert len(set(secrets)) == 1
        assert len(secrets[0]) == 32

    run(main())


def test_a_leader_of_before_changes_the_set_no_more(one: EtcdCluster) -> None:
    async def main() -> None:
        nodes = [coordinator(one, "stale", name) for name in ("a", "b")]
        leases = [(await each.etcd.grant(60))[0] for each in nodes]
        first, second = nodes
        await first.look()
        assert await first.take_over(first.state, leases[0], "tcp://a:1")
        assert await first.change_in_sync(1, {"a", "b"})
        stale = first.state
        await second.look()
        assert await second.take_over(second.state, leases[1], "tcp://b:1")
        first.state = stale

        assert not await first.change_in_sync(1, {"a"})
        await second.look()
        assert second.state.in_sync == ("a", "b")
        assert (second.state.epoch, second.state.epoch_leader) == (2, "b")

    run(main())


def test_who_is_not_in_the_set_does_not_lead(one: EtcdCluster) -> None:
    async def main() -> None:
        nodes = [coordinator(one, "outside", name) for name in ("a", "b")]
        first, second = nodes
        lease, _ = await first.etcd.grant(60)
        await first.look()
        assert await first.take_over(first.state, lease, "tcp://a:1")
        await first.etcd.revoke(lease)
        other, _ = await second.etcd.grant(60)
        await second.look()

        assert second.state.leader is None
        assert not await second.take_over(second.state, other, "tcp://b:1")

    run(main())


def test_a_node_whose_lease_is_not_renewed_is_alive_no_more(one: EtcdCluster) -> None:
    async def main() -> None:
        node = coordinator(one, "alive", "a")
        lease, ttl_s = await node.etcd.grant(4)
        assert await node.register(lease) == ""
        await node.look()
        assert await node.alive({"a", "b"}, ttl_s / 2) == {"a"}

        async def is_late() -> bool:
            return await node.alive({"a"}, ttl_s / 2) == set()

        await until(is_late)
        assert await node.etcd.get(node.key("nodes", "a")) is not None

    run(main())


def test_a_watch_tells_what_was_and_what_comes(one: EtcdCluster) -> None:
    async def main() -> None:
        etcd = Etcd(one.endpoints)
        begin = await put(etcd, "watch/a", b"1")
        await put(etcd, "elsewhere", b"")
        await etcd.transact([], [Put("watch/b", b"2"), Delete("watch/a")])

        seen: list[Event] = []
        watch = etcd.watch("watch/", begin)
        while len(seen) < 3:
            batch, revision = await anext(watch)
            seen += batch
        at = await put(etcd, "watch/c", b"3")
        later = await anext(watch)
        await watch.aclose()

        assert seen == [
            Event("watch/a", Entry("watch/a", b"1", begin, begin, 0)),
            Event("watch/b", Entry("watch/b", b"2", begin + 2, begin + 2, 0)),
            Event("watch/a", None),
        ]
        assert revision == begin + 2
        assert later == ([Event("watch/c", Entry("watch/c", b"3", at, at, 0))], at)

    run(main())


def test_a_watch_of_a_compacted_revision_says_so(one: EtcdCluster) -> None:
    async def main() -> None:
        etcd = Etcd(one.endpoints)
        begin = await put(etcd, "compacted/a", b"1")
        last = await put(etcd, "compacted/a", b"2")
        await asyncio.to_thread(one.ask, "kv/compaction", revision=str(last))

        text = f"revision {begin} is compacted, the oldest is {last}"
        with pytest.raises(EtcdError, match=text):
            await anext(etcd.watch("compacted/", begin))

        assert (await anext(etcd.watch("compacted/", last)))[1] == last

    run(main())


def test_with_authentication_one_needs_a_password_and_gets_new_tokens(tmp_path: Path) -> None:
    async def main(cluster: EtcdCluster) -> None:
        place = cluster.endpoints[0]
        etcd = Etcd([f"http://root:s3cret%40@{place}"])
        await put(etcd, "a", b"before")
        for path, fields in (
            ("auth/user/add", {"name": "root", "password": "s3cret@"}),
            ("auth/user/add", {"name": "anna", "password": "x1y2z3"}),
            ("auth/role/add", {"name": "root"}),
            ("auth/role/add", {"name": "few"}),
            ("auth/role/grant", {"name": "few", "perm": {
                "permType": "READWRITE", "key": coded("a"), "range_end": coded("b")}}),
            ("auth/user/grant", {"user": "root", "role": "root"}),
            ("auth/user/grant", {"user": "anna", "role": "few"}),
            ("auth/enable", {}),
        ):  # fmt: skip
            await asyncio.to_thread(cluster.ask, path, **fields)

        await put(etcd, "a", b"after")
        for login, text in (
            ("root:wr0ng", "authentication failed"), ("nobody:wr0ng", "authentication failed"),
        ):  # fmt: skip
            with pytest.raises(EtcdError, match=text) as caught:
                await Etcd([f"http://{login}@{place}"]).get("a")
            assert "wr0ng" not in str(caught.value)
        with pytest.raises(EtcdError, match="user name is empty"):
            await Etcd([place]).get("a")

        anna = Etcd([f"http://anna:x1y2z3@{place}"])
        assert (await anna.get_prefix("a"))[0][0].value == b"after"
        for refused in (anna.get("z"), anna.transact([], [Put("z", b"")])):
            with pytest.raises(EtcdError, match="permission denied") as caught:
                await refused
            assert not caught.value.maybe_done
        with pytest.raises(EtcdError, match="permission denied"):
            await anext(anna.watch("z", 0))
        lease, _ = await anna.grant(30)
        await anna.keep_alive(lease)
        revision = await put(anna, "a", b"anna", lease)

        # Tokens do not survive their etcd.
        await asyncio.to_thread(cluster.restart, cluster.members[0])
        assert (await anext(anna.watch("a", revision)))[1] == revision
        await asyncio.to_thread(cluster.restart, cluster.members[0])
        assert await put(anna, "a", b"again") == revision + 1

    with EtcdCluster(tmp_path / "etcd") as cluster:
        run(main(cluster))


def test_one_member_of_three_may_be_lost_and_no_two(tmp_path: Path) -> None:
    async def main(cluster: EtcdCluster) -> None:
        etcd = Etcd(cluster.endpoints, timeout_s=3.0)
        lease, _ = await etcd.grant(60)
        begin = await put(etcd, "a", b"1", lease)
        leader = await asyncio.to_thread(cluster.leader)
        others = [each for each in cluster.members if each is not leader]
        behind = Etcd([others[0].endpoint])
        watch = behind.watch("a", begin)
        assert (await anext(watch))[1] == begin
        ahead = asyncio.ensure_future(anext(watch))

        leader.kill()

        async def is_led() -> bool:
            try:
                await etcd.transact([], [Put("b", b"")])
            except Unreachable:
                return False
            return True

        await until(is_led)
        for _ in range(10):
            await etcd.get("a")
        await etcd.keep_alive(lease)
        revision = await put(etcd, "a", b"2", lease)
        # The member is there, so its watch may go on; where it did not, it said so.
        try:
            assert (await ahead)[1] == revision
        except EtcdError as error:
            assert "no leader" in str(error)
        await watch.aclose()
        watch = behind.watch("a", revision)
        assert (await anext(watch))[1] == revision

        others[1].kill()
        began = time.monotonic()
        with pytest.raises(EtcdError, match=r"no leader|stands still"):
            await anext(watch)
        assert time.monotonic() - began < 30
        with pytest.raises(Unreachable) as caught:
            await etcd.transact([], [Put("a", b"3")])
        assert others[0].endpoint in str(caught.value)
        with pytest.raises(Unreachable) as caught:
            await etcd.get("a")
        assert all(each.endpoint in str(caught.value) for each in cluster.members)

    with EtcdCluster(tmp_path / "etcd", 3) as cluster:
        run(main(cluster))


def test_a_watch_of_a_process_that_stands_still_ends(tmp_path: Path) -> None:
    async def main(cluster: EtcdCluster) -> None:
        etcd = Etcd(cluster.endpoints, timeout_s=0.5)
        etcd.silence_s = 2.0
        revision = await put(etcd, "a", b"")
        watch = etcd.watch("a", revision)
        await anext(watch)

        cluster.members[0].signal(signal.SIGSTOP)

        with pytest.raises(EtcdError, match=r"stands still: no answer within 0\.5 s"):
            await anext(watch)

    with EtcdCluster(tmp_path / "etcd") as cluster:
        run(main(cluster))
