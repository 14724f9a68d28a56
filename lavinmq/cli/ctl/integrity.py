"""`lavinmqctl verify` and `repair`: damage of stored files, with a broker and without.

Source: docs/integrity.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lavinmq.cli.ctl.errors import CtlError
from lavinmq.cli.ctl.owner import rights_of_owner
from lavinmq.cli.ctl.session import Session

if TYPE_CHECKING:
    from lavinmq.integrity.keeper import Integrity
    from lavinmq.integrity.repair import Outcome

POLL_S: Final = 0.2
ANY_RATE: Final = 1 << 40


def verify(session: Session) -> None:
    """Read all stored files, and name those that are damaged. Raises: CtlError if any is."""
    data_dir = session.options.get("--offline")
    if data_dir is None:
        found = _verified_by_broker(session)
    else:
        with _offline(data_dir) as integrity:
            found = _verified(integrity)
    rows = found["damaged_files"]
    if session.output.is_json:
        session.output.record(found)
    else:
        session.output.record({"files": found["files"], "damaged_files": len(rows)})
        for row in rows:
            session.output.row([row["path"], row["reason"]])
    if rows:
        raise CtlError(f"{len(rows)} files are damaged")


def repair(session: Session) -> None:
    """Have damaged files fetched from another node; without a broker, keep what can be kept.
    Raises: CtlError when some stay damaged."""
    data_dir = session.options.get("--offline")
    if data_dir is None:
        session.api.request("POST", "/api/integrity/repair")
        return
    from lavinmq.integrity.repair import Repair

    outcomes: list[dict[str, Any]] = []
    with _offline(data_dir) as integrity:
        _verified(integrity)
        repair = Repair(data_dir, integrity, accepts=session.has("--accept"))
        names = _Names(data_dir)

        def tell(each: Outcome) -> None:
            facts = {"mended": each.is_mended, "lost": each.n_lost, "text": each.text}
            outcomes.append({"path": each.path, **names.of(each.path), **facts})

        try:
            is_good = repair.run(tell)
        except OSError as error:
            raise CtlError(f"{error.filename or data_dir}: {error.strerror}") from None
    _show(session, outcomes)
    if not is_good:
        raise CtlError("Some files are still damaged")


def _show(session: Session, outcomes: Iterable[Mapping[str, Any]]) -> None:
    output = session.output
    if output.is_json:
        output.json(list(outcomes))
        return
    for each in outcomes:
        where = "" if "queue" not in each else f" (queue {each['queue']} in {each['vhost']})"
        print(f"{each['path']}{where}: {each['text']}")


def _verified_by_broker(session: Session) -> dict[str, Any]:
    number = session.api.request("POST", "/api/integrity/verify").json()["number"]
    while True:
        found = session.api.record("integrity")
        if found.get("verified", 0) >= number:
            return found
        time.sleep(POLL_S)


def _verified(integrity: Integrity) -> dict[str, Any]:
    """Read all, without a broker."""
    number = integrity.verify()
    integrity.start()
    while integrity.status()["verified"] < number:
        if not integrity.is_running:
            raise CtlError("No thread can be started")
        time.sleep(POLL_S / 10)
    integrity.stop()
    return integrity.status()


@contextmanager
def _offline(path: str) -> Iterator[Integrity]:
    """The sums of a data directory that no broker has. Raises: CtlError."""
    from lavinmq.files.datadir import SCHEMA_FILE, DataDir, DataDirError
    from lavinmq.integrity.keeper import Integrity, Lock

    if not os.path.exists(os.path.join(path, SCHEMA_FILE)):
        raise CtlError(f"{path} is no data directory: it has no {SCHEMA_FILE}")
    try:
        with (
            rights_of_owner(Path(path)),
            DataDir(path, wait=False, access="keep") as data_dir,
        ):
            integrity = Integrity(
                path, Lock(data_dir.found_time, data_dir.lock_time), rate=ANY_RATE, pause_s=3600,
                lazy=True,
            )  # fmt: skip
            try:
                integrity.first_look()
                yield integrity
            finally:
                integrity.close(is_orderly=True)
            if data_dir.is_clean:
                data_dir.stopped()  # it is as the broker has left it
    except DataDirError as error:
        raise CtlError(str(error)) from None
    except OSError as error:
        raise CtlError(f"{error.filename or path}: {error.strerror}") from None


class _Names:
    """Names of queues by their directories. Args: root: the data directory."""

    def __init__(self, root: str) -> None:
        self._root = root

    def of(self, path: str) -> dict[str, str]:
        """Virtual host and queue that a file belongs to, if it does."""
        parts = path.split("/")
        if len(parts) < 3:
            return {}
        vhost = self._read(parts[0], ".vhost")
        return {"vhost": vhost, "queue": self._read(parts[0], parts[1], ".queue")}

    def _read(self, *parts: str) -> str:
        try:
            with open(os.path.join(self._root, *parts), encoding="utf-8", errors="replace") as file:
                return file.read(256)
        except OSError:
            return parts[-2]
