"""Keys of an issuer: which are used, when they are fetched again, and what a failure costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import RSAAlgorithm

from lavinmq.auth.fetch import Document, FetchError
from lavinmq.auth.keys import MAX_KEYS, ON_DEMAND_S, Keys
from lavinmq.auth.tasks import Tasks
from tests.support.issuer import Issuer, jwk, private_key

DISCOVERY = "/.well-known/openid-configuration"


class Setting:
    """Keys on a clock of their own, fetched from an issuer in memory."""

    def __init__(self) -> None:
        self.issuer = Issuer()
        self.now = 0.0
        self.failure = ""
        self.max_age_s: int | None = None
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.changes = 0
        self.tasks = Tasks(asyncio.get_running_loop())
        self.keys = self.fresh()

    def fresh(self, issuer: str = "") -> Keys:
        return Keys(
            issuer or self.issuer.url, 3600, self.fetch, self.tasks, self.call_later,
            self.changed, lambda: self.now,
        )  # fmt: skip

    async def fetch(self, url: str, form: Mapping[str, str] | None = None) -> Document:
        await asyncio.sleep(0)
        status, content = self.issuer.document(url.removeprefix(self.issuer.url))
        if self.failure:
            raise FetchError(self.failure)
        return Document(status, content, self.max_age_s)

    def call_later(self, wait_s: float, action: Callable[[], object]) -> asyncio.TimerHandle:
        self.timers.append((wait_s, action))
        return asyncio.get_running_loop().call_later(3600, lambda: None)

    def changed(self) -> None:
        self.changes += 1

    @property
    def fetches(self) -> int:
        return self.issuer.asked[DISCOVERY]

    async def idle(self) -> None:
        while len(self.tasks):
            await asyncio.sleep(0)

    async def start(self) -> None:
        self.keys.start()
        await self.idle()

    async def timer(self) -> float:
        """Let the newest timer go off. Returns: how long it was to wait."""
        wait_s, action = self.timers[-1]
        action()
        await self.idle()
        return wait_s


def scenario(test: Callable[[Setting], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run the test on a loop."""

    async def run() -> None:
        await test(Setting())

    def wrapper() -> None:
        asyncio.run(run())

    wrapper.__name__ = test.__name__
    return wrapper


@scenario
async def test_keys_of_every_algorithm_are_found(s: Setting) -> None:
    await s.start()

    for alg in ("RS256", "PS256", "ES256", "EdDSA"):
        assert s.keys.find(f"{alg}-0", alg) is not None
    assert s.keys.find("RS256-0", "PS256") is None  # each key says what it is for
    assert s.keys.find("RS256-1", "RS256") is None
    assert s.keys.are_there and s.changes == 1


@scenario
async def test_a_key_that_does_not_say_what_for_serves_its_type(s: Setting) -> None:
    entry = jwk("RS256", private_key("RS256"), "k")
    del entry["alg"], entry["use"]
    s.issuer.entries = [entry]
    await s.start()

    assert s.keys.find("k", "RS256") is s.keys.find("k", "PS256") is not None
    assert s.keys.find("k", "ES256") is None and s.keys.find("k", "EdDSA") is None


@scenario
async def test_keys_that_must_not_be_used_are_left_out(s: Setting) -> None:
    good = jwk("RS256", private_key("RS256"), "good")
    weak = RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)
    other_curve = jwk("ES256", ec.generate_private_key(ec.SECP384R1()), "p384")
    s.issuer.entries = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "oct", "alg": "HS256"},
        good | {"kid": "oct-rsa", "kty": "oct"},
        good | {"kid": "enc", "use": "enc"},
        good | {"kid": "ops", "key_ops": ["encrypt"]},
        good | {"kid": "ops-text", "key_ops": "verify"},
        good | {"kid": "alg", "alg": "HS256"},
        good | {"kid": 5},
        good | {"kid": "broken", "n": "!!"},
        good | {"kid": "broken-2", "n": 5},
        good | {"kid": "none", "n": None},
        good | {"kid": "huge", "n": good["n"] * 1000},
        {"kid": "missing", "kty": "RSA"},
        weak | {"kid": "weak"},
        other_curve,
        other_curve | {"kid": "lying", "crv": "P-256"},
        "text", None, [],
        good,
        jwk("RS256", private_key("RS256", 7), "good"),  # a name is taken once
    ]  # fmt: skip
    await s.start()

    assert list(s.keys._keys) == [("good", "RS256")]
    numbers = s.keys.find("good", "RS256").public_numbers()
    assert numbers == private_key("RS256").public_key().public_numbers()


@scenario
async def test_private_parts_are_not_read(s: Setting) -> None:
    s.issuer.entries = [RSAAlgorithm.to_jwk(private_key("RS256"), as_dict=True) | {"kid": "k"}]
    await s.start()

    assert not hasattr(s.keys.find("k", "RS256"), "sign")


@scenario
async def test_only_so_many_keys_are_read(s: Setting) -> None:
    entry = jwk("EdDSA", private_key("EdDSA"), "")
    s.issuer.entries = [entry | {"kid": str(number)} for number in range(MAX_KEYS + 50)]
    await s.start()

    assert len(s.keys._keys) == MAX_KEYS


