"""The data directory: lock, schema version, atomic files, process id file."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lavinmq.files.changes import Changes
from lavinmq.files.datadir import DataDir, DataDirError, PidFile
from lavinmq.files.saving import encoded, json_text
from lavinmq.files.whole import write_atomic

VHOST = "42099b4af021e53fd8fd4e056c2568d7c2e3ffa8"
QUEUE = "9658403816409e66eba2175f8eff8b53a9681573"
DEADLINE_S = 20.0

HOLDER = f"PID {os.getpid()} @ {socket.gethostname()}"


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, or fail after the deadline."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.005)


def waits(caplog: pytest.LogCaptureFixture) -> bool:
    """Return whether somebody was logged to wait for the lock."""
    return any("is locked by" in message for message in caplog.messages)


# --- creation and schema version


def test_a_missing_directory_is_created_with_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"

    with DataDir(str(path)):
        assert (path / "schema_version").read_text() == "4"
        assert path.stat().st_mode & 0o007 == 0


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize(("access", "wanted"), [("owner", 0o700), ("group", 0o750)])
def test_a_directory_is_made_for_those_who_may_look_into_it(
    tmp_path: Path, access: str, wanted: int
) -> None:
    with DataDir(str(tmp_path / "new"), access=access):
        assert mode(tmp_path / "new") == wanted
        assert mode(tmp_path / "new" / "schema_version") & 0o027 == 0


@pytest.mark.parametrize(("access", "wanted"), [("owner", 0o2700), ("group", 0o2750)])
def test_an_open_directory_is_mended_and_that_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, access: str, wanted: int
) -> None:
    caplog.set_level(logging.INFO)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    path = tmp_path / "data"
    with DataDir(str(path)):
        (path / "users.json").write_text("[]")
        (path / "v").mkdir()
        (path / "link").symlink_to(elsewhere)
    for each, given in (("users.json", 0o664), ("v", 0o755)):
        (path / each).chmod(given)
    elsewhere.chmod(0o646)
    path.chmod(0o2777)

    with DataDir(str(path), access=access), DataDir(str(path), access=access, lock=False):
        pass

    assert mode(path) == wanted
    assert (mode(path / "users.json"), mode(path / "v")) == (0o640, 0o750)
    assert mode(elsewhere) == 0o646
    assert caplog.text.count("had mode 2777, now") == 1
    assert "2 entries in it were open to others" in caplog.text


def test_a_directory_stays_open_if_the_operator_wants_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o755)

    with DataDir(str(tmp_path), access="keep"):
        pass

    assert mode(tmp_path) == 0o755
    assert "mode" not in caplog.text


def test_a_directory_with_other_things_in_it_is_not_closed_to_their_owners(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "thesis.tex").write_text("")
    tmp_path.chmod(0o755)

    with DataDir(str(tmp_path)):
        pass

    assert mode(tmp_path) == 0o755
    assert "has mode 755 and other things in it" in caplog.text


def test_a_mode_that_cannot_be_changed_is_no_reason_not_to_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str, mode: int) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", path)

    tmp_path.chmod(0o770)
    monkeypatch.setattr(os, "chmod", refused)

    with DataDir(str(tmp_path)):
        pass

    assert "has mode 770, which cannot be changed to 700: Operation not permitted" in caplog.text


def test_a_directory_of_the_present_version_is_opened_unchanged(tmp_path: Path) -> None:
    (tmp_path / "schema_version").write_text("4\n")

    with DataDir(str(tmp_path)):
        assert (tmp_path / "schema_version").read_text() == "4\n"


@pytest.mark.parametrize("version", ["", "\n", "\0\0"])
def test_a_version_file_that_a_crash_left_empty_is_like_none(tmp_path: Path, version: str) -> None:
    (tmp_path / "schema_version").write_text(version)

    with DataDir(str(tmp_path)):
        assert (tmp_path / "schema_version").read_text() == "4"


def test_an_empty_version_file_does_not_hide_an_old_format(tmp_path: Path) -> None:
    (tmp_path / "schema_version").write_text("")
    (tmp_path / ("a" * 40)).mkdir()
    (tmp_path / ("a" * 40) / "msgs.0000000001").write_bytes(b"")

    with pytest.raises(DataDirError, match="before version 4"):
        DataDir(str(tmp_path)).open()


@pytest.mark.parametrize("name", ["schema_version", ".lock"])
def test_a_pipe_in_place_of_a_small_file_is_an_error_and_never_blocks(
    tmp_path: Path, name: str
) -> None:
    os.mkfifo(tmp_path / name)

    with pytest.raises(DataDirError, match=str(tmp_path)):
        DataDir(str(tmp_path)).open()


@pytest.mark.parametrize("version", ["3", "5", "four", "4 4", "4" * 5000])
def test_another_version_is_an_error_that_names_file_and_value(
    tmp_path: Path, version: str
) -> None:
    (tmp_path / "schema_version").write_text(version)

    with pytest.raises(DataDirError) as raised:
        DataDir(str(tmp_path)).open()

    assert f"{str(tmp_path / 'schema_version')!r} says '{version[:50]}" in str(raised.value)
    assert len(str(raised.value)) < 200 + len(str(tmp_path))


@pytest.mark.parametrize("name", [f"{VHOST}/msgs.0000000001", f"{VHOST}/{QUEUE}/enq"])
def test_a_directory_of_an_older_format_asks_for_migration_and_stays_as_it_is(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "vhosts.json").write_text("[]")
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    file.write_text("x")

    with pytest.raises(DataDirError, match="before version 4") as raised:
        DataDir(str(tmp_path)).open()

    assert repr(str(file)) in str(raised.value)
    assert not (tmp_path / "schema_version").exists()


def test_a_directory_without_version_but_of_the_present_format_gets_one(tmp_path: Path) -> None:
    (tmp_path / "vhosts.json").write_text("[]")
    (tmp_path / VHOST / QUEUE).mkdir(parents=True)
    (tmp_path / VHOST / QUEUE / "msgs.0000000001").write_text("x")

    with DataDir(str(tmp_path)):
        assert (tmp_path / "schema_version").read_text() == "4"


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")

    with pytest.raises(DataDirError, match="is no directory"):
        DataDir(str(path)).open()


def test_a_failed_open_releases_the_lock(tmp_path: Path) -> None:
    (tmp_path / "schema_version").write_text("9")
    with pytest.raises(DataDirError):
        DataDir(str(tmp_path)).open()
    (tmp_path / "schema_version").write_text("4")

    with DataDir(str(tmp_path)):
        assert (tmp_path / ".lock").read_text() == HOLDER


# --- what a person has to mend


def refused(path: Path, code: int, where: Path, monkeypatch: pytest.MonkeyPatch) -> DataDirError:
    """The error when the system refuses to open a place."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code), str(where))

    monkeypatch.setattr(DataDir, "_create", refuse)
    with pytest.raises(DataDirError) as raised:
        DataDir(str(path)).open()
    return raised.value


