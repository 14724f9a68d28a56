"""Lists of the API: searching, sorting and paging, without holding up the event loop.

An endpoint returns a `Listing`: the things, what each is called, and how to make a row of one. Rows
are made for what is shown only, unless the order depends on them; long work is done in portions of
about half a millisecond. Source: docs/http-api.md.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from lavinmq.http.errors import ApiError, bad_request
from lavinmq.policy.pattern import Pattern, too_long
from lavinmq.process import log
from lavinmq.process.portions import others_first

T = TypeVar("T")
Row = dict[str, Any]

PORTION_S: Final = 0.0005
SORTED_AT_ONCE: Final = 1000
MAX_ROWS: Final = 10_000
DEFAULT_PAGE_SIZE: Final = 100
STATES: Final = ("running", "paused", "flow", "closed", "deleted")
_log = log.get("lmq.http.server")


@dataclass(slots=True)
class Listing(Generic[T]):
    """What a list is made of.

    Args: things: taken once, in the order shown; an iterator, which has to bear changes of what it
        goes over, in portions; row: what is shown of one; names: what a search
        looks into, one or more texts of a thing; exact: a search has to equal the name.
    """

    things: Iterable[T]
    row: Callable[[T], Row]
    names: Callable[[T], str | tuple[str, ...]]
    exact: bool = False
    keys: Mapping[str, Callable[[T], Any]] = field(default_factory=dict)
    """How to get a field that is often sorted by without making the row."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The parameters of a list, checked."""

    page: int | None
    page_size: int
    search: Pattern | str
    sort: tuple[str, ...]
    is_reverse: bool
    columns: tuple[str, ...]


def wish(query: Mapping[str, list[str]]) -> Wish:
    """Read the parameters. Raises: ApiError 400 naming one, 413 for a page that is too long."""
    page_size = _integer(query, "page_size", DEFAULT_PAGE_SIZE)
    if page_size > MAX_ROWS:
        raise ApiError(413, "payload_too_large", f"Max allowed page_size {MAX_ROWS}")
    if page_size < 1:
        raise bad_request("Parameter 'page_size' must be at least 1")
    page = _integer(query, "page", -1) if "page" in query else None
    if page is not None and page < 0:
        raise bad_request("Parameter 'page' must not be negative")
    search: Pattern | str = _last(query, "name")
    if search and _last(query, "use_regex") == "true":
        try:
            search = Pattern(str(search))
        except ValueError as error:
            raise bad_request(str(error)) from error
    sort = _last(query, "sort")
    columns = _last(query, "columns")
    return Wish(
        page, page_size, search, tuple(sort.split(".")) if sort else (),
        "sort_reverse" in query and _last(query, "sort_reverse") != "false",
        tuple(columns.split(",")) if columns else (),
    )  # fmt: skip


