"""Lists of the API: searching, sorting, paging and their refusals, against what Python does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.http.errors import ApiError
from lavinmq.http.listing import MAX_ROWS, Listing, answer, wish

Row = dict[str, Any]


def shown(rows: list[Row], **query: str) -> tuple[Row | None, list[Row]]:
    listing = Listing(rows, lambda row: row, lambda row: row["name"])

    async def whole() -> tuple[Row | None, list[Row]]:
        page, found = await answer(listing, wish({name: [each] for name, each in query.items()}))
        return page, [row async for row in found]

    return asyncio.run(whole())


ROWS = [
    {"name": "b", "n": 2, "is": True, "state": "paused", "deep": {"rate": 0.5}},
    {"name": "C", "n": None, "is": False, "state": "running", "deep": {"rate": 2.0}},
    {"name": "a", "n": 10, "is": True, "state": "closed", "deep": {"rate": 1.0}},
]


def names(rows: list[Row]) -> str:
    return "".join(row["name"] for row in rows)


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("name", "abC"),
        ("n", "Cba"),
        ("is", "Cba"),
        ("state", "Cba"),
        ("deep.rate", "baC"),
        ("nothing", "bCa"),
    ],
)
def test_any_field_can_be_sorted_by(sort: str, order: str) -> None:
    assert names(shown(ROWS, sort=sort)[1]) == order


def test_without_an_order_they_stay_as_they_are_also_backwards() -> None:
    assert names(shown(ROWS)[1]) == "bCa"
    assert names(shown(ROWS, sort_reverse="true")[1]) == "aCb"
    assert names(shown(ROWS, sort="name", sort_reverse="true")[1]) == "Cba"
    assert names(shown(ROWS, sort="name", sort_reverse="false")[1]) == "abC"


@pytest.mark.parametrize(
    ("query", "status", "reason"),
    [
        ({"sort": "deep"}, 400, "Can't sort on type Hash"),
        ({"sort": "deep.nope"}, 400, "Sort key deep.nope is not valid"),
        ({"sort": "name.nope"}, 400, "Sort key name.nope is not valid"),
        ({"page": "x"}, 400, "Parameter 'page' must be an integer"),
        ({"page": "99999999999"}, 400, "Parameter 'page' must be an integer of 32 bits"),
        ({"page": "-1"}, 400, "Parameter 'page' must not be negative"),
        ({"page": "1", "page_size": "0"}, 400, "Parameter 'page_size' must be at least 1"),
        ({"page_size": "10001"}, 413, "Max allowed page_size 10000"),
        ({"name": "(", "use_regex": "true"}, 400, None),
    ],
)
def test_parameters_that_make_no_sense_are_refused(
    query: dict[str, str], status: int, reason: str | None
) -> None:
    with pytest.raises(ApiError) as refused:
        shown(ROWS, **query)

    assert refused.value.status == status
    assert refused.value.reason == reason or reason is None


def test_a_search_is_for_a_part_of_the_name_or_an_expression() -> None:
    assert names(shown(ROWS, name="a")[1]) == "a"
    assert names(shown(ROWS, name="A")[1]) == ""
    assert names(shown(ROWS, name="^[a-b]$", use_regex="true")[1]) == "ba"


def test_columns_keep_only_what_exists() -> None:
    assert shown(ROWS, columns="n,nope")[1] == [{"n": 2}, {"n": None}, {"n": 10}]


def test_without_a_page_a_list_has_an_end() -> None:
    page, rows = shown([{"name": "x"}] * (MAX_ROWS + 5))

    assert (page, len(rows)) == (None, MAX_ROWS)


@given(
    st.lists(st.text(max_size=3), max_size=40),
    st.integers(0, 6),
    st.integers(1, 10),
    st.text(max_size=1),
    st.booleans(),
)
def test_pages_are_slices_of_what_matches_in_order(
    given_names: list[str], page: int, size: int, search: str, is_reverse: bool
) -> None:
    rows = [{"name": name, "at": at} for at, name in enumerate(given_names)]
    query = {"page": str(page), "page_size": str(size), "sort": "name"}
    if search:
        query["name"] = search
    if is_reverse:
        query["sort_reverse"] = "true"

    found, items = shown(rows, **query)

    matching = [row for row in rows if search in row["name"]]
    matching.sort(key=lambda row: row["name"].lower(), reverse=is_reverse)
    begin = (page - 1) * size
    assert items == (matching[begin : begin + size] if page else [])
    assert found == {
        "filtered_count": len(matching),
        "item_count": len(items),
        "page": page,
        "page_count": (len(matching) + size - 1) // size,
        "page_size": size,
        "total_count": len(rows),
    }
