"""The page that says which test proves which statement of MQTT: that it is true, and can fail."""

from __future__ import annotations

import pytest

from tests import mqtt_conformance
from tests.conformance import Complaint, Proof
from tests.mqtt_conformance import Statements

ITEMS = Statements(
    {"3.1.1": {"3.1.0-1": "first"}, "5.0": {"3.1.0-1": "first", "4.2-1": "second"}},
    {("5.0", "4.2-1"): "binds clients"},
)
PROOF = Proof("test_x.py::test_a", "tests/unit/test_x.py")


def test_the_page_is_up_to_date_and_every_statement_is_proved_or_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert mqtt_conformance.main(["--check"]) == 0, capsys.readouterr()


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("3.1.1 [MQTT-3.1.0-1]: closed", {"3.1.1 3.1.0-1"}),
        (
            "3.1.1 [MQTT-3.1.0-1], [MQTT-2.2.2-1],\n    5.0 [MQTT-4.2-1].",
            {"3.1.1 3.1.0-1", "3.1.1 2.2.2-1", "5.0 4.2-1"},
        ),
        ("5.0 [MQTT-1.5.4-1] to [MQTT-1.5.4-3]", {f"5.0 1.5.4-{n}" for n in (1, 2, 3)}),
        ("5.0 section 3.14.2.1: no statement", set()),
    ],
)
def test_statements_are_read_from_text(text: str, items: set[str]) -> None:
    assert mqtt_conformance.named(text) == items


@pytest.mark.parametrize("text", ["[MQTT-3.1.0-1]", "version 15.0 [MQTT-3.1.0-1]"])
def test_a_statement_without_a_version_is_a_complaint(text: str) -> None:
    with pytest.raises(Complaint, match=r"\[MQTT-3\.1\.0-1\]"):
        mqtt_conformance.named(text)


def test_what_is_wrong_is_named() -> None:
    found = {"3.1.1 3.1.0-1": [PROOF], "5.0 9.9.9-9": [PROOF]}

    assert mqtt_conformance.complaints(ITEMS, found) == [
        "5.0 [MQTT-3.1.0-1] has neither a test nor a reason",
        "test_x.py::test_a names 5.0 [MQTT-9.9.9-9], which is none",
    ]


def test_the_page_links_to_tests_and_marks_what_binds_clients() -> None:
    lines = mqtt_conformance.page(ITEMS, {"5.0 3.1.0-1": [PROOF]}).splitlines()

    assert "2 statements, of which 1 bind clients; 1 have a test." in lines
    assert "| 3.1.0-1 | first | [test_x.py::test_a](../tests/unit/test_x.py) |" in lines
    assert "| 4.2-1 | second | *binds clients* |" in lines