@scenario
async def test_others_have_their_turn_between_keys(s: Setting) -> None:
    entry = jwk("EdDSA", private_key("EdDSA"), "")
    s.issuer.entries = [entry | {"kid": str(number)} for number in range(MAX_KEYS)]
    s.keys.start()
    turns = 0
    while len(s.tasks):
        await asyncio.sleep(0)
        turns += 1

    assert turns > MAX_KEYS


@pytest.mark.parametrize(
    ("max_age_s", "wait_s"), [(None, 3600), (600, 600), (0, 60), (10**9, 86400)]
)
def test_keys_are_fetched_again_before_they_are_too_old(
    max_age_s: int | None, wait_s: float
) -> None:
    @scenario
    async def run(s: Setting) -> None:
        s.max_age_s = max_age_s
        await s.start()
        s.issuer.rotate("ES256")

        assert await s.timer() == wait_s
        assert s.keys.find("ES256-1", "ES256") is not None
        assert s.keys.find("ES256-0", "ES256") is None
        assert s.changes == 2

    run()


@scenario
async def test_keys_that_are_the_same_are_no_change(s: Setting) -> None:
    await s.start()
    before = s.keys.find("RS256-0", "RS256")
    await s.timer()

    assert s.fetches == 2 and s.changes == 1
    assert s.keys.find("RS256-0", "RS256") is before


@scenario
async def test_after_failures_it_waits_longer_and_longer_and_keys_stay(s: Setting) -> None:
    await s.start()
    s.failure = "no route"
    waits = []
    for _ in range(10):
        await s.timer()
        waits.append(s.timers[-1][0])

    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300, 300]
    assert s.keys.find("RS256-0", "RS256") is not None
    s.failure = ""
    await s.timer()
    assert s.timers[-1][0] == 3600


@scenario
async def test_an_unknown_key_is_looked_for_once_in_a_while(s: Setting) -> None:
    await s.start()
    s.issuer.rotate("RS256")

    await asyncio.gather(*(s.keys.look_again() for _ in range(100)))
    assert s.fetches == 2 and s.keys.find("RS256-1", "RS256") is not None
    for _ in range(100):
        await s.keys.look_again()
    assert s.fetches == 2
    s.now += ON_DEMAND_S
    await s.keys.look_again()
    assert s.fetches == 3


@scenario
async def test_who_asks_during_the_first_fetch_waits_for_it(s: Setting) -> None:
    s.keys.start()
    await asyncio.sleep(0)

    await s.keys.look_again()

    assert s.keys.are_there and s.fetches == 1


@scenario
async def test_without_keys_a_failure_is_not_repeated_at_once(s: Setting) -> None:
    s.failure = "no route"
    s.now = 1000.0
    await s.start()
    for _ in range(5):
        await s.keys.look_again()
    assert s.fetches == 1
    s.now += ON_DEMAND_S
    s.failure = ""
    await s.keys.look_again()

    assert s.keys.are_there


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (DISCOVERY, (200, {"issuer": "https://other.example", "jwks_uri": "https://x.example/"})),
        (DISCOVERY, (200, {"issuer": "https://issuer.example"})),
        (DISCOVERY, (200, {"issuer": "https://issuer.example", "jwks_uri": "http://x.example/"})),
        (DISCOVERY, (200, {"issuer": "https://issuer.example", "jwks_uri": ["https://x/"]})),
        (DISCOVERY, (200, [])),
        (DISCOVERY, (500, None)),
        ("/keys", (200, {"keys": {}})),
        ("/keys", (200, {"keys": []})),
        ("/keys", (200, None)),
        ("/keys", (404, {"keys": []})),
    ],
)
def test_answers_that_make_no_sense_are_a_failure(path: str, answer: tuple[int, Any]) -> None:
    @scenario
    async def run(s: Setting) -> None:
        await s.start()
        s.issuer.answers[path] = answer
        await s.timer()

        assert s.timers[-1][0] == 5
        assert s.keys.find("RS256-0", "RS256") is not None

    run()


@scenario
async def test_a_slash_at_the_end_of_the_issuer_does_not_matter(s: Setting) -> None:
    s.keys = s.fresh(s.issuer.url + "/")
    await s.start()

    assert s.keys.are_there
    assert (await s.keys.discovery()).token_endpoint == s.issuer.url + "/token"


@scenario
async def test_without_an_answer_there_is_no_discovery(s: Setting) -> None:
    s.failure = "no route"

    with pytest.raises(FetchError):
        await s.keys.discovery()


@scenario
async def test_even_a_bug_does_not_end_the_fetching(s: Setting) -> None:
    s.issuer.answers[DISCOVERY] = ()  # type: ignore[assignment]
    await s.start()
    del s.issuer.answers[DISCOVERY]
    await s.timer()

    assert s.keys.are_there


@scenario
async def test_after_the_stop_nothing_is_fetched(s: Setting) -> None:
    s.keys.start()
    s.keys.stop()
    await s.idle()

    assert s.timers == []
