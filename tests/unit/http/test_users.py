"""Users over HTTP: who is not an administrator any more when a slow hash is there makes nobody."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lavinmq.auth.accounts import PasswordHash
from lavinmq.http.api.users import put_user
from lavinmq.http.call import Call
from lavinmq.http.errors import ApiError, access_refused


def test_a_right_that_has_gone_while_a_password_was_hashed_is_missed() -> None:
    hashed: list[bytes] = []

    async def hash_password(password: bytes, name: str, origin: str) -> PasswordHash:
        hashed.append(password)
        return PasswordHash("", None)

    def check_still() -> None:
        if hashed:
            raise access_refused()

    # There is no `put_user` of accounts: it must not be called.
    broker = SimpleNamespace(
        loop=SimpleNamespace(is_held=False), users={},
        accounts=SimpleNamespace(hash_password=hash_password),
    )  # fmt: skip
    call: Any = SimpleNamespace(
        check_room=lambda: None,
        path={"user": "eve"}, broker=broker, handler=SimpleNamespace(address="::1"),
        body={"password": "pw", "password_hash": None, "hashing_algorithm": None, "tags": "t"},
        check_still=check_still,
    )  # fmt: skip

    with pytest.raises(ApiError) as refused:
        asyncio.run(put_user(cast(Call, call)))

    assert refused.value.status == 403 and hashed == [b"pw"]
