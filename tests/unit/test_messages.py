"""The page of messages is what the sources say, and each message names what it is about."""

from __future__ import annotations

import re

from tests.messages import PAGE, SECTIONS, found, page, section_of


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "python -m tests.messages > docs/messages.md"


def test_every_section_has_messages() -> None:
    sections = {section_of(message.module) for message in found()}

    assert sections == set(SECTIONS)


def test_no_message_has_a_blank_too_many() -> None:
    """Texts are put together of parts that stand on several lines of a module."""
    assert [row for row in found() if re.search(r"  |^\s|\s[.,;]", row.text)] == []
