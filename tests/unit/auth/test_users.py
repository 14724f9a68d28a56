"""Users and users.json: the first start, logging in, permissions, and the file of others."""

import base64
import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lavinmq.auth import passwords
from lavinmq.auth.passwords import DEFAULT_ALGORITHM, PasswordHashError
from lavinmq.auth.topics import TopicRow
from lavinmq.auth.users import DIRECT_USER, User, UserStore
from lavinmq.errors import DefinitionsError

RECORDED = Path(__file__).parents[2] / "fixtures" / "data-dir"
GUEST_HASH = "+pHuxkR9fCyrrwXjOD4BP4XbzO3l8LJr8YkThMgJ0yVHFRE+"


def store_in(data_dir: Path, only_loopback: bool = True) -> UserStore:
    return UserStore(data_dir, "guest", GUEST_HASH, only_loopback)


@pytest.fixture
def store(tmp_path: Path) -> UserStore:
    """A store after the first start."""
    store = store_in(tmp_path)
    store.load()
    return store


def add(store: UserStore, name: str, password: bytes = b"pw", *tags: str) -> User:
    return store.add(name, passwords.hash_password(password), DEFAULT_ALGORITHM, tags)


def recorded(name: str, directory: Path) -> bytes:
    """users.json of a recorded data directory, also unpacked into `directory`."""
    with tarfile.open(RECORDED / f"{name}.tar.gz") as archive:
        (member,) = (m for m in archive if m.name.endswith("users.json"))
        extracted = archive.extractfile(member)
        assert extracted is not None
        content = extracted.read()
    (directory / "users.json").write_bytes(content)
    return content


def test_the_first_start_makes_the_default_user(store: UserStore, tmp_path: Path) -> None:
    user = store.authenticate("guest", b"guest", is_loopback=True)

    assert user is not None
    assert user.tags == ("administrator",)
    assert user.has_vhost("/")
    assert user.can_configure("/", "q") and user.can_read("/", "q") and user.can_write("/", "")


def test_with_another_default_user_there_is_no_guest(tmp_path: Path) -> None:
    """edge-cases.md 15"""
    store = UserStore(tmp_path, "boss", GUEST_HASH, True)
    store.load()

    assert [user.name for user in store.all()] == ["boss"]
    assert store.authenticate("boss", b"guest", is_loopback=True) is not None
    assert store.authenticate("guest", b"guest", is_loopback=True) is None


def test_a_default_password_is_hashed_at_the_first_start_only(tmp_path: Path) -> None:
    UserStore(tmp_path, "boss", GUEST_HASH, True, "first").load()

    store = UserStore(tmp_path, "boss", GUEST_HASH, True, "second")
    store.load()

    assert store.authenticate("boss", b"first", is_loopback=True) is not None
    assert store.authenticate("boss", b"second", is_loopback=True) is None
    assert store.authenticate("boss", b"guest", is_loopback=True) is None


def test_the_file_is_written_as_lavinmq_writes_it(tmp_path: Path) -> None:
    original = tmp_path / "original"
    original.mkdir()
    content = recorded("basic", original)

    store_in(tmp_path).load()

    assert (tmp_path / "users.json").read_bytes() == content


def test_a_file_of_lavinmq_is_written_back_unchanged(tmp_path: Path) -> None:
    content = recorded("rich", tmp_path)
    store = store_in(tmp_path)
    store.load()

    (tmp_path / "users.json").unlink()
    store.save()

    assert (tmp_path / "users.json").read_bytes() == content


def test_users_of_lavinmq_can_log_in(tmp_path: Path) -> None:
    recorded("rich", tmp_path)
    store = store_in(tmp_path)
    store.load()
    known = json.loads((RECORDED / "rich.json").read_text())["passwords"]
    known.pop("u-bcrypt")  # needs a library that not every Python has; see test_passwords

    for name, password in known.items():
        user = store.authenticate(name, (password or "").encode(), is_loopback=False)
        assert (user is not None) == (password is not None), name

    sha512 = store.get("u-sha512")
    assert sha512 is not None
    assert sha512.tags == ("policymaker",)
    assert sha512.can_configure("second/bjbp", "csha512-q")
    assert not sha512.can_configure("second/bjbp", "other")
    assert not sha512.has_vhost("/")


