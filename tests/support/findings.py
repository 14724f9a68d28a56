"""A plugin of pytest: below a sanitizer, a test in which a report was written fails by its name.

Used with `-p tests.support.findings`; the reports are files, as `log_path` of TSAN_OPTIONS says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_known: dict[Path, int] = {}


def reports() -> str:
    """What was written since this was asked for last."""
    found = re.search(r"log_path=([^:]+)", os.environ.get("TSAN_OPTIONS", ""))
    if found is None:
        return ""
    path = Path(found[1])
    texts = []
    for each in sorted(path.parent.glob(f"{path.name}.*")):
        text = each.read_text(errors="replace")
        texts.append(text[_known.get(each, 0) :])
        _known[each] = len(text)
    return "".join(texts)


@pytest.fixture(autouse=True)
def _no_reports() -> Iterator[None]:
    yield
    if text := reports():
        pytest.fail(text, pytrace=False)
