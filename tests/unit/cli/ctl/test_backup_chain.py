"""Increments: what was changed since another backup, and what comes of a chain of them."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lavinmq.backup.archive import Archive
from lavinmq.cli.ctl.backup_book import Base, asked
from lavinmq.cli.ctl.backup_tar import base_of, pack, unpack
from lavinmq.cli.ctl.errors import CtlError
from lavinmq.cli.ctl.restore import _chain
from lavinmq.files.snapshot import Snapshot
from lavinmq.http.api.backup import _parsed

NAMES = ("users.json", "v/definitions.amqp", "v/q/stream", "v/q/x")
LONG_AGO = 1_700_000_000


class Source:
    """A data directory that nobody else changes."""

    def __init__(self, root: Path) -> None:
        self.root = root / "source"
        (self.root / "v/q").mkdir(parents=True)
        self.n_changes = 0

    def change(self, name: str, how: str, data: bytes) -> None:
        """One change of a file, as the broker makes them; it was long ago, but for `busy`."""
        path = self.root / name
        old = path.read_bytes() if path.exists() else b""
        if how == "remove":
            path.unlink(missing_ok=True)
            return
        if how == "replace":
            path.unlink(missing_ok=True)
            path.write_bytes(data)
        else:
            patched = data + old[len(data) :]
            path.touch()
            with path.open("r+b") as file:  # the same file
                file.write({"append": old + data, "busy": old + data, "patch": patched,
                            "cut": old[: len(data)]}[how])  # fmt: skip
                file.truncate()
        self.n_changes += 1
        if how != "busy":
            os.utime(path, (LONG_AGO, LONG_AGO + self.n_changes))

    def sent(self, base: Base | None) -> list[bytes]:
        """What a broker sends, to who has nothing and to who has a backup, of one moment."""
        snapshot = Snapshot(str(self.root))
        snapshot.scan()
        assert snapshot.finish(b"")
        known = {} if base is None else _parsed(asked(base.book))
        try:
            return [b"".join(_read(Archive(snapshot, "n", each, bool))) for each in ({}, known)]
        finally:
            snapshot.release()


def _read(archive: Archive) -> Iterator[bytes]:
    while piece := archive.read():
        yield piece


def packed(sent: bytes, to: Path, base: Base | None = None) -> Base:
    """An archive of what was sent."""
    with to.open("xb") as file:
        pack(io.BytesIO(sent), file.write, base)
    return base_of(to)


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes() if each.is_file() else b"/"
        for each in folder.rglob("*")
    }


changes = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from(["append", "append", "busy", "patch", "cut", "replace", "remove"]),
        st.binary(max_size=600),
    ),
    max_size=6,
)


@settings(max_examples=25)
@given(rounds=st.lists(changes, min_size=2, max_size=4))
def test_a_chain_is_what_a_whole_backup_of_the_last_moment_is(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[tuple[str, str, bytes]]]
) -> None:
    place = tmp_path_factory.mktemp("chain")
    source, base, archives = Source(place), None, []
    for number, each in enumerate(rounds):
        for change in each:
            source.change(*change)
        whole, some = source.sent(base)
        archives.append(place / f"{number}.tar")
        base = packed(some, archives[-1], base)
        for name in ("whole", "restored"):
            shutil.rmtree(place / name, ignore_errors=True)
            (place / name).mkdir()
        _, book = unpack(io.BytesIO(whole), place / "whole")
        _, made = _chain([str(path) for path in archives], place / "restored")
        assert content(made / "data") == content(place / "whole/data")
        assert base.book == book
    if len(archives) > 2:
        (place / "gap").mkdir()
        if base_of(archives[0]).id != base_of(archives[1]).id:  # else nothing is missing
            with pytest.raises(CtlError, match=r"2\.tar: It builds on .* is missing"):
                _chain([str(archives[0]), str(archives[2])], place / "gap")
    shutil.rmtree(place)


def test_only_the_rest_of_a_file_is_sent(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.change("v/q/stream", "append", bytes(range(256)) * 4000)
    source.change("v/q/x", "append", b"settled" * 100_000)
    base = packed(source.sent(None)[0], tmp_path / "0.tar")
    source.change("v/q/stream", "busy", b"new")

    whole, some = source.sent(base)

    assert len(whole) > 1_700_000
    assert len(some) < 20_000
    (tmp_path / "folder").mkdir()
    (tmp_path / "last").mkdir()
    unpack(io.BytesIO((tmp_path / "0.tar").read_bytes()), tmp_path / "last")
    facts, book = unpack(io.BytesIO(some), tmp_path / "folder",
                         base._replace(folder=tmp_path / "last"))  # fmt: skip
    assert facts["new_bytes"] == 3
    made = (tmp_path / "folder/data/v/q/stream").read_bytes()
    assert made == bytes(range(256)) * 4000 + b"new"
    assert book["v/q/stream"].digest == hashlib.sha256(made).hexdigest()


@pytest.fixture
def chain(tmp_path: Path) -> list[Path]:
    """Three archives, each on the one before."""
    source, base, archives = Source(tmp_path), None, []
    for number in range(3):
        source.change("v/q/stream", "append", b"more" * 500)
        archives.append(tmp_path / f"{number}.tar")
        base = packed(source.sent(base)[1], archives[-1], base)
    (tmp_path / "to").mkdir()
    return archives


@pytest.mark.parametrize(
    ("numbers", "says"),
    [([1], "1.tar: It is an increment, and builds on the backup"), ([0, 2], "is missing"),
     ([0, 2, 1], "2.tar: It builds on"), ([0, 0], "It is a whole backup"),
     ([0, 1, 1], "is missing")],
    ids=str,
)  # fmt: skip
def test_a_chain_that_does_not_fit_is_refused_by_name(
    chain: list[Path], tmp_path: Path, numbers: list[int], says: str
) -> None:
    with pytest.raises(CtlError, match=says):
        _chain([str(chain[each]) for each in numbers], tmp_path / "to")


def test_damage_anywhere_in_a_chain_is_found(chain: list[Path], tmp_path: Path) -> None:
    for archive in chain:
        sound = archive.read_bytes()
        at = sound.index(b"moremore") + 1000
        archive.write_bytes(sound[:at] + b"?" + sound[at + 1 :])
        place = tmp_path / f"to/{archive.name}"
        place.mkdir()
        with pytest.raises(CtlError, match="is not as"):
            _chain([str(each) for each in chain], place)
        archive.write_bytes(sound)
    assert (
        _chain([str(each) for each in chain], tmp_path / "to")[0]["since"] == base_of(chain[1]).id
    )


def test_an_increment_that_is_broken_off_is_none_and_the_one_before_is_as_it_was(
    chain: list[Path], tmp_path: Path
) -> None:
    source, base = Source(tmp_path / "again"), base_of(chain[0])
    source.change("v/q/x", "append", b"x" * 3000)
    _, some = source.sent(base)
    for size in (0, 512, 2000, len(some) // 2, len(some) - 1100):
        broken = tmp_path / f"broken-{size}.tar"
        with broken.open("xb") as file, pytest.raises(CtlError, match="not whole"):
            pack(io.BytesIO(some[:size]), file.write, base)
        with pytest.raises(CtlError):
            base_of(broken)
    assert _chain([str(chain[0])], tmp_path / "to")[0]["files"] == 1
