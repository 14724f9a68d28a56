"""Root works beside a broker that somebody has taken over, which reaches nothing of root's."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from lavinmq.cli.ctl import __main__ as ctl
from lavinmq.cli.ctl import api
from lavinmq.cli.ctl.backup_book import Entry, id_of, written
from lavinmq.cli.ctl.owner import own_rights, rights_of_owner
from tests.support.patience import PATIENCE
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can lose its rights")
BROKER = 12345
STRANGER = 12346
WAIT_S = 30.0 * PATIENCE
LARGE = b"1" * (1 << 20)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter, as those of pytest are not."""
    path = Path(tempfile.mkdtemp(dir="/tmp", prefix="as-root-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def data_dir(place: Path) -> Path:
    """An empty one, of the broker's user."""
    path = place / "data"
    path.mkdir(mode=0o700)
    os.chown(path, BROKER, BROKER)
    return path


def as_user(user: int, do: Callable[[], object]) -> int:
    """Do something in a process of a user. Returns: its exit status."""
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            do()
        except BaseException:  # noqa: BLE001
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def restoring(source: str, data_dir: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "lavinmq.cli.ctl", "restore", source, str(data_dir)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def member(name: str, content: bytes | None = None) -> bytes:
    """An entry of an archive; None: a directory."""
    info = tarfile.TarInfo(name)
    if content is None:
        info.type = tarfile.DIRTYPE
        return info.tobuf()
    info.size = len(content)
    return info.tobuf() + content + bytes(-len(content) % 512)


def archive() -> tuple[bytes, bytes]:
    """One with two files, in two parts, each with one of them."""
    last = json.dumps({"files": 2}).encode()
    second = member("data/second", b"2") + member("backup.json", last) + bytes(1024)
    return member("data") + member("data/first", LARGE), second


def owners(path: Path) -> set[tuple[int, int]]:
    found = [each.lstat() for each in path.rglob("*")]
    assert found
    return {(each.st_uid, each.st_gid) for each in found}


def test_root_has_the_rights_of_an_owner_and_no_groups_for_a_time(data_dir: Path) -> None:
    def rights() -> tuple[int, int, list[int]]:
        return os.geteuid(), os.getegid(), os.getgroups()

    before = rights()
    with rights_of_owner(data_dir / "not" / "there"):
        assert rights() == (BROKER, BROKER, [])
        with own_rights():
            assert os.geteuid() == 0
        assert os.geteuid() == BROKER
    assert rights() == before


def test_what_is_restored_is_no_way_to_a_directory_of_root(place: Path, data_dir: Path) -> None:
    victim = place / "of-root"
    victim.mkdir(mode=0o755)
    begin, rest = archive()

    def put_a_link_in_its_place() -> None:
        (folder,) = data_dir.glob(".backup-*")
        folder.rename(data_dir / "moved")
        (folder / "0").mkdir(parents=True)
        (folder / "0/data").symlink_to(victim)

    with restoring("-", data_dir) as process:
        assert process.stdin
        process.stdin.write(begin)
        process.stdin.flush()
        wait_for(lambda: list(data_dir.glob(".backup-*/0/data/first")), "nothing came", WAIT_S)
        assert as_user(BROKER, put_a_link_in_its_place) == 0
        _, said = process.communicate(rest, timeout=WAIT_S)

    assert process.returncode == 1
    assert b"Permission denied" in said
    assert list(victim.iterdir()) == []
    assert owners(data_dir) == {(BROKER, BROKER)}


@pytest.mark.parametrize("kind", ["archive", "folder"])
def test_a_backup_that_is_for_root_alone_becomes_files_of_the_broker(
    place: Path, data_dir: Path, kind: str
) -> None:
    backup = place / "backup"
    if kind == "archive":
        backup.write_bytes(b"".join(archive()))
    else:
        entry = Entry(sha256(LARGE).hexdigest(), len(LARGE), "-")
        book = written({"v/first": entry, "second": Entry(sha256(b"2").hexdigest(), 1, "-")})
        (backup / "data/v").mkdir(parents=True)
        (backup / "data/v/first").write_bytes(LARGE)
        (backup / "data/second").write_bytes(b"2")
        (backup / "files.txt").write_bytes(book)
        (backup / "backup.json").write_text(json.dumps({"files": 2, "book": id_of(book)}))
    backup.chmod(0o600 if kind == "archive" else 0o700)

    with restoring(str(backup), data_dir) as process:
        _, said = process.communicate(timeout=WAIT_S)

    assert process.returncode == 0, said
    assert (data_dir / "second").read_bytes() == b"2"
    assert owners(data_dir) == {(BROKER, BROKER)}


class Answer(io.BytesIO):
    """What a broker sends; in the midst of it the owner of the directory does something."""

    def __init__(self, content: bytes, at: int, do: Callable[[], object]) -> None:
        super().__init__(content)
        self._at, self._do = at, do

    def read(self, n: int | None = -1, /) -> bytes:
        """Some of it."""
        if self.tell() >= self._at:
            self._at = 1 << 62
            with own_rights():
                assert as_user(BROKER, self._do) == 0
        return super().read(n)


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_a_backup_is_no_way_to_a_directory_of_root(
    place: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch, kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Whose directory it is, puts a link where root is writing."""
    victim = place / "of-root"
    victim.mkdir(mode=0o755)
    below = data_dir / "below"
    assert as_user(BROKER, below.mkdir) == 0
    first, second = archive()

    def put_a_link_in_its_place() -> None:
        if kind == "archive":
            below.rename(data_dir / "moved")
            below.symlink_to(victim)
            return
        (folder,) = below.glob("*.partial")
        folder.rename(below / "moved")
        folder.mkdir()
        (folder / "data").symlink_to(victim)

    @contextmanager
    def download(*_: object) -> Iterator[Answer]:
        assert os.geteuid() == 0, "the broker knows root"
        yield Answer(first + second, len(LARGE) // 2, put_a_link_in_its_place)

    monkeypatch.setattr(api.Api, "download", download)
    target = [str(below)] if kind == "folder" else ["--archive", str(below / "tar")]

    assert ctl.main(["--uri", "http://127.0.0.1:1", "backup", *target]) == 1

    assert capsys.readouterr().err.startswith("Error: /")
    assert list(victim.iterdir()) == []
    assert owners(data_dir) == {(BROKER, BROKER)}
    assert os.geteuid() == 0


def test_a_backup_into_the_directory_of_a_user_is_that_users(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where root has made one before, which its owner may not read: nothing is built on it."""
    before = data_dir / "20200101T000000Z"
    before.mkdir(mode=0o700)
    (before / "backup.json").write_text("{}")

    @contextmanager
    def download(*_: object) -> Iterator[io.BytesIO]:
        yield io.BytesIO(b"".join(archive()))

    monkeypatch.setattr(api.Api, "download", download)

    assert ctl.main(["--uri", "http://127.0.0.1:1", "backup", str(data_dir)]) == 0

    assert "20200101T000000Z is not built upon" in capsys.readouterr().err
    (made,) = [each for each in data_dir.iterdir() if each != before]
    assert (made / "data/second").read_bytes() == b"2"
    assert owners(made) == {(BROKER, BROKER)}


def test_definitions_are_read_with_the_rights_of_the_owner(place: Path, data_dir: Path) -> None:
    (data_dir / "vhosts.json").write_text("[]")
    secret = place / "of-root"
    secret.mkdir(mode=0o700)
    (secret / "users.json").write_text('[{"name": "of root"}]')
    (data_dir / "users.json").symlink_to(secret / "users.json")

    done = subprocess.run(
        [sys.executable, "-m", "lavinmq.cli.ctl", "definitions", data_dir],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip

    assert done.returncode == 1
    assert "of root" not in done.stdout + done.stderr


def test_a_socket_of_a_stranger_in_tmp_gets_no_password(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place.chmod(0o1777)
    path = str(place / "lavinmqctl.sock")
    monkeypatch.setattr(api, "CONTROL_PATHS", (f"{place}/none", path))
    monkeypatch.delenv("LAVINMQCTL_HOST", raising=False)
    monkeypatch.delenv("LAVINMQCTL_CONTROL_UNIX_PATH", raising=False)
    with socket.socket(socket.AF_UNIX) as listening:

        def listen() -> None:
            listening.bind(path)
            listening.listen()

        # Who has called listen() is who is asked for.
        assert as_user(STRANGER, listen) == 0
        listening.settimeout(WAIT_S)

        status = ctl.main(["add_user", "admin", "secret"])

        got, _ = listening.accept()
        with got:
            got.settimeout(WAIT_S)
            assert got.recv(1) == b""
    assert status == 1
    assert f"is the socket of the user with the id {STRANGER}" in capsys.readouterr().err
