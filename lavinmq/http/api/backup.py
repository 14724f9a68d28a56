"""The backup of a running broker, as one archive.

The body of the request may name what the client has from an earlier one, a line each: identity, or
identity, size and SHA-256 with commas, blank, path. Source: docs/backup.md.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Final

from lavinmq.backup.taking import Taking
from lavinmq.files.snapshot import SnapshotError
from lavinmq.http.call import Call
from lavinmq.http.errors import ApiError, bad_request
from lavinmq.http.routes import ROUTES
from lavinmq.process import log
from lavinmq.process.worker import aside

if TYPE_CHECKING:
    from lavinmq.backup.archive import Archive

STALL_S: Final = 30.0
"""How long a client may take for 256 KiB: what is deleted meanwhile stays on the disk."""
MOST_KNOWN: Final = 1_000_000
HAS: Final = re.compile(rb"[!-+\--~]+(,[0-9]{1,18},[0-9a-f]{64})?")
LINES_AT_ONCE: Final = 256
_log = log.get("lmq.backup")


@ROUTES.add(
    "POST", "/api/backup",
    document="What the client has: lines of identity[,bytes,SHA-256], blank, path",
    failures=(503,), content="application/octet-stream", has_large_body=True,
)  # fmt: skip
async def back_up(call: Call) -> None:
    """Download the data directory as it is now: a tar file."""
    broker, handler = call.broker, call.handler
    if broker.is_backed_up:
        raise ApiError(503, "no_backup", "No backup can be made now: another backup is being made")
    known = await aside(_parsed, call.content or b"")
    cluster = broker.cluster
    position = int if cluster is None else lambda: cluster.place()[1]
    taking = Taking(broker, position, is_backup=True)
    try:
        await taking.take()
    except SnapshotError as error:
        raise ApiError(503, "no_backup", f"No backup can be made now: {error}") from None
    except OSError as error:
        _log.error("no backup: %s", error)
        raise ApiError(500, "no_backup", f"No backup can be made: {error}") from None
    try:
        call.check_still()
        handler.set_header("Content-Type", "application/octet-stream")
        handler.set_header("Cache-Control", "no-store, no-transform")
        # Of changes behind the position, some may be in it as well.
        more = {} if cluster is None else {"epoch": cluster.place()[0], "position": taking.since}
        archive = (await aside(_archive))(
            taking.snapshot, broker.node_name, known, taking.look, broker.integrity, more
        )
        piece = await aside(archive.read)
        while piece:
            if handler.is_gone or not call.is_allowed_still() or broker.is_stopping:
                raise _Broken("who asked has gone" if handler.is_gone else "it may not go on")
            following = await aside(archive.read)
            if not following:
                await taking.release()  # who has all of it may ask for another one
            handler.write(piece)
            async with asyncio.timeout(STALL_S):
                await handler.flush()
            piece = following
        handler.finish()
    except (OSError, TimeoutError, _Broken) as error:
        # Its status is sent: an answer that is cut off says that something went wrong.
        _log.error("a backup was broken off: %s", str(error) or "its client takes nothing")
        handler.request.connection.stream.close()  # type: ignore[union-attr]
    finally:
        await taking.release()


class _Broken(Exception):
    """It does not go on."""


def _archive() -> type[Archive]:
    """What writes archives: it takes memory that most brokers never need. In a thread."""
    from lavinmq.backup.archive import Archive

    return Archive


def _parsed(content: bytes | bytearray) -> dict[bytes, bytes]:
    """What the client has, by its path. In a thread. Raises: ApiError 400, 413."""
    known: dict[bytes, bytes] = {}
    at, n = 0, 0
    while at < len(content):
        end = content.find(b"\n", at)
        end = len(content) if end < 0 else end
        blank = content.find(b" ", at, end)
        if blank + 1 >= end or HAS.fullmatch(content, at, max(blank, at)) is None:
            raise bad_request("A line has to be identity[,bytes,SHA-256], a blank and a path")
        known[bytes(content[blank + 1 : end])] = bytes(content[at:blank])
        at, n = end + 1, n + 1
        if n > MOST_KNOWN:
            raise ApiError(413, "payload_too_large", f"A body may name {MOST_KNOWN} files")
        if n % LINES_AT_ONCE == 0:
            time.sleep(0)  # the loop may want the interpreter
    return known