def test_when_definitions_will_be_imported_there_is_no_default_user(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.load(create_default=False)

    assert store.all() == []
    assert json.loads((tmp_path / "users.json").read_text()) == []


@pytest.mark.parametrize(
    ("name", "password"), [("guest", b"wrong"), ("guest", b""), ("nobody", b"guest"), ("", b"")]
)
def test_a_wrong_name_or_password_is_refused(store: UserStore, name: str, password: bytes) -> None:
    assert store.authenticate(name, password, is_loopback=True) is None


def test_the_default_user_may_only_come_from_this_machine(store: UserStore) -> None:
    """edge-cases.md 13"""
    assert store.authenticate("guest", b"guest", is_loopback=False) is None

    store.default_user_only_loopback = False
    assert store.authenticate("guest", b"guest", is_loopback=False) is not None


def test_other_users_may_come_from_anywhere(store: UserStore) -> None:
    user = add(store, "u")

    assert store.authenticate("u", b"pw", is_loopback=False) is user


def test_a_user_without_a_password_cannot_log_in(store: UserStore) -> None:
    store.add("u", "", None)

    assert store.authenticate("u", b"", is_loopback=True) is None


def test_a_hash_that_cannot_be_used_is_refused(store: UserStore) -> None:
    with pytest.raises(PasswordHashError):
        store.add("u", "nonsense", DEFAULT_ALGORITHM)
    assert store.get("u") is None


def test_without_permissions_nothing_is_allowed(store: UserStore) -> None:
    user = add(store, "u")

    assert not user.has_vhost("/")
    assert not (user.can_configure("/", "q") or user.can_read("/", "q") or user.can_write("/", "q"))


def test_changed_permissions_act_on_users_that_are_logged_in(store: UserStore) -> None:
    """edge-cases.md 305"""
    add(store, "u")
    user = store.authenticate("u", b"pw", is_loopback=False)
    assert user is not None

    store.set_permissions("u", "v", "^c", "^r", "^w")
    assert [user.can_configure("v", n) for n in "crw"] == [True, False, False]
    assert [user.can_read("v", n) for n in "crw"] == [False, True, False]
    assert [user.can_write("v", n) for n in "crw"] == [False, False, True]

    store.set_permissions("u", "v", "", "^$", "^new")
    assert not user.can_read("v", "r")
    assert user.can_write("v", "new")


def test_a_deleted_user_loses_its_rights_at_once(store: UserStore) -> None:
    """edge-cases.md 305"""
    user = add(store, "u")
    store.grant("u", "/")

    assert store.delete("u")

    assert not user.has_vhost("/")
    assert not user.can_read("/", "q")
    assert not store.delete("u")


def test_deleting_an_unknown_user_changes_nothing(store: UserStore) -> None:
    """edge-cases.md 305"""
    before = store.epoch

    assert not store.delete("nobody")

    assert store.epoch == before


def test_a_deleted_vhost_is_taken_from_all_users(store: UserStore) -> None:
    user = add(store, "u")
    store.grant("u", "v")
    store.grant("u", "/")

    store.forget_vhost("v")

    assert not user.has_vhost("v")
    assert user.has_vhost("/")


def test_every_change_moves_the_epoch(store: UserStore) -> None:
    """edge-cases.md 305"""
    changes: list[Any] = [
        lambda: add(store, "u"),
        lambda: store.grant("u", "v"),
        lambda: store.set_permissions("u", "w", "", "", ""),
        lambda: store.remove_permissions("u", "w"),
        lambda: store.forget_vhost("v"),
        lambda: store.delete("u"),
    ]
    for change in changes:
        before = store.epoch
        change()
        assert store.epoch > before


def test_permissions_need_a_user_and_valid_expressions(store: UserStore) -> None:
    with pytest.raises(KeyError):
        store.grant("nobody", "/")
    with pytest.raises(ValueError, match="Invalid regular expression"):
        store.set_permissions("guest", "/", "(", ".*", ".*")

    guest = store.get("guest")
    assert guest is not None and guest.can_configure("/", "q")


def test_changes_are_loaded_again_after_saving(store: UserStore, tmp_path: Path) -> None:
    """edge-cases.md 309"""
    add(store, "u", b"pw", "Management", "unknown", "management", " impersonator")
    store.set_permissions("u", "v", "^c", "", ".*")
    store.save()

    again = store_in(tmp_path)
    again.load()

    user = again.authenticate("u", b"pw", is_loopback=False)
    assert user is not None
    assert user.tags == ("management", "impersonator")
    assert user.has_tag("impersonator") and not user.has_tag("administrator")
    assert user.can_configure("v", "c") and not user.can_read("v", "c")
    assert [u.name for u in again.all()] == ["guest", "u"]


def test_a_password_can_be_changed_without_losing_permissions(store: UserStore) -> None:
    add(store, "u")
    store.grant("u", "/")
    add(store, "u", b"new", "monitoring")

    user = store.authenticate("u", b"new", is_loopback=False)

    assert store.authenticate("u", b"pw", is_loopback=False) is None
    assert user is not None and user.has_vhost("/") and user.tags == ("monitoring",)


def test_the_hidden_user_has_all_rights_and_is_never_seen(store: UserStore, tmp_path: Path) -> None:
    password = store.direct_password.encode()
    user = store.authenticate(DIRECT_USER, password, is_loopback=True)
    store.save()

    assert user is store.direct_user
    assert user.has_vhost("any") and user.can_configure("any", "q") and user.can_write("any", "")
    assert store.get(DIRECT_USER) is None
    assert DIRECT_USER not in (tmp_path / "users.json").read_text()
    assert store.authenticate(DIRECT_USER, b"", is_loopback=True) is None
    with pytest.raises(ValueError, match="own user"):
        store.add(DIRECT_USER, "", None)


def test_optional_parts_of_an_entry_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text(
        '[{"name": "a", "password_hash": null}, {"name": "__direct", "password_hash": ""},'
        ' {"name": "b", "password_hash": "", "tags": null, "permissions": {"/": {"read": "x"}}}]'
    )
    store = store_in(tmp_path)
    store.load()

    assert [user.name for user in store.all()] == ["a", "b"]
    user = store.get("b")
    assert user is not None and user.can_read("/", "x") and not user.can_write("/", "x")


@pytest.mark.parametrize("algorithm", [None, "rabbit_password_hashing_md5", "nonsense"])
@pytest.mark.parametrize("hash_", [None, ""])
def test_a_user_without_a_password_stays_one_over_restarts(
    tmp_path: Path, algorithm: str | None, hash_: str | None
) -> None:
    """edge-cases.md 308"""
    entry = {"name": "u", "password_hash": hash_, "hashing_algorithm": algorithm}
    (tmp_path / "users.json").write_text(json.dumps([entry]))
    for _ in range(2):
        store = store_in(tmp_path)
        store.load()
        store.save()

    assert [user.name for user in store.all()] == ["u"]
    assert store.authenticate("u", b"", is_loopback=True) is None


def test_an_md5_hash_without_algorithm_admits_its_password(tmp_path: Path) -> None:
    """edge-cases.md 308"""
    digest = base64.b64encode(b"salt" + hashlib.md5(b"saltpw").digest()).decode()
    entry = {"name": "u", "password_hash": digest, "hashing_algorithm": None}
    (tmp_path / "users.json").write_text(json.dumps([entry]))
    store = store_in(tmp_path)
    store.load()

    assert store.authenticate("u", b"pw", is_loopback=True) is not None
    assert store.authenticate("u", b"other", is_loopback=True) is None


def test_tags_are_read_with_blanks_and_in_any_case(tmp_path: Path) -> None:
    """edge-cases.md 309"""
    tags = " Administrator ,bogus,POLICYMAKER, monitoring"
    entry = {"name": "u", "password_hash": GUEST_HASH, "tags": tags}
    (tmp_path / "users.json").write_text(json.dumps([entry]))
    store = store_in(tmp_path)
    store.load()

    user = store.get("u")

    assert user is not None
    assert user.tags == ("administrator", "policymaker", "monitoring")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[",
        "{}",
        "[" * 100000,
    ],
)
def test_a_file_that_cannot_be_understood_is_named_and_kept(tmp_path: Path, content: str) -> None:
    (tmp_path / "users.json").write_text(content)

    with pytest.raises(DefinitionsError, match=r"users\.json"):
        store_in(tmp_path).load()
    assert (tmp_path / "users.json").read_text() == content


