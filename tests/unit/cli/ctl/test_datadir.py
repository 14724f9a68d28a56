"""The definitions of data directories that LavinMQ wrote, read without a broker."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lavinmq.cli.ctl import __main__ as ctl
from lavinmq.cli.ctl.datadir import export
from lavinmq.cli.ctl.errors import CtlError
from lavinmq.fieldtable import FieldTable, Timestamp
from lavinmq.files.definitions import BindingDef, DefinitionsFile, ExchangeDef, QueueDef
from lavinmq.files.vhosts import VHostDef

RECORDED = Path(__file__).parents[3] / "fixtures" / "data-dir"
BUILT_IN = ("", "amq.")


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a bit of everything, which cannot be written."""
    directory = tmp_path_factory.mktemp("rich")
    with tarfile.open(RECORDED / "rich.tar.gz") as archive:
        small = [m for m in archive if m.isfile() and "msgs." not in m.name]
        archive.extractall(directory, small, filter="data")
    return directory


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RECORDED / "rich.json").read_text())
    return content


def ordered(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def test_users_are_exported_with_their_hashes_and_tags_in_a_list(
    rich: Path, manifest: dict[str, Any]
) -> None:
    expected = [
        {**user, "tags": [tag for tag in user["tags"].split(",") if tag]}
        for user in manifest["users"]
    ]

    assert ordered(export(rich)["users"]) == ordered(expected)


def test_permissions_name_the_user(rich: Path, manifest: dict[str, Any]) -> None:
    assert ordered(export(rich)["permissions"]) == ordered(manifest["permissions"])


def test_vhosts_policies_and_global_parameters(rich: Path, manifest: dict[str, Any]) -> None:
    content = export(rich)

    assert [row["name"] for row in content["vhosts"]] == manifest["vhosts"]
    assert ordered(content["policies"]) == ordered(manifest["policies"])
    assert [(row["name"], row["value"]) for row in content["global_parameters"]] == [
        (row["name"], row["value"]) for row in manifest["global_parameters"]
    ]


def test_limits_and_operator_policies_are_parameters(rich: Path, manifest: dict[str, Any]) -> None:
    limits = [
        {"name": "limits", "component": "vhost-limits", **row} for row in manifest["vhost_limits"]
    ]
    operators = [
        {"name": row["name"], "component": "operator_policy", "vhost": row["vhost"],
         "value": {key: row[key] for key in ("pattern", "definition", "priority", "apply-to")}}
        for row in manifest["operator_policies"]
    ]  # fmt: skip

    exported = export(rich)["parameters"]

    assert ordered(exported) == ordered([*manifest["parameters"], *limits, *operators])


def test_queues_and_bindings(rich: Path, manifest: dict[str, Any]) -> None:
    content = export(rich)

    wanted = {
        (row["vhost"], row["name"])
        for row in manifest["queues"]
        if row["durable"] and not row["exclusive"] and not row["name"].startswith("amq.delayed")
    }
    assert {(row["vhost"], row["name"]) for row in content["queues"]} == wanted
    assert ordered(content["bindings"]) == ordered(manifest["bindings"])


def test_exchanges_have_their_type_and_delayed_ones_the_type_they_are_declared_with(
    rich: Path, manifest: dict[str, Any]
) -> None:
    exported = {
        (row["vhost"], row["name"]): (row["type"], row["arguments"].get("x-delayed-type"))
        for row in export(rich)["exchanges"]
    }

    for row in manifest["exchanges"]:
        if row["internal"] or row["name"].startswith("amq."):
            continue
        is_delayed = row["arguments"].get("x-delayed-exchange")
        expected = ("x-delayed-message", row["type"]) if is_delayed else (row["type"], None)
        assert exported[row["vhost"], row["name"]] == expected
    assert ("x-delayed-message", "topic") in exported.values()


def test_nothing_is_written(rich: Path) -> None:
    def state() -> list[tuple[str, int, int]]:
        return sorted(
            (str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in rich.rglob("*")
        )

    before = state()

    export(rich)

    assert state() == before


def test_the_command_prints_indented_json(rich: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl.main(["definitions", str(rich)]) == 0

    output = capsys.readouterr().out
    assert output.startswith('{\n  "lavinmq_version"')
    assert json.loads(output) == export(rich)


def data_dir(path: Path, definitions: Path | None = None) -> Path:
    """A small data directory with one virtual host."""
    (path / "users.json").write_text("[]")
    (path / "vhosts.json").write_text('[{"name": "/"}]')
    directory = path / VHostDef("/").directory
    directory.mkdir()
    return directory


def test_any_argument_becomes_json(tmp_path: Path) -> None:
    file = DefinitionsFile(data_dir(tmp_path) / "definitions.amqp")
    file.load()
    values = {"t": Timestamp(0), "b": b"\xff", "n": None, "f": float("nan"), "l": [1, {"x": True}]}
    file.append_declare_queue(QueueDef("q", arguments=FieldTable(values)))
    file.append_declare_exchange(ExchangeDef("inner", "direct", internal=True))
    file.append_bind(BindingDef("inner", "q", "queue", "k\udcff"))
    file.close()

    content = export(tmp_path)

    assert content["queues"][0]["arguments"] == {
        "t": "1970-01-01T00:00:00Z", "b": "/w==", "n": None, "f": None, "l": [1, {"x": True}],
    }  # fmt: skip
    assert content["exchanges"] == []


def test_a_name_that_is_no_utf8_is_still_json(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = DefinitionsFile(data_dir(tmp_path) / "definitions.amqp")
    file.load()
    file.append_declare_queue(QueueDef("q\udcff"))
    file.close()

    assert ctl.main(["definitions", str(tmp_path)]) == 0

    assert json.loads(capsysbinary.readouterr().out)["queues"][0]["name"] == "q\udcff"


def test_the_readable_part_of_a_damaged_file_is_exported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = data_dir(tmp_path) / "definitions.amqp"
    file = DefinitionsFile(path)
    file.load()
    file.append_declare_queue(QueueDef("before"))
    file.close()
    with path.open("ab") as damaged:
        damaged.write(b"\xff\xff")

    content = export(tmp_path)

    assert [row["name"] for row in content["queues"]] == ["before"]
    assert "2 bytes not read" in caplog.text
    assert os.listdir(path.parent) == ["definitions.amqp"]


@pytest.mark.parametrize(
    ("name", "text"), [("users.json", "{"), ("users.json", "{}"), ("vhosts.json", "[{}]")]
)
def test_a_file_that_makes_no_sense_is_an_error(tmp_path: Path, name: str, text: str) -> None:
    data_dir(tmp_path)
    (tmp_path / name).write_text(text)

    with pytest.raises(CtlError):
        export(tmp_path)


def test_a_directory_of_something_else_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.main(["definitions", str(tmp_path)]) == 1

    assert "is no data directory" in capsys.readouterr().err
