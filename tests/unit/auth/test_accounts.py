"""Users as administrators change them: what is kept, what is told, what is saved."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from lavinmq.auth import passwords
from lavinmq.auth.accounts import Accounts
from lavinmq.auth.chain import Chain
from lavinmq.auth.users import DIRECT_USER, User, UserStore
from lavinmq.config.values import defaults
from lavinmq.errors import DefinitionsError
from tests.unit.auth.test_users import GUEST_HASH, store_in

T = TypeVar("T")


class Setting:
    """Accounts that write down what they tell."""

    def __init__(self, data_dir: Path) -> None:
        self.users = store_in(data_dir)
        self.users.load()
        self.asked_again: list[str | None] = []
        self.looked_at: list[str | None] = []
        self.forgotten: list[str] = []
        self.events = asyncio.new_event_loop()
        self.config = defaults()
        self.chain = Chain(self.config, self.users, self.events)
        self.accounts = Accounts(
            self.users, self.asked_again.append, self.looked_at.append, self.forgotten.append,
            self.chain, self.config,
        )  # fmt: skip
        self._data_dir = data_dir

    def user(self, name: str) -> User:
        """The user; the same in memory and on disk."""
        user, stored = self.users.get(name), self.stored().get(name)
        assert user is not None and stored is not None
        assert (user.password_hash, user.hashing_algorithm, user.tags) == (
            stored.password_hash, stored.hashing_algorithm, stored.tags,
        )  # fmt: skip
        return user

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns."""
        return self.events.run_until_complete(work)

    def close(self) -> None:
        """End what runs."""
        self.wait(self.chain.stop())
        self.events.close()

    def stored(self) -> UserStore:
        """The users on disk."""
        users = store_in(self._data_dir)
        users.load()
        return users


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    setting = Setting(tmp_path)
    yield setting
    setting.close()


def test_a_user_can_log_in_with_the_password_given(setting: Setting) -> None:
    assert setting.accounts.put_user("u", password=b"secret", tags=("Management", "nope"))

    assert setting.users.authenticate("u", b"secret", False) is setting.user("u")
    assert setting.user("u").tags == ("management",)


def test_a_new_user_needs_a_password_or_a_hash(setting: Setting) -> None:
    with pytest.raises(ValueError, match="Field 'password_hash' or 'password' is required"):
        setting.accounts.put_user("u", tags=())
    assert setting.users.get("u") is None


def test_the_same_password_keeps_its_hash_and_another_changes_it(setting: Setting) -> None:
    """edge-cases.md 307"""
    setting.accounts.put_user("u", password=b"one")
    first = setting.user("u").password_hash

    assert not setting.accounts.put_user("u", password=b"one")
    assert setting.user("u").password_hash == first
    assert not setting.accounts.put_user("u", password=b"two")

    assert setting.user("u").password_hash != first
    assert setting.users.authenticate("u", b"two", False) is not None


def test_a_password_replaces_a_hash_of_another_kind(setting: Setting) -> None:
    md5 = "zJakIZrgmboeSChcJZne1IcMkBo="
    setting.accounts.put_user("u", password_hash=md5, hashing_algorithm=None)
    assert setting.user("u").hashing_algorithm is None

    setting.accounts.put_user("u", password=b"new")

    assert setting.user("u").hashing_algorithm == passwords.ALGORITHMS["scrypt"]
    assert setting.users.authenticate("u", b"new", False) is not None


def test_a_password_can_be_hashed_without_holding_up_the_loop(setting: Setting) -> None:
    fresh = setting.wait(setting.accounts.hash_password(b"new"))
    setting.accounts.put_user("u", password_hash=fresh.text, hashing_algorithm=fresh.algorithm)

    assert fresh.algorithm == "lavinmq_scrypt"
    assert setting.users.authenticate("u", b"new", False) is not None


def test_the_present_password_has_the_present_hash(setting: Setting) -> None:
    setting.accounts.put_user("u", password_hash=GUEST_HASH)

    same = setting.wait(setting.accounts.hash_password(b"guest", "u"))
    other = setting.wait(setting.accounts.hash_password(b"guests", "u"))

    assert same[:2] == (GUEST_HASH, passwords.DEFAULT_ALGORITHM)
    assert other[:2] != same[:2]


@pytest.mark.parametrize("kind", passwords.ALGORITHMS)
def test_the_kind_of_new_hashes_is_configured(setting: Setting, kind: str) -> None:
    setting.config.password_hashing_algorithm = kind

    setting.accounts.put_user("u", password=b"one")
    assert setting.user("u").hashing_algorithm == passwords.ALGORITHMS[kind]
    hashed = setting.wait(setting.accounts.hash_password(b"two"))

    assert hashed.algorithm == passwords.ALGORITHMS[kind]
    assert passwords.verify(b"two", hashed.text, hashed.algorithm)


def test_what_is_not_given_stays(setting: Setting) -> None:
    setting.accounts.put_user("u", password_hash=GUEST_HASH, tags=("monitoring",))

    setting.accounts.put_user("u", tags=("policymaker",))
    assert setting.users.authenticate("u", b"guest", False) is not None
    setting.accounts.put_user("u", password=b"new")

    assert setting.user("u").tags == ("policymaker",)
    assert setting.looked_at == ["u", "u"]