def test_a_place_that_the_unit_forbids_is_named_with_the_lines_that_allow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refused(tmp_path, errno.EROFS, tmp_path / ".lock", monkeypatch)

    assert f"{str(tmp_path / '.lock')!r}: Read-only file system" in str(error)
    assert f"`systemctl edit lavinmq` with `ReadWritePaths={tmp_path}` below `[Service]`" in str(
        error
    )
    assert "install" not in str(error)
    assert error.exit_code == 78


def test_a_directory_that_the_unit_does_not_let_be_made_is_to_be_made_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new"

    error = refused(path, errno.EROFS, path, monkeypatch)

    owner = f"-o {os.geteuid()} -g {os.getegid()}"
    assert f"`install -d {owner} {path}`, then `systemctl edit" in str(error)


def test_a_home_directory_that_the_unit_hides_needs_another_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0)

    error = refused(home / "mq", errno.EACCES, home / "mq", monkeypatch)

    assert f"`ReadWritePaths={home}/mq` and `ProtectHome=no`" in str(error)


def test_a_directory_of_somebody_else_is_told_with_both_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o750)
    here = os.stat(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 0)

    error = refused(tmp_path, errno.EACCES, tmp_path / ".lock", monkeypatch)

    assert (
        f"{str(tmp_path)!r} belongs to user {here.st_uid} and group {here.st_gid}, with mode 750;"
        " the broker runs as user 1000 and group 0." in str(error)
    )
    assert str(error).endswith(f"`chown -R 1000:0 {tmp_path}`")
    assert error.exit_code == 78


