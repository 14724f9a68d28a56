"""Passwords verified in threads: once for all who ask, remembered while they are right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from lavinmq.auth import hashing, passwords, verification
from lavinmq.auth.hashing import Hashing, HashingBusy
from lavinmq.auth.tasks import Tasks
from lavinmq.auth.users import User
from lavinmq.auth.verification import REMEMBERED_S, Verification

CHEAP = "$scrypt$ln=4,r=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$"


def scrypt_user(name: str = "u", password: bytes = b"pw") -> User:
    """A user whose hash counts as slow and takes no time."""
    import base64
    import hashlib

    key = hashlib.scrypt(password, salt=bytes(16), n=16, r=1, p=1, dklen=32)
    return User(name, CHEAP + base64.b64encode(key).decode().rstrip("="), "lavinmq_scrypt")


@asynccontextmanager
async def verifying(clock: Callable[[], float] = lambda: 0.0) -> AsyncIterator[Verification]:
    events = asyncio.get_running_loop()
    pool, tasks = Hashing(events, threads=1), Tasks(events)
    yield Verification(pool, tasks, clock)
    await tasks.stop()
    pool.close()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The passwords of the hashes that were computed."""
    found: list[bytes] = []
    verify = passwords.verify

    def counted(password: bytes, stored: str | None, algorithm: str | None) -> bool:
        found.append(password)
        return verify(password, stored, algorithm)

    monkeypatch.setattr(passwords, "verify", counted)
    return found


def test_a_digest_is_computed_at_once() -> None:
    async def scenario() -> None:
        user = User("u", passwords.hash_password(b"pw"), passwords.DEFAULT_ALGORITHM)
        async with verifying() as verification:
            assert verification.is_known(user, b"pw")
            assert not verification.is_known(user, b"PW")
            assert await verification.is_password(user, b"pw", "")
            assert not await verification.is_password(user, b"PW", "")

    asyncio.run(scenario())


def test_a_slow_hash_is_computed_once_and_then_known(computed: list[bytes]) -> None:
    async def scenario() -> None:
        user = scrypt_user()
        async with verifying() as verification:
            assert not verification.is_known(user, b"pw")
            asked = [verification.is_password(user, b"pw", str(n)) for n in range(100)]
            assert all(await asyncio.gather(*asked))
            assert verification.is_known(user, b"pw")
            assert await verification.is_password(user, b"pw", "")
            assert computed == [b"pw"]

    asyncio.run(scenario())


def test_a_wrong_password_is_not_remembered(computed: list[bytes]) -> None:
    async def scenario() -> None:
        user = scrypt_user()
        async with verifying() as verification:
            for _ in range(2):
                assert not await verification.is_password(user, b"wrong", "")
            assert not verification.is_known(user, b"wrong")
            assert computed == [b"wrong", b"wrong"]

    asyncio.run(scenario())


def test_what_is_known_belongs_to_one_user_with_one_hash() -> None:
    async def scenario() -> None:
        user, twin = scrypt_user(), scrypt_user("twin")
        async with verifying() as verification:
            await verification.is_password(user, b"pw", "")
            assert not verification.is_known(twin, b"pw")
            user.password_hash = scrypt_user(password=b"new").password_hash
            assert not verification.is_known(user, b"pw")
            assert not await verification.is_password(user, b"pw", "")
            user.password_hash, user.hashing_algorithm = "", None
            assert not await verification.is_password(user, b"", "")

    asyncio.run(scenario())


def test_it_is_forgotten_after_a_while_and_the_table_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verification, "MAX_REMEMBERED", 3)
    now = [0.0]

    async def scenario() -> None:
        users = [scrypt_user(str(number)) for number in range(5)]
        async with verifying(lambda: now[0]) as verification:
            for user in users:
                await verification.is_password(user, b"pw", "")
            known = [verification.is_known(user, b"pw") for user in users]
            assert known == [False, False, True, True, True]
            now[0] = REMEMBERED_S + 1
            assert not any(verification.is_known(user, b"pw") for user in users)

    asyncio.run(scenario())


def test_neither_the_password_nor_its_digest_is_kept() -> None:
    import hashlib

    async def scenario() -> None:
        async with verifying() as first, verifying() as second:
            for verification in (first, second):
                await verification.is_password(scrypt_user(), b"pw", "")
            [mark], [other] = first._right, second._right
            assert mark != other  # another key
            assert mark not in (b"pw", hashlib.sha256(b"pw").digest())
            assert not first._running

    asyncio.run(scenario())


def test_who_asks_while_too_many_wait_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "MAX_WAITING", 0)

    async def scenario() -> None:
        async with verifying() as verification:
            first = asyncio.ensure_future(verification.is_password(scrypt_user(), b"pw", ""))
            await asyncio.sleep(0)
            with pytest.raises(HashingBusy):
                await verification.is_password(scrypt_user("v"), b"pw", "")
            assert await first

    asyncio.run(scenario())


def test_a_name_that_nobody_has_costs_a_hash(computed: list[bytes]) -> None:
    async def scenario() -> None:
        async with verifying() as verification:
            await verification.pretend(b"pw", "scrypt", "")
            await verification.pretend(b"pw", "sha256", "")  # costs nothing anyway

    asyncio.run(scenario())

    assert computed == [b"pw"]


def test_what_is_remembered_is_about_the_hash_that_was_asked_about() -> None:
    """The user gets another password before the thread begins: the new one is not right for the
    old hash, which comes back if the disk refuses the change."""

    async def scenario() -> None:
        user, other = scrypt_user(), scrypt_user(password=b"new")
        old = user.password_hash
        async with verifying() as verification:
            asked = asyncio.create_task(verification.is_password(user, b"new", ""))
            await asyncio.sleep(0)
            user.password_hash = other.password_hash
            assert not await asked
            user.password_hash = old
            assert not verification.is_known(user, b"new")

    asyncio.run(scenario())
