"""Topic permissions: what they allow, and how they are kept beside users.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lavinmq.auth import topics
from lavinmq.auth.topics import FILE_NAME, TopicFile, TopicPermissions, TopicRow
from lavinmq.auth.users import UserStore
from lavinmq.errors import DefinitionsError

ROW = TopicRow("u", "/", "events", "^own\\.", "^a")


def granted(write: str, read: str = "", user: str = "u", vhost: str = "/") -> TopicPermissions:
    """The permissions of a user in a virtual host."""
    return TopicPermissions(user, vhost, write, read)


def store(data_dir: Path) -> UserStore:
    """The users of a data directory, loaded."""
    users = UserStore(data_dir, "guest", "", True)
    users.load()
    return users


@pytest.fixture
def users(tmp_path: Path) -> UserStore:
    """A store with one user, who has a topic permission; saved."""
    users = store(tmp_path)
    users.add("u", "", None)
    users.grant("u", "/")
    users.set_topic_permissions(ROW)
    users.save()
    return users


# --- what they allow --------------------------------------------------------------------------


def test_an_expression_is_searched_anywhere_in_the_key() -> None:
    rules = granted("own", "^a\\.")

    assert rules.can_write("my.own.key") and not rules.can_write("other")
    assert rules.can_read("a.b") and not rules.can_read("b.a.")


def test_the_empty_expression_matches_the_empty_key_alone() -> None:
    for regex in ("", "^$"):
        rules = granted(regex)
        assert rules.can_write("") and not rules.can_write("k")


def test_variables_stand_for_names_whatever_their_characters() -> None:
    rules = granted("^{username}\\.", "^{vhost}-{username}$", user="a.b+", vhost="v*")

    assert rules.can_write("a.b+.x") and not rules.can_write("aXb+.x")
    assert rules.can_read("v*-a.b+") and not rules.can_read("vv-a.b+")


def test_a_client_id_that_there_is_not_matches_nothing() -> None:
    rules = granted("^({username}|{client_id})\\.")

    assert rules.can_write("u.x")
    assert not rules.can_write("{client_id}.x") and not rules.can_write(".x")


@pytest.mark.parametrize(("regex", "is_any"), [(".*", True), ("^.*$", True), ("^own", False)])
def test_some_expressions_are_known_to_allow_every_key(regex: str, is_any: bool) -> None:
    assert granted(regex).is_any_written is is_any


def test_an_expression_that_does_not_compile_is_refused() -> None:
    topics.check("^{username}.{client_id}[a-z]{2}")
    with pytest.raises(ValueError, match="regular expression"):
        topics.check("(")


# --- the store --------------------------------------------------------------------------------


def test_they_outlive_the_broker_in_a_file_of_their_own(users: UserStore, tmp_path: Path) -> None:
    again = store(tmp_path)

    assert list(again.topic_rows()) == [ROW]
    assert json.loads((tmp_path / FILE_NAME).read_bytes()) == [ROW._asdict()]
    entry = json.loads((tmp_path / "users.json").read_bytes())[-1]
    assert set(entry) == {"name", "password_hash", "hashing_algorithm", "tags", "permissions"}


def test_an_exchange_without_an_entry_has_no_rules(users: UserStore) -> None:
    user = users.get("u")
    assert user is not None

    assert user.key_rights("/", "other") is None and user.key_rights("v", "events") is None
    rules = user.key_rights("/", "events")
    assert rules is not None and rules.can_write("own.x") and not rules.can_write("x")


def test_a_deleted_user_takes_them_along(users: UserStore, tmp_path: Path) -> None:
    users.delete("u")
    users.save()
    assert list(store(tmp_path).topic_rows()) == []
    users.add("u", "", None)
    users.save()

    assert list(users.topic_rows()) == list(store(tmp_path).topic_rows()) == []


def test_at_no_moment_a_user_is_stored_without_them(
    users: UserStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is looked at when users.json is about to be replaced."""
    seen: list[tuple[list[str], list[str]]] = []

    def look(source: str, target: str) -> None:
        if target.endswith("users.json"):
            rows = json.loads((tmp_path / FILE_NAME).read_bytes())
            named = [user["name"] for user in json.loads(Path(source).read_bytes())]
            seen.append(([row["user"] for row in rows], named))
        else:
            Path(source).replace(target)

    monkeypatch.setattr("lavinmq.files.datadir.os.rename", look)
    users.add("v", "", None)
    users.set_topic_permissions(ROW._replace(user="v"))
    users.save()
    users.delete("u")
    users.save()
    users.add("u", "", None)
    users.save()

    assert seen == [
        (["u", "v"], ["guest", "u", "v"]),
        (["v", "u"], ["guest", "v"]),
        (["v"], ["guest", "v", "u"]),
    ]


