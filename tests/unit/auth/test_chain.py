"""The chain of backends: who is asked in which order, what waits, and what is told at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lavinmq.auth import passwords
from lavinmq.auth.attempt import Attempt, TokenError
from lavinmq.auth.chain import Chain
from lavinmq.auth.identity import Identity
from lavinmq.auth.throttle import SOURCE
from lavinmq.auth.users import DIRECT_USER, User, UserStore
from lavinmq.config.values import Config, ConfigError, from_keywords
from tests.support.issuer import AUDIENCE, Issuer, serving

HERE = "127.0.0.1", True
AWAY = "10.0.0.1", False


class Setting:
    """A chain with users of each kind of hash, named after it; their password is `pw`."""

    def __init__(self, data_dir: Path, config: Config) -> None:
        self.config = config
        self.users = UserStore(data_dir, "guest", config.default_password_hash, True)
        self.users.load()
        for kind in ("sha256", "scrypt", "bcrypt"):
            self.users.add(kind, passwords.hash_password(b"pw", kind), passwords.ALGORITHMS[kind])
        self.chain = Chain(config, self.users, asyncio.get_running_loop())
        self.waits: list[float] = []

    async def who(self, name: str, password: bytes, *origin: Any) -> Identity | None:
        return await self.chain.authenticate(name, password, *(origin or AWAY))


@asynccontextmanager
async def chain_in(data_dir: Path, **settings: Any) -> AsyncIterator[Setting]:
    setting = Setting(data_dir, from_keywords(settings))
    setting.chain.start()
    try:
        yield setting
    finally:
        await setting.chain.stop()


@pytest.mark.parametrize("kind", ["sha256", "scrypt", "bcrypt"])
def test_the_right_password_logs_in_and_no_other(tmp_path: Path, kind: str) -> None:
    async def scenario() -> None:
        async with chain_in(tmp_path) as s:
            user = s.users.get(kind)
            assert await s.who(kind, b"wrong") is None
            assert await s.who(kind, b"") is None
            assert await s.who("nobody", b"pw") is None
            assert await s.who(kind, b"pw") is user
            assert s.chain.at_once(kind, b"pw", *AWAY) is user
            assert s.chain.at_once(kind, b"wrong", *AWAY) is None

    asyncio.run(scenario())


def test_a_slow_hash_is_told_at_once_only_when_it_is_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with chain_in(tmp_path) as s:
            assert s.chain.at_once("sha256", b"pw", *AWAY) is s.users.get("sha256")
            assert s.chain.at_once("scrypt", b"pw", *AWAY) is None
            assert await s.who("scrypt", b"pw") is s.users.get("scrypt")
            assert s.chain.at_once("scrypt", b"pw", *AWAY) is s.users.get("scrypt")
            s.users.add("scrypt", passwords.hash_password(b"new"), passwords.DEFAULT_ALGORITHM)
            assert s.chain.at_once("scrypt", b"pw", *AWAY) is None

    asyncio.run(scenario())


def test_the_default_user_comes_from_this_machine_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with chain_in(tmp_path) as s:
            assert s.chain.at_once("guest", b"guest", *AWAY) is None
            assert await s.who("guest", b"guest", *AWAY) is None
            assert await s.who("guest", b"guest", *HERE) is s.users.get("guest")

    asyncio.run(scenario())


def test_a_user_deleted_while_we_waited_is_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with chain_in(tmp_path) as s:
            asked = asyncio.ensure_future(s.who("scrypt", b"pw"))
            await asyncio.sleep(0)
            s.users.delete("scrypt")
            assert await asked is None

    asyncio.run(scenario())


def test_after_failures_even_the_right_password_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    async def scenario() -> None:
        async with chain_in(tmp_path) as s:
            with monkeypatch.context() as patched:
                patched.setattr(asyncio, "sleep", sleep)
                for _ in range(SOURCE.free + 2):
                    assert await s.who("sha256", b"wrong") is None
                assert waits == [SOURCE.first_s]
                # Else guessing would be quick: the right answer comes at once, the others later.
                assert s.chain.at_once("sha256", b"pw", *AWAY) is None
                assert await s.who("sha256", b"pw") is s.users.get("sha256")
            assert waits == [SOURCE.first_s, 2 * SOURCE.first_s]
            assert s.chain.at_once("sha256", b"pw", *AWAY) is s.users.get("sha256")

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["sha256", "scrypt"])
def test_many_attempts_at_once_wait_as_long_as_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    waits: list[float] = []
    yield_ = asyncio.sleep

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)
        await yield_(0)

    async def scenario() -> None:
        async with chain_in(tmp_path) as s:
            with monkeypatch.context() as patched:
                patched.setattr(asyncio, "sleep", sleep)
                guesses = [s.who(kind, b"wrong %d" % number) for number in range(20)]
                assert set(await asyncio.gather(*guesses)) == {None}

    asyncio.run(scenario())

    assert waits == [SOURCE.wait_s(failures) for failures in range(SOURCE.free + 1, 20)]


def test_many_who_know_their_password_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleep(wait_s: float) -> None:
        raise AssertionError(f"somebody waits {wait_s} s")

    async def scenario() -> None:
        async with chain_in(tmp_path) as s:
            stored = passwords.hash_password(b"pw", "sha512")
            for number in range(100):
                s.users.add(f"u{number}", stored, passwords.ALGORITHMS["sha512"])
            with monkeypatch.context() as patched:
                patched.setattr(asyncio, "sleep", sleep)
                found = await asyncio.gather(
                    *(s.who("scrypt", b"pw") for _ in range(50)),
                    *(s.who(f"u{number}", b"pw") for number in range(100)),
                )
            assert None not in found

    asyncio.run(scenario())


def test_who_was_here_before_does_not_wait_in_line_behind_strangers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with chain_in(tmp_path) as s:
            assert await s.who("scrypt", b"pw") is not None
            guesses = [asyncio.ensure_future(s.who("bcrypt", b"%d" % n)) for n in range(50)]
            await asyncio.sleep(0)
            assert s.chain.at_once("sha256", b"pw", *AWAY) is None  # it is one of many
            assert s.chain.at_once("scrypt", b"pw", *AWAY) is s.users.get("scrypt")
            for each in guesses:
                each.cancel()
            await asyncio.wait(guesses)

    asyncio.run(scenario())


def test_throttling_can_be_switched_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with chain_in(tmp_path) as s:
            for _ in range(SOURCE.free + 1):
                await s.who("sha256", b"wrong")
            s.config.login_throttling = False  # a reload
            assert s.chain.at_once("sha256", b"pw", *AWAY) is s.users.get("sha256")

    asyncio.run(scenario())


def test_unknown_backends_and_a_missing_issuer_are_errors_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"auth_backends.*none of local, oauth"):
        from_keywords({"auth_backends": "local,ldap"})
    with pytest.raises(ConfigError, match=r"'issuer' in \[oauth\] is missing"):
        from_keywords({"auth_backends": "oauth"})


def test_an_attempt_never_shows_its_password() -> None:
    assert "secret" not in repr(Attempt("u", b"secret", *AWAY))


# --- tokens


def oauth(issuer: Issuer, backends: str = "local,oauth") -> dict[str, Any]:
    return {
        "auth_backends": backends, "oauth_issuer": issuer.url,
        "oauth_resource_server_id": AUDIENCE,
    }  # fmt: skip


def test_a_token_logs_in_under_the_name_it_gives(tmp_path: Path) -> None:
    async def scenario() -> None:
        with serving() as issuer:
            async with chain_in(tmp_path, **oauth(issuer)) as s:
                token = issuer.token(scope="broker.tag:monitoring broker.read:%2F/q").encode()
                identity = await s.who("whatever", token)
                assert identity is not None
                assert (identity.name, identity.tags) == ("anna", ("monitoring",))
                assert identity.can_read("/", "q") and not identity.can_write("/", "q")
                assert identity.expires_at is not None
                assert s.chain.at_once("", token, *AWAY) is identity
                assert s.chain.at_once("sha256", b"pw", *AWAY) is s.users.get("sha256")
                # The token's user is another than the one of the data directory.
                own = await s.who("", issuer.token(sub="guest").encode())
                assert own is not None and own is not s.users.get("guest")

    asyncio.run(scenario())


@pytest.mark.parametrize("alg", ["RS256", "PS256", "ES256", "EdDSA"])
def test_a_new_key_of_the_issuer_is_found(tmp_path: Path, alg: str) -> None:
    async def scenario() -> None:
        with serving() as issuer:
            async with chain_in(tmp_path, **oauth(issuer)) as s:
                old = issuer.token(alg).encode()
                assert await s.who("", old)
                issuer.rotate(alg)
                fresh = issuer.token(alg).encode()
                assert s.chain.at_once("", fresh, *AWAY) is None
                assert await s.who("", fresh)
                # The old key is withdrawn: what was signed with it is forgotten, too.
                assert s.chain.at_once("", old, *AWAY) is None
                assert await s.who("", old) is None
                assert issuer.asked["/keys"] == 2

    asyncio.run(scenario())


def test_tokens_that_are_refused_and_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        with serving() as issuer:
            async with chain_in(tmp_path, **oauth(issuer), login_throttling=False) as s:
                bad = [
                    issuer.token(exp=1), issuer.token(aud="x"), issuer.token(iss="https://x"),
                    issuer.token(sub=None), issuer.token(kid="x"), issuer.token("RS256") + "x",
                    issuer.token("ES256", kid="RS256-0"), "eyJhbGciOiJub25lIn0.e30.",
                ]  # fmt: skip
                reasons: list[str] = []
                for token in bad:
                    who = "guest", token.encode(), *AWAY
                    assert await s.chain.authenticate(*who, reasons) is None
                assert len(reasons) == len(bad)
                assert all(why.startswith("the access token is refused: ") for why in reasons)
                assert not any(token in why for token in bad for why in reasons)
                assert "expired" in reasons[0]

    asyncio.run(scenario())


def test_an_expired_token_is_no_longer_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        with serving() as issuer:
            async with chain_in(tmp_path, **oauth(issuer)) as s:
                token = issuer.token().encode()
                identity = await s.who("", token)
                assert identity is not None and identity.expires_at and s.chain.oauth
                backend = s.chain.oauth
                backend._clock = backend._verifier._clock = lambda: identity.expires_at or 0.0
                assert s.chain.at_once("", token, *AWAY) is None
                assert await s.who("", token) is None

    asyncio.run(scenario())


def test_with_oauth_alone_nobody_has_a_password_but_the_broker_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        with serving() as issuer:
            async with chain_in(tmp_path, **oauth(issuer, "oauth")) as s:
                assert await s.who("sha256", b"pw") is None
                own = s.users.direct_password.encode()
                assert s.chain.at_once(DIRECT_USER, own, *HERE) is s.users.direct_user
                assert await s.who(DIRECT_USER, issuer.token().encode()) is None

    asyncio.run(scenario())


def test_a_fresh_token_has_to_be_of_the_same_user(tmp_path: Path) -> None:
    async def scenario() -> None:
        with serving() as issuer:
            async with chain_in(tmp_path, **oauth(issuer)) as s:
                identity = await s.who("", issuer.token().encode())
                assert identity is not None
                fresh = await s.chain.renew(
                    identity, issuer.token(scope="broker.tag:management").encode()
                )
                assert fresh.tags == ("management",)
                with pytest.raises(TokenError, match=r"of another user"):
                    await s.chain.renew(identity, issuer.token(sub="eve").encode())
                with pytest.raises(TokenError, match=r"expired"):
                    await s.chain.renew(identity, issuer.token(exp=1).encode())
                with pytest.raises(TokenError, match=r"has not logged in with a token"):
                    await s.chain.renew(User("u"), issuer.token().encode())

    asyncio.run(scenario())


def test_without_the_issuer_tokens_are_refused_and_passwords_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        with serving() as issuer:
            settings = oauth(issuer)
        async with chain_in(tmp_path, **settings) as s:
            assert await s.who("", issuer.token().encode()) is None
            assert s.chain.at_once("sha256", b"pw", *AWAY) is s.users.get("sha256")

    asyncio.run(scenario())


def test_without_oauth_its_libraries_are_not_loaded() -> None:
    import subprocess
    import sys

    program = (
        "import sys, lavinmq\n"
        "with lavinmq.run(): pass\n"
        "print(sorted({'jwt', 'cryptography', 'tornado', 'bcrypt', 'lavinmq.auth.oauth'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout.strip() == "[]", done.stderr


def test_what_is_missing_is_said_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        with serving() as issuer:
            settings = oauth(issuer) | {"oauth_resource_server_id": "", "oauth_client_id": "ui"}
            async with chain_in(tmp_path, **settings) as s:
                assert await s.who("", issuer.token().encode()) is None

    asyncio.run(scenario())

    assert "No token will be accepted: set audience" in caplog.text
    assert "single sign-on is off, [oauth] lacks mgmt_base_url" in caplog.text


def test_an_issuer_that_anybody_could_play_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def start(url: str) -> None:
        settings = oauth(Issuer(url))
        Setting(tmp_path, from_keywords(settings))

    asyncio.run(start("https://issuer.example"))
    asyncio.run(start("http://localhost:8080"))
    assert caplog.text == ""
    asyncio.run(start("http://issuer.example"))
    assert "The issuer in [oauth] is not https" in caplog.text
