"""What lavinmqctl makes of an archive that a broker sends, be it one that lies."""

from __future__ import annotations

import fcntl
import io
import json
import os
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.cli.ctl.backup import backup, finished
from lavinmq.cli.ctl.backup_book import Base, Entry
from lavinmq.cli.ctl.backup_tar import PIECE_BYTES, pack, unpack
from lavinmq.cli.ctl.errors import CtlError
from lavinmq.files.backup_names import IDENTITY, KNOWN
from lavinmq.files.gradual import Gradual


def entry(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, **more: str) -> bytes:
    """One entry of an archive."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.pax_headers = kind, len(content), dict(more)
    info.linkname = "/etc/passwd" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
    return info.tobuf(tarfile.PAX_FORMAT) + content + bytes(-len(content) % 512)


def archive(*entries: bytes, n_files: int | None = None) -> io.BytesIO:
    """A whole one."""
    head = entry("data", kind=tarfile.DIRTYPE)
    count = len(entries) if n_files is None else n_files
    last = entry("backup.json", json.dumps({"files": count}).encode())
    return io.BytesIO(b"".join([head, *entries, last, bytes(1024)]))


def test_files_are_written_with_their_hashes_and_holes(tmp_path: Path) -> None:
    content = b"x" + bytes(1_000_000)
    facts, book = unpack(archive(entry("data/a", content), entry("data/b")), tmp_path)

    assert (facts["files"], facts["new_bytes"]) == (2, len(content))
    assert (tmp_path / "data/a").read_bytes() == content
    assert (tmp_path / "data/a").stat().st_blocks * 512 < len(content)
    assert {path: each.size for path, each in book.items()} == {"a": len(content), "b": 0}
    assert len({each.digest for each in book.values()}) == 2


@pytest.mark.parametrize("is_archive", [False, True])
def test_little_of_a_backup_is_in_memory_alone_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_archive: bool
) -> None:
    """A broker on the same file system would wait for it with its next sync."""
    sizes: list[int] = []
    monkeypatch.setattr("os.fdatasync", lambda fd: sizes.append(os.fstat(fd).st_size))
    made = archive(entry("data/a", b"x" * 20_000_000), entry("data/b", b"x" * 1_000_000))
    if is_archive:
        with open(tmp_path / "tar", "wb") as file:
            pack(made, Gradual(file).write, None)
        assert len(sizes) == 21_000_000 // (8 << 20)
    else:
        unpack(made, tmp_path)
        assert sizes[2:] == [20_000_000, 1_000_000]
    assert sizes[0] <= (8 << 20) + PIECE_BYTES
    assert sizes[1] <= 2 * (8 << 20) + PIECE_BYTES


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../x",
        "data/../../x",
        "data//x",
        "data/./x",
        "x",
        "data/a/..",
        "backup.json/x",
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    here = tmp_path / "here"
    here.mkdir()
    with pytest.raises(CtlError, match="outside of it"):
        unpack(archive(entry(name, b"x")), here)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_what_is_no_file_is_refused(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "here").mkdir()
    with pytest.raises(CtlError, match="neither file nor directory"):
        unpack(archive(entry("data/a", kind=kind)), tmp_path / "here")


def test_what_would_grow_without_end_is_refused(tmp_path: Path) -> None:
    deep = "data" + "/x" * 17
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40),
              "GNU.sparse.name": "data/a"}  # fmt: skip
    for number, each in enumerate((entry(deep, kind=tarfile.DIRTYPE),
                                   entry("data/a", b"1\n0\n0\n", **sparse))):  # fmt: skip
        (tmp_path / str(number)).mkdir()
        with pytest.raises(CtlError, match=r"outside of it|neither file nor directory"):
            unpack(archive(each), tmp_path / str(number))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_of_gigabytes_is_not_read(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("data/a")
    info.type, info.size = kind, 8 << 30
    sent = entry("data", kind=tarfile.DIRTYPE) + info.tobuf(tarfile.GNU_FORMAT) + bytes(10 << 10)
    with pytest.raises(CtlError, match="a header of 8589934592 bytes"):
        unpack(io.BytesIO(sent), tmp_path)


def test_a_file_comes_once(tmp_path: Path) -> None:
    with pytest.raises(CtlError, match="twice"):
        unpack(archive(entry("data/a", b"1"), entry("data/a", b"2")), tmp_path)


@pytest.mark.parametrize("identity", ["1.1.1", "2.2.2"])
def test_only_what_is_known_may_come_without_content(tmp_path: Path, identity: str) -> None:
    last, here = tmp_path / "last", tmp_path / "here"
    for each in (last / "data", here):
        each.mkdir(parents=True)
    (last / "data/a").write_bytes(b"kept")
    known = {"a": Entry("digest", 4, "1.1.1")}
    base = Base("last", "id", known, last)
    sent = archive(entry("data/a", **{IDENTITY: identity, KNOWN: "1"}))
    if identity == "1.1.1":
        _, book = unpack(sent, here, base)
        assert book == known
        assert (here / "data/a").stat().st_ino == (last / "data/a").stat().st_ino
    else:
        with pytest.raises(CtlError, match="leaves out a"):
            unpack(sent, here, base)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not whole"),
        (b"{", "not whole"),
        (b"[]", "not whole"),
        (b'{"files": 2}', "has 0 files, not 2"),
        (b"[" * 200_000, "not whole"),
    ],
)
def test_what_says_no_sense_of_itself_is_not_whole(
    tmp_path: Path, content: bytes, says: str
) -> None:
    sent = entry("data", kind=tarfile.DIRTYPE) + entry("backup.json", content) + bytes(1024)
    with pytest.raises(CtlError, match=says):
        unpack(io.BytesIO(sent), tmp_path)


def test_nothing_may_come_behind_the_end(tmp_path: Path) -> None:
    sent = archive(entry("data/a")).getvalue()[:-1024] + entry("data/b") + bytes(1024)
    with pytest.raises(CtlError, match=r"goes on behind backup\.json"):
        unpack(io.BytesIO(sent), tmp_path)


@given(st.data())
def test_a_broken_archive_ends_in_an_error_that_says_so(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(archive(entry("data/a", b"x" * 700), entry("data/b", b"y")).getvalue())
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        del whole[at:]
    else:
        whole[at] ^= data.draw(st.integers(1, 255))
    folder = tmp_path_factory.mktemp("here")
    try:
        _, book = unpack(io.BytesIO(bytes(whole)), folder)
    except (CtlError, OSError):
        return
    assert set(book) == {path.name for path in (folder / "data").iterdir()}


def test_only_whole_folders_count(tmp_path: Path) -> None:
    one, two = "20260101T000000Z", "20260102T000000Z"
    for name in (two, one, "20260103T000000Z.partial", "before-upgrade"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "backup.json").write_text("{}")
    (tmp_path / "20260104T000000Z").mkdir()

    assert [each.name for each in finished(tmp_path)] == [one, two]
    assert finished(tmp_path / "missing") == []


def test_an_archive_that_another_finishes_meanwhile_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have begun to write to one name; who waited for the lock has the other's file open."""
    place, partial = tmp_path / "b.tar", tmp_path / "b.tar.partial"

    def finish(_fd: int, _how: int) -> None:
        partial.write_bytes(b"whole")
        partial.rename(place)

    monkeypatch.setattr(fcntl, "flock", finish)
    options = {"--archive": ""}
    session: Any = SimpleNamespace(
        arguments=[str(place)], options=options, has=options.__contains__, integer=options.get,
        api=None,
    )  # fmt: skip

    with pytest.raises(CtlError, match="another backup is being made"):
        backup(session)

    assert place.read_bytes() == b"whole"
    assert not partial.exists()