@pytest.mark.parametrize("below", ["", "/data"])
def test_a_file_in_the_place_of_the_directory_is_for_a_person(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("x")

    with pytest.raises(DataDirError) as raised:
        DataDir(f"{tmp_path}/file{below}").open()

    assert f"'{tmp_path}/file" in str(raised.value)
    assert "irectory" in str(raised.value)
    assert raised.value.exit_code == 78
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize("name", [".lock", "schema_version"])
def test_a_directory_in_the_place_of_a_file_is_for_a_person(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()

    with pytest.raises(DataDirError, match=name) as raised:
        DataDir(str(tmp_path)).open()

    assert raised.value.exit_code == 78


def test_root_on_the_directory_of_another_user_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.stat(tmp_path)
    found = os.stat_result((*here[:4], 4321, *here[5:]))
    real = os.stat
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        os, "stat",
        lambda path, **how: found if path == str(tmp_path) else real(path, **how),
    )  # fmt: skip

    with DataDir(str(tmp_path), access="keep"):
        pass

    (line,) = [line for line in caplog.messages if "belongs to" in line]
    assert line.startswith(f"Data directory {tmp_path} belongs to user 4321, and this broker runs")
    assert line.endswith(f"`chown -R 4321 {tmp_path}`")


def test_a_user_on_a_directory_of_its_own_is_not_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with DataDir(str(tmp_path)):
        pass

    assert "belongs to" not in caplog.text


def test_what_may_pass_by_itself_is_an_ordinary_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refused(tmp_path, errno.ENOSPC, tmp_path / ".lock", monkeypatch)

    assert str(error) == f"Data directory: {str(tmp_path / '.lock')!r}: No space left on device"
    assert error.exit_code == 1


def test_another_version_does_not_get_better_by_another_start(tmp_path: Path) -> None:
    (tmp_path / "schema_version").write_text("9")

    with pytest.raises(DataDirError) as raised:
        DataDir(str(tmp_path)).open()

    assert raised.value.exit_code == 78


# --- lock


def test_the_lock_names_its_holder_and_is_emptied_on_release(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    lock.write_text("PID 1 @ long-gone-host-with-a-long-name")

    with DataDir(str(tmp_path)):
        assert lock.read_text() == HOLDER

    assert lock.read_text() == ""


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    directory = DataDir(str(tmp_path))
    directory.open()

    directory.close()
    directory.close()

    assert (tmp_path / ".lock").read_text() == ""


def test_a_lock_held_by_another_is_an_error_when_told_not_to_wait(tmp_path: Path) -> None:
    with DataDir(str(tmp_path)):
        second = DataDir(str(tmp_path), wait=False)
        with pytest.raises(DataDirError, match=f"is locked by PID {os.getpid()} @ "):
            second.open()

    with second:
        assert (tmp_path / ".lock").read_text().startswith("PID ")


def test_closing_unlocks_even_if_a_forked_child_still_has_the_descriptor(tmp_path: Path) -> None:
    first = DataDir(str(tmp_path))
    first.open()
    inherited = os.dup(first._lock_fd)

    first.close()

    with DataDir(str(tmp_path), wait=False):
        os.close(inherited)


def test_the_lock_can_be_left_out(tmp_path: Path) -> None:
    with DataDir(str(tmp_path)), DataDir(str(tmp_path), lock=False):
        assert (tmp_path / ".lock").read_text() == HOLDER

    with DataDir(str(tmp_path / "other"), lock=False):
        assert not (tmp_path / "other" / ".lock").exists()


def test_a_second_one_names_the_holder_and_waits_until_it_is_released(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = DataDir(str(tmp_path)), DataDir(str(tmp_path))
    first.open()
    opened = threading.Event()
    waiter = threading.Thread(target=lambda: (second.open(), opened.set()), daemon=True)

    waiter.start()
    wait_until(lambda: waits(caplog))
    assert not opened.is_set()
    first.close()

    assert opened.wait(DEADLINE_S)
    waiter.join(DEADLINE_S)
    assert any(f"is locked by {HOLDER}" in message for message in caplog.messages)
    assert {record.name for record in caplog.records} == {"lmq.data_dir_lock"}
    assert (tmp_path / ".lock").read_text() == HOLDER
    second.close()


WAITER = """
import sys
from lavinmq.process import log
from lavinmq.files.datadir import DataDir, StoppedWaiting
log.setup("info", None, {})
try:
    DataDir(sys.argv[1]).open()
except StoppedWaiting:
    sys.exit(17)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_waiting_for_the_lock_ends_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with (
        DataDir(str(tmp_path)),
        subprocess.Popen(
            [sys.executable, "-c", WAITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        assert f"is locked by {HOLDER}" in process.stdout.readline()
        # The line is written just before the process is ready for signals and blocks.
        wait_until(lambda: blocked_in_flock(process.pid))
        process.send_signal(number)

        assert process.wait(DEADLINE_S) == 17
        assert (tmp_path / ".lock").read_text() == HOLDER


def blocked_in_flock(pid: int) -> bool:
    """Return whether the process waits for a lock, as the kernel's list of locks shows."""
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if words[1] == "->" and words[2] == "FLOCK" and words[5] == str(pid):
            return True
    return False


# --- atomic files


def save(path: str, value: object) -> None:
    """Save a value as the broker saves its small files."""
    write_atomic(path, encoded("".join(json_text(value))), Changes())


def test_json_is_written_indented_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "users.json"

    save(str(path), [{"name": "ж"}])

    assert path.read_text(encoding="utf-8") == '[\n  {\n    "name": "ж"\n  }\n]'
    assert os.listdir(tmp_path) == ["users.json"]
    assert path.stat().st_mode & 0o777 == 0o640 & ~current_umask()


def current_umask() -> int:
    """Return the umask of this process."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("Umask:")
    )
    return int(line.split()[1], 8)


def test_a_longer_leftover_temporary_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.json.tmp").write_text("x" * 1000)

    save(str(tmp_path / "a.json"), {"a": 1})

    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}


@pytest.mark.parametrize("text", ["\ud800", "\udc80", "ж\udfff", "\U0001f407"])
def test_half_a_surrogate_pair_is_written_and_read_again(tmp_path: Path, text: str) -> None:
    """It has no UTF-8; JSON bodies may hold it in any name."""
    path = tmp_path / "a.json"

    save(str(path), {text: [text, "ж"]})

    assert json.loads(path.read_bytes()) == {text: [text, "ж"]}


@pytest.mark.parametrize("value", [{"a": object()}, {"a": float("nan")}])
def test_what_json_cannot_hold_leaves_the_old_file(tmp_path: Path, value: object) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    with pytest.raises((TypeError, ValueError)):
        save(str(path), value)

    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failing_sync_leaves_the_old_file_and_gives_the_space_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OSError, match="No space"):
        save(str(path), {})

    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_file_and_directory_are_synced_around_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def record_sync(fd: int) -> None:
        steps.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{fd}'))}")
        fsync(fd)

    def record_rename(source: str, target: str) -> None:
        steps.append(f"rename {os.path.basename(source)} {os.path.basename(target)}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "rename", record_rename)

    write_atomic(str(tmp_path / "a"), b"content", Changes())

    assert steps == ["sync a.tmp", "rename a.tmp a", f"sync {tmp_path.name}"]


def test_a_file_in_the_current_directory_needs_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    write_atomic("a", b"content", Changes())

    assert (tmp_path / "a").read_bytes() == b"content"


# --- process id file


def test_the_process_id_is_written_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    pidfile = PidFile(str(path))

    assert pidfile.write()
    assert path.read_text() == f"{os.getpid()}\n"
    pidfile.remove()
    pidfile.remove()

    assert not path.exists()


def ended_process() -> int:
    """Return the id of a process that no longer exists."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("content", ["", "\n", "own", "ended", "ended\n\n", "9999999999"])
def test_a_stale_id_is_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "pid"
    text = content.replace("own", str(os.getpid())).replace("ended", str(ended_process()))
    path.write_text(text)
    pidfile = PidFile(str(path))

    assert pidfile.write()

    assert path.read_text() == f"{os.getpid()}\n"
    pidfile.remove()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("1", "process 1 is alive"),
        ("garbage", "'garbage' instead of a process id"),
        ("-5", "'-5' instead of a process id"),
        ("99999999999", "instead of a process id"),
    ],
)
def test_a_live_id_and_garbage_are_refused_logged_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str, problem: str
) -> None:
    path = tmp_path / "pid"
    path.write_text(content)
    pidfile = PidFile(str(path))

    assert not pidfile.write()
    pidfile.remove()

    assert path.read_text() == content
    assert problem in caplog.text
    assert caplog.records[0].levelno == logging.ERROR


