"""Definitions: export, import, upload; of the whole broker or of one virtual host.

Source: docs/definitions.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tornado.httputil import HTTPFile, parse_multipart_form_data

from lavinmq import __version__
from lavinmq.definitions_json import export
from lavinmq.definitions_json.document import Document
from lavinmq.definitions_json.entry import DefinitionsRefused
from lavinmq.definitions_json.plan import Plan
from lavinmq.definitions_json.reader import MOST_VALUES
from lavinmq.http.call import Call, Reply, completed
from lavinmq.http.encoding import Pieces, Rows, with_lists
from lavinmq.http.errors import ApiError, access_refused, bad_request
from lavinmq.http.listing import Row, in_portions
from lavinmq.http.routes import FORM, ROUTES, Query
from lavinmq.process import log

FILE: Final = "file"
HOW: Final = (
    Query("dry_run", "true: change nothing, answer what would be changed", "boolean"),
    Query("skip_errors", "true: leave out what cannot be, and answer what that is", "boolean"),
)
DEFINITIONS: Final[dict[str, Any]] = {
    "query": HOW, "document": "Definitions, as exported", "has_large_body": True,
}  # fmt: skip
_log = log.get("lmq.definitions")


@ROUTES.get("/api/definitions")
async def export_all(call: Call) -> Reply:
    """Export everything that is declared, users included."""
    return await _exported(export.SECTIONS, export.rows(call.broker))


@ROUTES.get("/api/definitions/:vhost")
async def export_vhost(call: Call) -> Reply:
    """Export what is declared in a virtual host."""
    return await _exported(export.OF_A_VHOST, export.rows_of(call.vhost))


@ROUTES.add("POST", "/api/definitions", **DEFINITIONS)
@ROUTES.add("POST", "/api/definitions/:vhost", **DEFINITIONS)
async def import_definitions(call: Call) -> Reply:
    """Import definitions: add or replace, delete nothing. All of it is checked before."""
    call.handler.check_content_type()
    return await _import(call, call.content)


@ROUTES.add(
    "POST", "/api/definitions/upload", **DEFINITIONS, statuses=(200, 302),
    file_part=FILE,
)  # fmt: skip
@ROUTES.add("POST", "/api/definitions/:vhost/upload", **DEFINITIONS, file_part=FILE)
async def upload_definitions(call: Call) -> Reply:
    """Import definitions from a form with a file, or from JSON."""
    reply = await _import(call, _uploaded(call))
    referer = call.headers.get("Referer", "")
    is_page = referer.startswith(("http://", "https://"))
    if "vhost" not in call.path and is_page and not call.flag("dry_run"):
        return Reply(302, headers={"Location": referer})
    return reply


def _uploaded(call: Call) -> bytes | bytearray | None:
    """The content of the part `file`, or the body when it is no form. Raises: ApiError 400, 415."""
    content_type = call.headers.get("Content-Type", "")
    if content_type.partition(";")[0].strip().lower() != FORM:
        call.handler.check_content_type()
        return call.content
    boundary = content_type.partition("boundary=")[2].partition(";")[0].strip()
    files: dict[str, list[HTTPFile]] = {}
    arguments: dict[str, list[bytes]] = {}
    try:
        parse_multipart_form_data(
            boundary.encode("latin1", "replace"), bytes(call.content or b""), arguments, files
        )
    except Exception as error:
        raise bad_request(f"Malformed form: {error}") from error
    if files.get(FILE):
        return files[FILE][0].body
    if arguments.get(FILE):
        return arguments[FILE][0]
    raise bad_request(f"The form has no part '{FILE}'")


async def _import(call: Call, content: bytes | bytearray | None) -> Reply:
    """Raises: ApiError 400 naming the entry; nothing has been changed then."""
    if content is None:
        raise bad_request("Request body required")
    call.check_room()
    is_skipping = call.flag("skip_errors")
    document = Document(
        call.path.get("vhost"), call.table_bounds, is_skipping=is_skipping,
        longest=call.broker.config.max_json_size, most=MOST_VALUES,
    )  # fmt: skip
    try:
        await _run(document.read(b"{}" if not content or content.isspace() else content))
        plan = Plan(call.broker, document, call.user.name)
        try:
            return await _applied(call, plan)
        finally:
            await _run(plan.emptied())
    except DefinitionsRefused as error:
        raise _refused(error) from error
    finally:
        await _run(document.emptied())


async def _applied(call: Call, plan: Plan) -> Reply:
    """Raises: DefinitionsRefused; ApiError 403 when the caller may not go on: what has been done so
    far stays."""
    await _run(plan.check())
    call.check_still()
    if call.flag("dry_run"):
        return Reply(content=await _report(plan))

    def check() -> None:
        if not call.is_allowed_still():
            raise access_refused("Access refused: the rest of the definitions is not imported")

    async for step in in_portions(plan.apply(check)):
        if step is not None:
            await step
    for vhost in plan.touched:
        await completed(vhost.recorded.when_synced)
        await completed(vhost.rules.when_applied)
    for place, reason in plan.skipped:
        _log.warning("import: %s is left out: %s", place, reason)
    for note in plan.notes:
        _log.warning("import: %s", note)
    _log.info("%d definitions imported, %d unchanged", len(plan.changes), plan.unchanged)
    if not (plan.skipped or plan.notes):
        return Reply()
    head = {"imported": len(plan.changes), "unchanged": plan.unchanged}
    return Reply(content=with_lists(head, await _remarks(plan)))


def _refused(error: DefinitionsRefused) -> ApiError:
    """400 with every bad entry, where there are several."""
    refused = bad_request(str(error))
    if len(error.remarks) > 1:
        refused.more = {"errors": [remark._asdict() for remark in error.remarks]}
    return refused


async def _run(steps: Iterator[None]) -> None:
    async for _ in in_portions(steps):
        pass


async def _report(plan: Plan) -> Pieces:
    """What would become of an import."""
    changes = Rows()
    async for change in in_portions(plan.changes):
        changes.add(change._asdict())
    lists = {"changes": changes, **await _remarks(plan)}
    return with_lists({"unchanged": plan.unchanged}, lists)


async def _remarks(plan: Plan) -> dict[str, Rows]:
    """What is left out, and what has no effect."""
    lists = {"skipped": Rows(), "notes": Rows()}
    async for each in in_portions(plan.skipped):
        lists["skipped"].add(each._asdict())
    async for each in in_portions(plan.notes):
        lists["notes"].add(each._asdict())
    return lists


async def _exported(sections: tuple[str, ...], rows: Iterator[tuple[str, Row]]) -> Reply:
    lists = {name: Rows() for name in sections}
    async for section, row in in_portions(rows):
        lists[section].add(row)
    return Reply(content=with_lists({"lavinmq_version": __version__}, lists))
