"""Parameters and limits: round trips, LavinMQ's own files, damage."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from lavinmq.errors import DefinitionsError
from lavinmq.policy.limits import UserLimits, VHostLimits
from lavinmq.policy.parameters import Parameter, ParameterStore
from tests.unit.policy.test_policies import recorded


def store_in(directory: Path, is_global: bool = False) -> ParameterStore:
    store = ParameterStore(directory / "parameters.json", is_global)
    store.load()
    return store


def test_any_component_and_any_value_is_kept(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    given = [Parameter("own", "p", {"a": [1, None, "x"]}), Parameter("other", "p", None)]
    store.put(*given)
    store.put(Parameter("own", "gone", 1))
    assert store.delete("own", "gone")
    assert not store.delete("own", "gone")

    again = store_in(tmp_path)

    assert again.all() == given
    assert again.all("own") == given[:1]
    assert again.get("other", "p") == given[1]
    assert again.get("nope", "p") is None


def test_a_parameter_replaces_the_one_of_its_name(tmp_path: Path) -> None:
    store = store_in(tmp_path, is_global=True)
    store.put(Parameter(None, "p", 1))
    store.put(Parameter(None, "p", 2))

    assert store_in(tmp_path, is_global=True).all() == [Parameter(None, "p", 2)]


def test_files_of_lavinmq_are_written_back_unchanged(tmp_path: Path) -> None:
    for number, content in enumerate(recorded("rich", "parameters.json").values()):
        directory = tmp_path / str(number)
        directory.mkdir()
        path = directory / "parameters.json"
        path.write_bytes(content)
        store = store_in(directory, is_global="component" not in json.loads(content)[0])
        path.unlink()

        store.put(*store.all())

        assert path.read_bytes() == content
    assert number == 2


@pytest.mark.parametrize("bad", [1, {}, {"name": "a"}, {"name": 1, "value": 1},
                                 {"name": "a", "value": 1},
                                 {"name": "a", "value": 1, "component": 5}])  # fmt: skip
def test_an_entry_that_is_no_parameter_stays(tmp_path: Path, bad: Any) -> None:
    path = tmp_path / "parameters.json"
    path.write_text(json.dumps([bad, {"name": "b", "value": 1, "component": "c"}]))
    store = store_in(tmp_path)

    store.put(Parameter("c", "new", 1))

    assert [each.name for each in store.all()] == ["b", "new"]
    assert bad in json.loads(path.read_text())


def test_a_parameter_belongs_to_a_component_or_to_all(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has to be one with a component"):
        store_in(tmp_path).put(Parameter(None, "p", 1))
    with pytest.raises(ValueError, match="has to be one with"):
        store_in(tmp_path, is_global=True).put(Parameter("c", "p", 1))


# --- limits -----------------------------------------------------------------------------------


def limits_in(directory: Path) -> VHostLimits:
    limits = VHostLimits(directory / "limits.json")
    limits.load()
    return limits


def test_limits_are_there_again_after_a_restart(tmp_path: Path) -> None:
    limits = limits_in(tmp_path)
    limits.set("max-queues", 3)
    limits.set("max-connections", 0)

    again = limits_in(tmp_path)

    assert (again.max_queues, again.max_connections) == (3, 0)
    assert again.all() == {"max-connections": 0, "max-queues": 3}


def test_a_negative_limit_is_none(tmp_path: Path) -> None:
    limits = limits_in(tmp_path)
    for limit in ("max-queues", "max-connections"):
        limits.set(limit, 5)
    limits.set("max-queues", -1)
    limits.clear("max-connections")

    assert (limits.max_queues, limits.max_connections) == (None, None)
    assert json.loads((tmp_path / "limits.json").read_text()) == {}


@pytest.mark.parametrize(
    ("limit", "value"),
    [("nope", 5), ("max-queues", "5"), ("max-queues", 1.5), ("max-queues", True)],
)
def test_what_is_no_limit_is_refused(tmp_path: Path, limit: str, value: Any) -> None:
    limits = limits_in(tmp_path)

    with pytest.raises(ValueError, match="imit"):
        limits.set(limit, value)
    assert not (tmp_path / "limits.json").exists()


def test_limits_of_lavinmq_are_read(tmp_path: Path) -> None:
    (content,) = recorded("rich", "limits.json").values()
    (tmp_path / "limits.json").write_bytes(content)

    assert limits_in(tmp_path).all() == {"max-connections": 33, "max-queues": 77}


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"max-queues": "5", "max-connections": -2}', '{"max-queues": true}']
)
def test_a_file_that_cannot_be_understood_is_refused(tmp_path: Path, content: str) -> None:
    """LavinMQ rewrites this file in place: a crash can leave it empty."""
    path = tmp_path / "limits.json"
    path.write_text(content)

    with pytest.raises(DefinitionsError, match=rf"{path}: .*; it is left as it is: mend"):
        limits_in(tmp_path)
    assert path.read_text() == content


@pytest.mark.parametrize("content", ["", "[]", '{"a": 5}', '{"a": {"max-channels": "5"}}'])
def test_so_are_limits_of_users_that_cannot_be_understood(tmp_path: Path, content: str) -> None:
    path = tmp_path / "user_limits.json"
    path.write_text(content)

    with pytest.raises(DefinitionsError, match=rf"{path}: .*; it is left as it is: mend"):
        UserLimits(path).load()


def test_what_another_release_may_limit_is_kept(tmp_path: Path) -> None:
    (tmp_path / "limits.json").write_text('{"max-shovels": 3}')
    limits = limits_in(tmp_path)

    limits.set("max-queues", 2)

    assert json.loads((tmp_path / "limits.json").read_text()) == {"max-shovels": 3, "max-queues": 2}


def test_limits_of_users(tmp_path: Path) -> None:
    def load() -> UserLimits:
        limits = UserLimits(tmp_path / "user_limits.json")
        limits.load()
        return limits

    limits = load()
    limits.set("a", "max-connections", 2)
    limits.set("a", "max-channels", 0)
    limits.set("b", "max-channels", 7)
    limits.set("c", "max-channels", -1)
    assert load().all() == {"a": {"max-connections": 2, "max-channels": 0},
                            "b": {"max-channels": 7}}  # fmt: skip

    limits.set("a", "max-channels", -1)
    limits.forget("b")
    limits.forget("nobody")
    with pytest.raises(ValueError, match="Unknown limit"):
        limits.set("a", "max-queues", 1)

    assert load().all() == limits.all() == {"a": {"max-connections": 2}}
    assert limits.of("nobody") == {}


def test_a_disk_that_refuses_leaves_the_limits_as_they_were(tmp_path: Path) -> None:
    limits = limits_in(tmp_path)
    limits.set("max-queues", 1)
    (tmp_path / "limits.json.tmp").mkdir()

    with pytest.raises(DefinitionsError):
        limits.set("max-queues", 2)

    assert limits.max_queues == limits_in(tmp_path).max_queues == 1


def test_a_change_of_a_user_s_limits_makes_nothing_of_those_of_others(tmp_path: Path) -> None:
    """Thousands come with an import, one by one: the file is made of them when it is written."""
    limits = UserLimits(tmp_path / "user_limits.json")
    saves: list[tuple[Callable[[], Iterable[tuple[str, Any]]], Callable[[], object]]] = []
    limits._file.save_table = lambda *given: saves.append(given)  # type: ignore[assignment,func-returns-value]
    for n in range(3):
        limits.set(f"u{n}", "max-channels", n)
    limits.set("u1", "max-connections", 5)
    limits.forget("u0")

    assert dict(saves[0][0]()) == limits.all() == {
        "u1": {"max-channels": 1, "max-connections": 5}, "u2": {"max-channels": 2}
    }  # fmt: skip
    for _, undo in reversed(saves):
        undo()
    assert limits.all() == {}


def test_a_disk_that_refuses_leaves_the_limits_of_users_as_they_were(tmp_path: Path) -> None:
    limits = UserLimits(tmp_path / "user_limits.json")
    limits.set("a", "max-channels", 1)
    (tmp_path / "user_limits.json.tmp").mkdir()

    with pytest.raises(DefinitionsError):
        limits.set("a", "max-channels", 2)
    with pytest.raises(DefinitionsError):
        limits.set("b", "max-channels", 2)
    with pytest.raises(DefinitionsError):
        limits.forget("a")

    assert limits.all() == {"a": {"max-channels": 1}}