def test_a_file_locked_by_another_process_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pid"
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        assert not PidFile(str(path)).write()

    assert "locked by another process" in caplog.text


def test_a_path_that_cannot_be_written_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not PidFile(str(tmp_path / "none" / "pid")).write()

    assert "No such file or directory" in caplog.text


# --- the mark of an orderly stop


def stop_in_order(path: Path) -> None:
    with DataDir(str(path)) as held:
        held.stopped()


def was_clean(path: Path, **options: bool) -> bool:
    with DataDir(str(path), **options) as held:
        assert not (path / "clean_stop").exists()
        return held.is_clean


def test_an_orderly_stop_is_known_to_the_next_start_alone(tmp_path: Path) -> None:
    assert not was_clean(tmp_path)
    stop_in_order(tmp_path)

    assert was_clean(tmp_path)
    assert not was_clean(tmp_path)


def test_without_a_lock_it_is_known_too(tmp_path: Path) -> None:
    with DataDir(str(tmp_path), lock=False) as held:
        held.stopped()
    assert not (tmp_path / ".lock").exists()

    assert was_clean(tmp_path, lock=False)
    assert not was_clean(tmp_path, lock=False)


def test_a_stop_counts_for_nothing_when_somebody_has_locked_the_directory_since(
    tmp_path: Path,
) -> None:
    stop_in_order(tmp_path)
    time_ns = (tmp_path / ".lock").stat().st_mtime_ns + 1
    os.utime(tmp_path / ".lock", ns=(time_ns, time_ns))

    assert not was_clean(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0\0\0\0", b"1", b"none\n"])
def test_a_mark_that_is_none_counts_for_nothing(tmp_path: Path, content: bytes) -> None:
    stop_in_order(tmp_path)
    (tmp_path / "clean_stop").write_bytes(content)

    assert not was_clean(tmp_path)


def test_a_stop_that_cannot_leave_its_mark_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with DataDir(str(tmp_path)) as held:
        held.stopped()
        (tmp_path / "clean_stop.tmp").mkdir()

    assert "No mark of an orderly stop" in caplog.text
    assert not was_clean(tmp_path)