def test_what_cannot_be_saved_is_taken_back_on_both_sides(
    users: UserStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(files: list[tuple[str, bytes]], _changes: object) -> None:
        raise OSError(28, "No space left on device", files[-1][0])

    with monkeypatch.context() as full:
        full.setattr("lavinmq.files.saving.replace_files", refuse)
        for change in (
            lambda: users.set_topic_permissions(ROW._replace(write="all")),
            lambda: users.remove_topic_permissions("u", "/"),
            lambda: users.delete("u"),
        ):
            change()
            with pytest.raises(DefinitionsError, match="No space"):
                users.save()
            assert list(users.topic_rows()) == [ROW]
    users.save()
    assert list(store(tmp_path).topic_rows()) == [ROW]


def rows_of(file: TopicFile) -> list[str]:
    """The exchanges that the file is going to have."""
    return [
        row["exchange"] for _, content in file.changes() for row in json.loads(b"".join(content))
    ]


def test_what_changes_while_the_text_is_made_is_written_next_time(tmp_path: Path) -> None:
    file = TopicFile(tmp_path)
    file.changed()
    steps = file.preparing([ROW])
    next(steps)
    file.changed(going=[ROW._replace(exchange="leaves")])
    for _ in steps:
        pass
    assert rows_of(file) == ["events", "leaves"]

    for _ in file.preparing([ROW._replace(exchange="new")]):
        pass
    assert rows_of(file) == ["new"]
    for _ in file.preparing([ROW]):
        pass
    assert file.changes() == []


def test_a_text_that_was_not_finished_is_made_anew(tmp_path: Path) -> None:
    """A broker that stops saves at once what was being written."""
    file = TopicFile(tmp_path)
    file.changed(going=[ROW._replace(exchange="leaves")])
    next(file.preparing([ROW]))

    for _ in file.preparing([ROW]):
        pass

    assert rows_of(file) == ["events", "leaves"]


def test_a_file_that_cannot_be_understood_lets_nobody_in(tmp_path: Path) -> None:
    store(tmp_path)
    for damaged in ("{", "{}", '"text"', '[{"user": "u"}]'):
        (tmp_path / FILE_NAME).write_text(damaged)
        with pytest.raises(DefinitionsError, match=FILE_NAME):
            store(tmp_path)


def test_a_first_start_takes_over_nothing_of_others(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps([ROW._replace(user="guest")._asdict()]))

    assert list(store(tmp_path).topic_rows()) == list(store(tmp_path).topic_rows()) == []


def test_they_go_with_their_virtual_host_and_one_by_one(users: UserStore) -> None:
    users.set_topic_permissions(ROW._replace(exchange="more"))
    users.set_topic_permissions(ROW._replace(vhost="v"))

    assert users.remove_topic_permissions("u", "/", "events")
    assert not users.remove_topic_permissions("u", "/", "events")
    users.forget_vhost("v")
    assert [row.exchange for row in users.topic_rows()] == ["more"]
    assert users.remove_topic_permissions("u", "/")
    assert list(users.topic_rows()) == []


def test_what_does_not_compile_denies(tmp_path: Path) -> None:
    rows = [ROW._replace(user="guest", write="(")._asdict(), ROW._asdict()]
    store(tmp_path)
    (tmp_path / FILE_NAME).write_text(json.dumps(rows))
    users = store(tmp_path)

    assert [row.user for row in users.topic_rows()] == ["guest"]
    guest = users.get("guest")
    assert guest is not None
    rules = guest.key_rights("/", "events")
    assert rules is not None and not rules.can_write("(") and rules.can_read("a")


def test_a_change_that_cannot_be_is_refused(users: UserStore) -> None:
    with pytest.raises(ValueError, match="regular expression"):
        users.set_topic_permissions(ROW._replace(read="["))
    with pytest.raises(KeyError):
        users.set_topic_permissions(ROW._replace(user="nobody"))
    assert list(users.topic_rows()) == [ROW]
