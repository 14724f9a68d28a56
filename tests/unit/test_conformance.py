"""The page that says which test proves which item: that it is true, and that the check can fail."""

from __future__ import annotations

import pytest

from tests import conformance
from tests.conformance import Complaint, Items, Proof
from tests.protocol.shown_items import SHOWN
from tests.support.transcripts import scenarios

ITEMS = Items({"One": {"1": "first", "2": "second"}, "Two": {"22.3": "third"}}, {"2": ["TLS"]})
PROOF = Proof("test_x.py::test_a", "tests/unit/test_x.py")


def found_in(source: str) -> set[tuple[str, str]]:
    """Return the items that a test module names, each with its test."""
    return {
        (item, proof.text) for item, proof in conformance.proofs_of(source, "tests/unit/test_x.py")
    }


def test_the_page_is_up_to_date_and_every_item_is_proved_or_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert conformance.main(["--check"]) == 0, capsys.readouterr()


def test_every_recording_that_shows_something_exists() -> None:
    assert set(SHOWN) <= set(scenarios())
    assert all(conformance.tags(text) for text in SHOWN.values())


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("edge-cases.md 12", {"12"}),
        ("See edge-cases.md 12, 14, 20-22.", {"12", "14", "20", "21", "22"}),
        ("edge-cases.md 1,\n    2 and 3", {"1", "2", "3"}),
        ("amqp.md 22.17", {"22.17"}),
        ("amqp.md 22.7-22.9, 22.11", {"22.7", "22.8", "22.9", "22.11"}),
        ("edge-cases.md 5 and amqp.md 22.1", {"5", "22.1"}),
        ("amqp.md section 17", set()),
        ("Source: amqp.md 9", set()),
    ],
)
def test_items_are_read_from_text(text: str, items: set[str]) -> None:
    assert conformance.tags(text) == items


def test_docstrings_comments_and_tables_name_the_items_of_their_test() -> None:
    source = '''
CASES = [
    1,  # edge-cases.md 1
]

@pytest.mark.parametrize("case", CASES)
def test_a(case): ...

class TestB:
    async def test_b(self):
        """Waits. edge-cases.md 2"""

@pytest.mark.parametrize("case", [
    2,  # amqp.md 22.3
])
def test_c(case): ...
'''
    assert found_in(source) == {
        ("1", "test_x.py::test_a"),
        ("2", "test_x.py::test_b"),
        ("22.3", "test_x.py::test_c"),
    }


def test_a_test_that_is_expected_to_fail_proves_nothing() -> None:
    mark = '@pytest.mark.xfail(strict=True)\ndef test_a():\n    """edge-cases.md 1"""\n'

    assert found_in(mark) == set()


@pytest.mark.parametrize(
    "source",
    [
        '"""edge-cases.md 1"""\n',
        "x = 1  # edge-cases.md 1\n",
        'def helper():\n    """edge-cases.md 1"""\n',
        'def test_a():\n    """edge-cases.md, item 1"""\n',
    ],
    ids=["module", "table-of-nobody", "no-test", "no-number"],
)
def test_a_tag_that_would_count_for_nothing_is_a_complaint(source: str) -> None:
    with pytest.raises(Complaint, match=r"tests/unit/test_x\.py:[12]: "):
        found_in(source)


def test_what_is_wrong_is_named() -> None:
    assert conformance.complaints(ITEMS, {"1": [PROOF], "22.3": [PROOF]}) == []
    assert conformance.complaints(ITEMS, {"1": [PROOF], "4": [PROOF]}) == [
        "item 22.3 has neither a test nor a reason",
        "test_x.py::test_a names the unknown item 4",
    ]
    unknown = Items(ITEMS.sections, {"2": ["TLS"], "9": ["TLS"]})
    assert conformance.complaints(unknown, {"1": [PROOF], "22.3": [PROOF]}) == [
        "a reason is given for the unknown item 9"
    ]


def test_items_are_read_with_their_reasons() -> None:
    items = conformance.read_items(
        '["One"]\n1 = "first"\n2 = "second"\n["left out"]\n"TLS" = "2"\n"MQTT" = "1-2"\n'
    )

    assert items.sections == {"One": {"1": "first", "2": "second"}}
    assert items.reasons == {"2": ["TLS", "MQTT"], "1": ["MQTT"]}


def test_the_page_links_to_tests_and_tells_reasons() -> None:
    lines = conformance.page(ITEMS, {"1": [PROOF]}).splitlines()

    assert "1 of 3 items have a test." in lines
    assert "| 1 | first | [test_x.py::test_a](../tests/unit/test_x.py) |" in lines
    assert "| 2 | second | *TLS* |" in lines
