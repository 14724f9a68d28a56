"""Policies: what is one, which one matches, and their file, LavinMQ's own included."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.arguments.keys import Kind
from lavinmq.errors import DefinitionsError
from lavinmq.policy.policies import TARGETS, Policy, PolicyStore

RECORDED = Path(__file__).parents[2] / "fixtures" / "data-dir"


def store_in(directory: Path, is_operator: bool = False) -> PolicyStore:
    name = "operator_policies.json" if is_operator else "policies.json"
    store = PolicyStore(directory / name, "/", is_operator)
    store.load()
    return store


def recorded(archive: str, name: str) -> dict[str, bytes]:
    """The files of that name in a recorded data directory, by their paths in it."""
    found = {}
    with tarfile.open(RECORDED / f"{archive}.tar.gz") as tar:
        for member in tar:
            if member.name.endswith(f"/{name}"):
                extracted = tar.extractfile(member)
                assert extracted is not None
                found[member.name] = extracted.read()
    return found


# --- one policy -------------------------------------------------------------------------------


def test_a_policy_has_defaults() -> None:
    policy = Policy.of("p", "^q", {"max-length": 5})

    assert policy.to_json("v") == {
        "name": "p", "vhost": "v", "pattern": "^q", "apply-to": "all", "priority": 0,
        "definition": {"max-length": 5},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ({"max-length": "5"}, "Policy definition 'max-length' should be of type Int"),
        ({"max-length": 1.5}, "Policy definition 'max-length' should be of type Int"),
        ({"expires": True}, "Policy definition 'expires' should be of type Int"),
        ({"consumer-timeout": "1"}, "Policy definition 'consumer-timeout' should be of type Int"),
        ({"overflow": 5}, "Policy definition 'overflow' should be of type String"),
        ({"unknown": 5}, "Policy definition 'unknown' should be of type String"),
        ({"delayed-message": 1}, "Policy definition 'delayed-message' should be of type String"),
        ({"max-lenght": 1}, "'max-lenght' is unknown, did you mean 'max-length'"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(definition: dict[str, Any], text: str) -> None:
    for is_operator in (False, True):
        with pytest.raises(ValueError, match=text):
            Policy.of("p", "", definition, is_operator=is_operator)


def test_what_a_user_may_say() -> None:
    """amqp.md 22.7, 22.8"""
    definition = {
        "unknown": "kept", "max-age": "1D", "delayed-message": True, "consumer-timeout": 5,
        "max-length": 1,
    }  # fmt: skip

    policy = Policy.of("p", "", definition, -128, "streams")

    assert policy.definition == definition
    assert "unknown" not in policy.usable


@pytest.mark.parametrize("key", ["overflow", "delivery-limit", "max-age", "unknown"])
def test_an_operator_policy_has_four_keys(key: str) -> None:
    value = 5 if key == "delivery-limit" else "x"
    with pytest.raises(ValueError, match=f"Operator policy definition '{key}' is not supported"):
        Policy.of("p", "", {"max-length": 1, key: value}, is_operator=True)

    Policy.of("p", "", dict.fromkeys(("expires", "message-ttl", "max-length",
                                      "max-length-bytes"), 1), is_operator=True)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("[", {}), "Invalid regular expression"),
        (("", {}, 128), "priority"),
        (("", {}, -129), "priority"),
        (("", {}, 0, "nope"), "Unknown apply-to 'nope'"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Policy.of("p", *arguments)


def test_what_each_target_covers() -> None:
    """edge-cases.md 291"""
    covered = {
        target: {kind for kind in Kind if Policy.of("p", "q", {}, 0, target).matches("aqa", kind)}
        for target in TARGETS
    }

    assert covered == {
        "all": {Kind.QUEUE, Kind.STREAM, Kind.EXCHANGE},
        "queues": {Kind.QUEUE, Kind.STREAM},
        "exchanges": {Kind.EXCHANGE},
        "classic_queues": {Kind.QUEUE},
        "quorum_queues": {Kind.QUEUE},
        "streams": {Kind.STREAM},
    }
    assert not Policy.of("p", "^q", {}).matches("aqa", Kind.QUEUE)


# --- the store --------------------------------------------------------------------------------


def test_a_policy_replaces_the_one_of_its_name(tmp_path: Path) -> None:
    """edge-cases.md 288"""
    store = store_in(tmp_path)
    store.put(Policy.of("p", "a", {"max-length": 1}, 5, "queues"))
    store.put(Policy.of("p", "b", {}, 0, "exchanges"))

    assert [policy.pattern for policy in store.all()] == ["b"]
    assert store.match("a", Kind.QUEUE) is None
    assert store.match("b", Kind.EXCHANGE) is store.get("p")


def test_the_higher_priority_wins_and_may_be_negative(tmp_path: Path) -> None:
    """edge-cases.md 290"""
    store = store_in(tmp_path)
    store.put(
        Policy.of("low", "", {}, -5), Policy.of("high", "^q", {}, 7), Policy.of("lower", "", {}, -9)
    )

    def matching(name: str) -> str:
        found = store.match(name, Kind.QUEUE)
        return found.name if found else ""

    assert (matching("q"), matching("x")) == ("high", "low")
    assert store.delete("high") and store.delete("low")
    assert matching("q") == "lower"


@given(st.permutations(["a", "b", "c", "B"]))
def test_of_equal_priorities_the_first_name_counts(names: list[str]) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as directory:
        store = store_in(Path(directory))
        store.put(*(Policy.of(name, "", {}) for name in names))

        found = store.match("q", Kind.QUEUE)

    assert found is not None
    assert found.name == "B"


def test_policies_are_there_again_after_a_restart(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.put(Policy.of("p", r"ü\.", {"max-length": 5, "x": "y"}, -3, "queues"))
    store.put(Policy.of("gone", "", {}))
    assert store.delete("gone")
    assert not store.delete("gone")

    (again,) = store_in(tmp_path).all()

    assert again.to_json("/") == store.all()[0].to_json("/")
    assert again.usable == {"max-length": 5}


@pytest.mark.parametrize("name", ["policies.json", "operator_policies.json"])
def test_files_of_lavinmq_are_written_back_unchanged(tmp_path: Path, name: str) -> None:
    for member, content in recorded("rich", name).items():
        vhost = json.loads(content)[0]["vhost"]
        path = tmp_path / Path(member).parent.name / name
        path.parent.mkdir()
        path.write_bytes(content)
        store = PolicyStore(path, vhost, name.startswith("operator"))
        store.load()
        path.unlink()

        store.put(*store.all())

        assert path.read_bytes() == content


def test_a_cut_file_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    """Messages that die would be gone where the policies say where to."""
    (content,) = recorded("damaged-policies-json", "policies.json").values()
    path = tmp_path / "policies.json"
    path.write_bytes(content)

    with pytest.raises(DefinitionsError, match=rf"{path}: not JSON: .*; it is left as it is: mend"):
        store_in(tmp_path)
    assert path.read_bytes() == content


BAD_ENTRIES = [
    1, None, {}, {"name": "a", "pattern": ""}, {"name": 1, "pattern": "", "definition": {}},
    {"name": "a", "pattern": "[", "definition": {}},
    {"name": "a", "pattern": "", "definition": []},
    {"name": "a", "pattern": "", "definition": {}, "priority": "5"},
    {"name": "a", "pattern": "", "definition": {}, "priority": 500},
    {"name": "a", "pattern": "", "definition": {}, "apply-to": "nope"},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_ENTRIES)
def test_an_entry_that_is_no_policy_is_refused_by_its_number(tmp_path: Path, bad: Any) -> None:
    good = {"name": "good", "pattern": "", "definition": {"max-length": 1}}
    (tmp_path / "policies.json").write_text(json.dumps([good, bad]))

    with pytest.raises(DefinitionsError, match=r"policies\.json: entry 2: .*; it is left as it is"):
        store_in(tmp_path)


def test_values_that_are_not_usable_are_named_once_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """edge-cases.md 296"""
    definition = {"max-length": "5", "expires": [1], "overflow": 3, "message-ttl": 7}
    entry = {"name": "p", "pattern": "", "definition": definition}
    (tmp_path / "policies.json").write_text(json.dumps([entry]))

    (policy,) = store_in(tmp_path).all()

    assert policy.usable == {"message-ttl": 7}
    assert policy.definition == definition
    assert [r.message.split(": ")[1].split(" ")[0] for r in caplog.records] == [
        "max-length", "expires", "overflow",
    ]  # fmt: skip


def test_an_operator_policy_from_a_file_acts_by_its_four_keys_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    definition = {"max-length": 5, "delivery-limit": 1}
    entry = {"name": "p", "pattern": "", "definition": definition}
    (tmp_path / "operator_policies.json").write_text(json.dumps([entry]))
    store = store_in(tmp_path, is_operator=True)

    policy = store.get("p")
    assert store.usable(policy) == {"max-length": 5}
    assert store.usable(None) == {}
    assert policy is not None and policy.without_effect() == []
    assert policy.without_effect(is_operator=True) == ["delivery-limit"]
    assert [record.message for record in caplog.records] == [
        "policy 'p' of vhost '/': no effect here of delivery-limit"
    ]


def test_a_disk_that_refuses_changes_nothing(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.put(Policy.of("p", "", {}))
    (tmp_path / "policies.json.tmp").mkdir()

    with pytest.raises(DefinitionsError, match=r"policies\.json"):
        store.put(Policy.of("new", "", {}))
    with pytest.raises(DefinitionsError, match=r"policies\.json"):
        store.delete("p")

    assert [policy.name for policy in store.all()] == ["p"]
    assert [policy.name for policy in store_in(tmp_path).all()] == ["p"]
