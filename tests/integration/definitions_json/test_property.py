"""Documents of definitions with anything anywhere: refused whole, or there afterwards."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import seeds
from tests.fuzz.targets import Target
from tests.fuzz.targets.documents import opened

DOCUMENTS = [json.loads(content) for content in seeds.documents().values()]
NAMES = ["", "q", "amq.direct", "amq.gen-1", "mqtt.x", "amq.delayed-d", "d", "a\n", "\ud800", "/",
         "\udcff", "x" * 256, "guest", "__direct", "all", "queue", "exchange"]  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.sampled_from([0, -1, 1, 2**31, 2**63, 10**30, 1.5, 1e999]),
    st.text(max_size=5), st.sampled_from(NAMES),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory: Path = tmp_path_factory.mktemp("documents")
    with opened(directory) as target:
        yield target


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a value with each of its keys or positions."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    return [(value, key) for key in keys] + [each for key in keys for each in places(value[key])]


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_anything_anywhere_is_refused_or_imported(imported: Target, data: st.DataObject) -> None:
    document = copy.deepcopy(data.draw(st.sampled_from(DOCUMENTS)))
    for _ in range(data.draw(st.integers(1, 3))):
        where = places(document)
        if not where:
            break
        container, key = data.draw(st.sampled_from(where))
        if isinstance(container, dict) and data.draw(st.booleans()):
            del container[key]
        else:
            container[key] = data.draw(VALUES)

    imported(json.dumps(document).replace("Infinity", "1e999").encode())
