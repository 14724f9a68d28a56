"""Properties of messages that are moved: read, given other headers, otherwise left as they are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, header

from lavinmq import fieldtable
from lavinmq.pipeline.content import ContentError, Properties

TEXT = st.text(max_size=20)
VALUES = st.one_of(st.integers(-(2**31), 2**31 - 1), TEXT, st.booleans())
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "content_type": TEXT,
    "content_encoding": TEXT,
    "headers": st.dictionaries(st.text(max_size=10), VALUES, max_size=4),
    "delivery_mode": st.sampled_from([1, 2]),
    "priority": st.integers(0, 255),
    "correlation_id": TEXT,
    "reply_to": TEXT,
    "expiration": TEXT,
    "message_id": TEXT,
    "timestamp": st.integers(0, 2**32).map(lambda s: datetime.fromtimestamp(s, UTC)),
    "message_type": TEXT,
    "user_id": TEXT,
    "app_id": TEXT,
}


def wire(**fields: Any) -> bytes:
    """Flags and properties as pamqp writes them."""
    properties = commands.Basic.Properties(**fields)
    return header.ContentHeader(body_size=0, properties=properties).marshal()[12:]


def decoded(data: bytes) -> dict[str, Any]:
    """What pamqp reads from flags and properties."""
    head = header.ContentHeader()
    head.unmarshal((60).to_bytes(2, "big") + bytes(10) + data)
    return {name: value for name, value in dict(head.properties).items() if value is not None}


@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_what_is_not_changed_is_written_as_it_was_read(fields: dict[str, Any]) -> None:
    data = wire(**fields)

    assert Properties.parse(data).encode() == data


@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_a_header_is_set_and_all_else_stays(fields: dict[str, Any]) -> None:
    data = wire(**fields)

    after = Properties.parse(data).amended({"x-mark": "set"}, ["x-gone"]).encode()

    expected = decoded(data)
    expected["headers"] = (expected.get("headers") or {}) | {"x-mark": "set"}
    assert decoded(after) == expected


def test_a_header_is_removed_and_the_bytes_of_the_others_stay() -> None:
    table = b"\x01ad" + b"\x3f\xf8" + bytes(6) + b"\x01bx\x00\x00\x00\x02\xff\xfe" + b"\x01cV"
    data = b"\x20\x00" + len(table).to_bytes(4, "big") + table

    after = Properties.parse(data).amended({}, ["c"]).encode()

    assert after == b"\x20\x00" + (len(table) - 3).to_bytes(4, "big") + table[:-3]


def test_the_user_is_read_past_all_the_others() -> None:
    data = wire(content_type="a", headers={"b": 1}, timestamp=datetime.now(UTC), user_id="ü")

    assert Properties.parse(data).user_id == "ü"


@given(st.fixed_dictionaries({}, optional=FIELDS), st.data())
def test_properties_cut_short_are_refused(fields: dict[str, Any], data: st.DataObject) -> None:
    whole = wire(**fields)
    cut = data.draw(st.integers(0, len(whole) - 1))

    with pytest.raises(ContentError):
        Properties.parse(whole[:cut])


@given(st.binary(max_size=60))
def test_any_bytes_are_properties_or_refused(data: bytes) -> None:
    try:
        found = Properties.parse(data)
    except ContentError:
        return
    assert found.encode() == data
    assert isinstance(found.headers, fieldtable.FieldTable)
