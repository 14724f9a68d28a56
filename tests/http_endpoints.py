"""The table of endpoints in docs/http-api.md, made from the code: run it to renew the page.

Called by `tests/unit/http/test_documentation.py`, which fails when the page is behind.
"""

from __future__ import annotations

from pathlib import Path

from lavinmq.http import api  # noqa: F401 - fills the table
from lavinmq.http.access.table import Role
from lavinmq.http.routes import ROUTES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "http-api.md"
BEGIN, END = "<!-- endpoints -->\n", "<!-- /endpoints -->\n"
SHORT = {
    Role.ANY: "any tag", Role.MANAGEMENT: "management, monitoring", Role.CHANGE: "management",
    Role.POLICY: "policymaker", Role.MONITORING: "monitoring",
    Role.ADMINISTRATOR: "administrator",
}  # fmt: skip


def table() -> str:
    """All endpoints as a table."""
    rows = sorted(ROUTES, key=lambda route: (route.path, route.method))
    lines = [
        f"| {route.method} | `{route.path}` | {SHORT[route.row.role]} | {route.row} "
        f"| {route.summary} |"
        for route in rows
    ]
    head = ["| | path | tag | right | |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*head, *lines]) + "\n"


def with_table(page: str) -> str:
    """The page with the table of now. Raises ValueError when it has no place for it."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has lost its marks")
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