def test_a_pipe_in_place_of_the_file_is_an_error_and_never_blocks(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "users.json")

    with pytest.raises(DefinitionsError, match=r"users\.json: Not a regular file"):
        store_in(tmp_path).load()


@pytest.mark.parametrize(
    "entry",
    [
        "1",
        "null",
        '"name"',
        "{}",
        '{"name": "a"}',
        '{"password_hash": ""}',
        '{"name": 1, "password_hash": ""}',
        '{"name": "a", "password_hash": 5}',
        '{"name": "a", "password_hash": "", "hashing_algorithm": 5}',
        '{"name": "a", "password_hash": "", "tags": ["administrator"]}',
        '{"name": "a", "password_hash": "", "permissions": [1]}',
        '{"name": "a", "password_hash": "", "permissions": {"/": ".*"}}',
        '{"name": "a", "password_hash": "", "permissions": {"/": {"read": 1}}}',
    ],
)
def test_a_bad_entry_is_ignored_kept_and_logged(
    tmp_path: Path, entry: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = {"name": "b", "password_hash": GUEST_HASH, "hashing_algorithm": DEFAULT_ALGORITHM}
    (tmp_path / "users.json").write_text(f"[{entry}, {json.dumps(good)}]")
    store = store_in(tmp_path)

    store.load()
    store.save()

    assert [user.name for user in store.all()] == ["b"]
    assert store.authenticate("b", b"guest", is_loopback=False) is not None
    assert store.authenticate("guest", b"guest", is_loopback=True) is None
    assert json.loads(entry) in json.loads((tmp_path / "users.json").read_text())
    assert "users.json: user 1" in caplog.text


def test_a_number_that_json_does_not_know_can_be_written_again(tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text('[{"name": NaN}]')
    store = store_in(tmp_path)

    store.load()
    store.save()

    assert json.loads((tmp_path / "users.json").read_text()) == [{"name": "NaN"}]


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "users.json").mkdir()
    with pytest.raises(DefinitionsError, match=r"users\.json: Is a directory"):
        store_in(tmp_path).load()

    with pytest.raises(DefinitionsError, match=r"users\.json: No such file or directory"):
        store_in(tmp_path / "absent").load()


@pytest.mark.parametrize(
    ("write", "is_all"), [(".*", True), ("^.*$", True), ("", False), ("a|.*", False), (".+", False)]
)
def test_whoever_sees_the_expression_knows_that_all_may_be_written(
    store: UserStore, write: str, is_all: bool
) -> None:
    user = add(store, "u")
    store.set_permissions("u", "v", "", "", write)

    assert user.can_write_all("v") is is_all
    assert not user.can_write_all("/")
    assert store.direct_user.can_write_all("v")
    store.set_topic_permissions(TopicRow("u", "v", "events", "^own", ".*"))
    assert not user.can_write_all("v")


# --- files that somebody else writes --------------------------------------------------------------


def test_users_follow_a_file_that_somebody_else_writes(store: UserStore, tmp_path: Path) -> None:
    add(store, "stays", b"old", "monitoring")
    add(store, "goes")
    store.save()
    follower = store_in(tmp_path)
    follower.follow(follower.read_anew())
    stays, goes = follower.get("stays"), follower.get("goes")
    assert stays is not None and goes is not None
    add(store, "stays", b"new")
    store.set_permissions("stays", "/", "", "q.*", "")
    store.set_topic_permissions(TopicRow("stays", "/", "amq.topic", "w", "r"))
    store.delete("goes")
    add(store, "comes")
    store.save()

    follower.follow(follower.read_anew())

    assert follower.get("stays") is stays
    assert follower.authenticate("stays", b"new", is_loopback=True) is stays
    assert (stays.tags, stays.can_read("/", "q1"), stays.can_write("/", "q1")) == ((), True, False)
    assert stays.key_rights("/", "amq.topic") is not None
    assert not follower.has(goes)
    assert follower.get("comes") is not None


def test_users_stay_as_they_were_when_that_file_makes_no_sense(
    store: UserStore, tmp_path: Path
) -> None:
    follower = store_in(tmp_path)
    follower.follow(follower.read_anew())
    guest = follower.get("guest")
    (tmp_path / "users.json").write_bytes(b"{")

    with pytest.raises(DefinitionsError):
        follower.follow(follower.read_anew())
    (tmp_path / "users.json").unlink()
    with pytest.raises(DefinitionsError):
        follower.follow(follower.read_anew())

    assert guest is not None
    assert follower.get("guest") is guest
    assert not (tmp_path / "users.json").exists()