def test_an_empty_hash_forbids_log_in(setting: Setting) -> None:
    """edge-cases.md 308"""
    setting.accounts.put_user("u", password=b"x")
    setting.accounts.put_user("u", password_hash="")

    assert setting.user("u").hashing_algorithm is None
    assert setting.users.authenticate("u", b"", True) is None
    assert setting.stored().authenticate("u", b"", True) is None


def test_tags_are_a_comma_list_in_any_case(setting: Setting) -> None:
    """edge-cases.md 309"""
    setting.accounts.put_user("u", password=b"x", tags=[" Management, ADMINISTRATOR,nope"])

    assert setting.user("u").tags == ("management", "administrator")


@pytest.mark.parametrize(
    "given", [{"password_hash": "zz", "hashing_algorithm": "sha1"}, {"password_hash": "not base64"}]
)
def test_a_hash_that_cannot_be_used_is_refused(setting: Setting, given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="Invalid password hash"):
        setting.accounts.put_user("u", **given)  # type: ignore[arg-type]


def test_the_hidden_user_cannot_be_changed(setting: Setting) -> None:
    with pytest.raises(ValueError, match=DIRECT_USER):
        setting.accounts.put_user(DIRECT_USER, password=b"x")
    assert setting.accounts.delete_users(DIRECT_USER) == []


def test_deleted_users_are_gone_at_once(setting: Setting) -> None:
    """edge-cases.md 305"""
    for name in ("a", "b"):
        setting.accounts.put_user(name, password=b"x")
        setting.accounts.set_permissions(name, "/", ".*", ".*", ".*")
    setting.asked_again.clear()
    logged_in = setting.user("a")

    assert setting.accounts.delete_users("a", "nobody", "b") == ["a", "b"]

    assert not logged_in.has_vhost("/")
    assert [user.name for user in setting.stored().all()] == ["guest"]
    assert (setting.asked_again, setting.forgotten) == ([None], ["a", "b"])
    assert setting.accounts.delete_users("nobody") == []
    assert setting.asked_again == [None]


def test_permissions_are_told_and_stored(setting: Setting) -> None:
    """edge-cases.md 305"""
    setting.accounts.put_user("u", password=b"x")

    assert setting.accounts.set_permissions("u", "v", "", "^r", "")
    assert not setting.accounts.set_permissions("u", "v", "^c", "^r", "")
    stored = setting.stored().get("u")
    assert stored is not None and stored.can_configure("v", "c") and not stored.can_write("v", "c")
    assert setting.accounts.remove_permissions("u", "v")
    assert not setting.accounts.remove_permissions("u", "v")

    assert setting.asked_again == ["v", "v", "v"]
    stored = setting.stored().get("u")
    assert stored is not None and not stored.has_vhost("v")


def test_permissions_need_a_user_and_expressions(setting: Setting) -> None:
    with pytest.raises(KeyError):
        setting.accounts.set_permissions("nobody", "/", "", "", "")
    with pytest.raises(KeyError):
        setting.accounts.remove_permissions("nobody", "/")
    with pytest.raises(ValueError, match="Invalid regular expression"):
        setting.accounts.set_permissions("guest", "/", "[", "", "")
    assert setting.asked_again == []


def test_a_change_that_the_disk_refuses_is_taken_back(setting: Setting, tmp_path: Path) -> None:
    setting.accounts.put_user("u", password=b"x", tags=("monitoring",))
    setting.accounts.set_permissions("u", "v", "^c", "^r", "^w")
    user = setting.user("u")
    setting.asked_again.clear()
    (tmp_path / "users.json.tmp").mkdir()

    with pytest.raises(DefinitionsError, match=r"users\.json"):
        setting.accounts.delete_users("u")

    with pytest.raises(DefinitionsError, match=r"users\.json"):
        setting.accounts.set_permissions("u", "v", "", "", "")
    with pytest.raises(DefinitionsError, match=r"users\.json"):
        setting.accounts.put_user("u", password=b"other", tags=())
    with pytest.raises(DefinitionsError, match=r"users\.json"):
        setting.accounts.put_user("new", password=b"x")

    assert setting.user("u") is user
    assert setting.users.get("new") is None
    assert user.tags == ("monitoring",)
    assert user.can_read("v", "r") and not user.can_read("v", "x")
    assert setting.users.authenticate("u", b"x", False) is user
    assert setting.asked_again[:2] == [None, None]


def test_changes_made_in_the_store_are_told_and_saved_at_once(setting: Setting) -> None:
    setting.accounts.put_user("a", password=b"x")
    setting.users.add("a", "", None, ("monitoring",))
    setting.users.set_permissions("a", "/", "c", "r", "w")

    setting.accounts.changed()

    assert setting.user("a").tags == ("monitoring",)
    assert setting.stored().get("a").has_vhost("/")  # type: ignore[union-attr]
    assert (setting.asked_again, setting.looked_at) == ([None], [None])