async def answer(listing: Listing[Any], wanted: Wish) -> tuple[Row | None, AsyncIterator[Row]]:
    """The page object without its items, None when no page was asked for; and the rows.

    Raises: ApiError 400 for an order that makes no sense, or a search that takes too long.
    """
    things = await collected(listing.things)
    total = len(things)
    if wanted.search:
        is_match = _matcher(wanted.search, listing.exact)
        things = [
            thing async for thing in in_portions(things) if is_match(listing.names(thing))
        ]  # fmt: skip
    matched = len(things)
    if wanted.sort:
        key = listing.keys.get(".".join(wanted.sort)) or _field(listing, wanted.sort)
        values = [key(thing) async for thing in in_portions(things)]
        things = await _in_order(things, values, wanted)
    elif wanted.is_reverse:
        things.reverse()
    things = _cut(things, wanted)
    rows = _rows(listing, things, wanted.columns)
    if wanted.page is None:
        if matched > MAX_ROWS:
            _log.warning("a list of %d was cut to %d: ask for pages", matched, MAX_ROWS)
        return None, rows
    return {
        "filtered_count": matched,
        "item_count": len(things),
        "page": wanted.page,
        "page_count": -(-matched // wanted.page_size),
        "page_size": wanted.page_size,
        "total_count": total,
    }, rows


async def _rows(
    listing: Listing[T], things: list[T], columns: tuple[str, ...]
) -> AsyncIterator[Row]:
    async for thing in in_portions(things):
        yield _columns(listing.row(thing), columns)


async def collected(things: Iterable[T]) -> list[T]:
    """All the things; what is made one by one is made in portions."""
    if isinstance(things, Iterator):
        return [thing async for thing in in_portions(things)]
    return list(things)


async def in_portions(things: Iterable[T]) -> AsyncIterator[T]:
    """The things, one after the other; others have their turn after each portion of work."""
    until = time.perf_counter() + PORTION_S
    for thing in things:
        yield thing
        if time.perf_counter() >= until:
            await others_first()
            until = time.perf_counter() + PORTION_S


def _cut(things: list[T], wanted: Wish) -> list[T]:
    """What the page shows."""
    if wanted.page is None:
        return things[:MAX_ROWS]
    if wanted.page == 0:
        return []
    begin = (wanted.page - 1) * wanted.page_size
    return things[begin : begin + wanted.page_size]


def _columns(row: Row, columns: tuple[str, ...]) -> Row:
    return {name: row[name] for name in columns if name in row} if columns else row


def _matcher(search: Pattern | str, exact: bool) -> Callable[[str | tuple[str, ...]], bool]:
    def is_match(names: str | tuple[str, ...]) -> bool:
        for name in (names,) if isinstance(names, str) else names:
            if isinstance(search, Pattern):
                if search.search(name):
                    return True
                if search.stumbles:
                    raise bad_request(too_long(search.text))
            elif search == name or (not exact and search in name):
                return True
        return False

    return is_match


def _field(listing: Listing[T], path: tuple[str, ...]) -> Callable[[T], Any]:
    return lambda thing: _at(listing.row(thing), path)


async def _in_order(things: list[T], values: list[Any], wanted: Wish) -> list[T]:
    """The things in the order of their values. Raises: ApiError 400."""
    first = next((value for value in values if value is not None), None)
    key = _key(wanted.sort, first)
    if key is None:
        return things
    keys = [key(value) async for value in in_portions(values)]
    runs = [
        sorted(
            range(begin, min(begin + SORTED_AT_ONCE, len(things))),
            key=keys.__getitem__, reverse=wanted.is_reverse,
        )
        async for begin in in_portions(range(0, len(things), SORTED_AT_ONCE))
    ]  # fmt: skip
    order = runs[0]
    if len(runs) > 1:
        merged = heapq.merge(*runs, key=keys.__getitem__, reverse=wanted.is_reverse)
        order = [at async for at in in_portions(merged)]
    return [things[at] for at in order]


def _at(row: Row, path: tuple[str, ...]) -> Any:
    value: Any = row
    for depth, word in enumerate(path):
        if not isinstance(value, dict) or (word not in value and depth):
            if value is None:
                return None
            raise bad_request(f"Sort key {'.'.join(path)} is not valid")
        value = value.get(word)
    return value


def _key(path: tuple[str, ...], first: Any) -> Callable[[Any], Any] | None:
    """How values like the first are compared, None when there is nothing to compare."""
    if first is None:
        return None
    if isinstance(first, bool | int | float):
        return lambda value: value if isinstance(value, bool | int | float) else 0
    if isinstance(first, str):
        if path[-1] == "state":
            return lambda value: STATES.index(value) if value in STATES else len(STATES)
        return lambda value: value.lower() if isinstance(value, str) else ""
    kind = "Hash" if isinstance(first, dict) else "Array"
    raise bad_request(f"Can't sort on type {kind}")


def _last(query: Mapping[str, list[str]], name: str) -> str:
    return query[name][-1] if query.get(name) else ""


def _integer(query: Mapping[str, list[str]], name: str, default: int) -> int:
    text = _last(query, name)
    if name not in query:
        return default
    try:
        value = int(text)
    except ValueError:
        raise bad_request(f"Parameter '{name}' must be an integer") from None
    if not -(2**31) <= value < 2**31:
        raise bad_request(f"Parameter '{name}' must be an integer of 32 bits")
    return value
