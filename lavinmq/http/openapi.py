"""The description of the API in OpenAPI, made from the table of endpoints.

Source: OpenAPI 3.1, docs/http-api.md.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from lavinmq import __version__
from lavinmq.http import (
    api,  # noqa: F401 - registers the endpoints
    encoding,
)
from lavinmq.http.access.table import Row
from lavinmq.http.fields import Field, Fields
from lavinmq.http.handler import JSON, Handler
from lavinmq.http.routes import FORM, ROUTES, Query, Route

LIST_QUERY: Final = (
    Query("page", "Number of the page; without it everything comes as an array", "integer"),
    Query("page_size", "Rows of a page, 1 to 10000", "integer"),
    Query("name", "What to search for"),
    Query("use_regex", "Whether `name` is a regular expression", "boolean"),
    Query("sort", "Field to sort by, nested ones with dots"),
    Query("sort_reverse", "Whether to sort backwards", "boolean"),
    Query("columns", "Fields to show, separated by commas"),
)
ERRORS: Final = {
    400: "The request makes no sense; the reason names the field",
    401: "No valid credentials",
    403: "Not allowed, or no such virtual host",
    404: "No such resource",
    413: "The body, or the page, is too large",
    415: "The body is no JSON",
    500: "The disk fails, or the broker has a bug",
}
CHANGE_ERRORS: Final = {412: "The disk is short of space"}
SILENT: Final = (401,)
"""Statuses that come without a body from all endpoints."""
MEANING: Final = {
    200: "Done", 201: "Created", 204: "Done, nothing to say", 302: "Done, look there",
    409: "Somebody uses it", 410: "It is gone", 416: "Beyond the end",
    422: "It is not in a state for this", 503: "Not healthy, or too busy",
}  # fmt: skip


ROWS: Final[dict[str, Any]] = {"type": "array", "items": {"type": "object"}}


class OpenApi(Handler):
    """`/docs/openapi.json`, for everybody."""

    def get(self) -> None:
        """Send it."""
        self.set_header("Content-Type", JSON)
        self.finish(encoded())


@cache
def encoded() -> bytes:
    """The description as JSON."""
    return encoding.encode(description())


def description() -> dict[str, Any]:
    """The description of all endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(_path(route), {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "LavinMQ HTTP API",
            "version": __version__,
            "description": "Manage and watch the broker. `%2F` is the virtual host `/`.",
        },
        "security": [{"basic": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "schemas": {
                "Error": _error_schema(),
                "Failure": _failure_schema(),
                "Page": _page_schema(),
            },
        },
    }


def _path(route: Route) -> str:
    words = route.path.split("/")
    return "/".join(f"{{{word[1:]}}}" if word[:1] in (":", "*") else word for word in words)


def _operation(route: Route) -> dict[str, Any]:
    """One endpoint."""
    words = [word for word in route.path.split("/") if word[:1] in (":", "*")]
    query = (LIST_QUERY if route.is_list else ()) + route.query
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{_path(route)}",
        "summary": route.summary,
        "description": _access(route.row),
        "tags": [route.path.split("/")[2]],
        "parameters": [_path_parameter(word[1:]) for word in words]
        + [_query_parameter(each) for each in query],
        "responses": {str(status): _success(route, status) for status in route.statuses}
        | {str(status): _failure(route, status, text) for status, text in _errors(route).items()},
    }
    if route.fields is not None:
        operation["requestBody"] = {
            "required": any(field.required for field in route.fields.values()),
            "content": {JSON: {"schema": _object(route.fields)}},
        }
    elif route.document:
        schema = {"type": "object", "description": route.document}
        content: dict[str, Any] = {JSON: {"schema": schema}}
        if route.file_part:
            part = {"type": "string", "contentMediaType": JSON}
            form = {
                "type": "object", "properties": {route.file_part: part},
                "required": [route.file_part],
            }  # fmt: skip
            content[FORM] = {"schema": form}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _access(row: Row) -> str:
    """Who may call it."""
    text = f"For users with the tag {' or '.join(row.role.value)}."
    return f"{text} It takes: {row}." if str(row) else text


def _path_parameter(name: str) -> dict[str, Any]:
    return {
        "name": name, "in": "path", "required": True,
        "schema": {"type": "string", "minLength": 1},
    }  # fmt: skip


def _query_parameter(query: Query) -> dict[str, Any]:
    return {
        "name": query.name, "in": "query", "description": query.doc,
        "schema": {"type": query.kind},
    }  # fmt: skip


def _success(route: Route, status: int) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": MEANING[status]}
    content = route.content or (JSON if route.method == "GET" else "")
    if status == 200 and content:
        answer["content"] = {content: {"schema": _content(route, content)}}
    return answer


def _content(route: Route, content: str) -> dict[str, Any]:
    if content != JSON:
        return {"type": "string"}
    if route.is_list:
        return {"oneOf": [ROWS, {"$ref": "#/components/schemas/Page"}]}
    return {"type": ["object", "array"]}


def _errors(route: Route) -> dict[int, str]:
    """What else the endpoint may answer."""
    more = CHANGE_ERRORS if route.method in ("PUT", "POST") else {}
    return ERRORS | more | {status: MEANING[status] for status in route.failures}


def _failure(route: Route, status: int, text: str) -> dict[str, Any]:
    if status in SILENT:
        return {"description": text}
    if status in route.silent:
        return {"description": f"{text}; the body may be empty"}
    name = "Failure" if status == 503 else "Error"
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"description": text, "content": {JSON: {"schema": schema}}}


def _page_schema() -> dict[str, Any]:
    counts = (
        "page", "page_size", "page_count", "item_count", "filtered_count", "total_count",
    )  # fmt: skip
    return {
        "type": "object",
        "required": [*counts, "items"],
        "properties": {key: {"type": "integer"} for key in counts} | {"items": ROWS},
    }


def _failure_schema() -> dict[str, Any]:
    """What health checks and busy endpoints say."""
    return {
        "type": "object",
        "required": ["reason"],
        "properties": {"reason": {"type": "string", "description": "For people"}},
    }


def _error_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["error", "reason"],
        "properties": {
            "error": {"type": "string", "description": "For programs"},
            "reason": {"type": "string", "description": "For people"},
        },
    }


def _object(fields: Fields) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _schema(field) for name, field in fields.items()},
    }
    required = [name for name, field in fields.items() if field.required]
    return schema | {"required": required} if required else schema


def _schema(field: Field) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": field.doc}
    if field.kind != "any":
        schema["type"] = [field.kind, "null"] if field.nullable else field.kind
    if field.choices:
        schema["enum"] = list(field.choices)
    if field.default is not None:
        schema["default"] = field.default
    return schema
