"""The shipped configuration: true defaults as comments, and only what packages change in force."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from lavinmq.config import ini
from lavinmq.config.settings import SETTINGS

PROGRAM = Path(__file__).parents[2] / "packaging/configuration.py"


@pytest.fixture(scope="module")
def configuration() -> ModuleType:
    """The program that makes it."""
    spec = importlib.util.spec_from_file_location("configuration", PROGRAM)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(text: str) -> dict[tuple[str, str], str]:
    """Return the values by section and key."""
    return {
        (section, key): value
        for section, content in ini.read(text).items()
        for key, value in content.items()
    }


def test_what_packages_set_is_in_force_and_nothing_else(configuration: ModuleType) -> None:
    assert read(configuration.text()) == configuration.SHIPPED


def test_comments_show_the_defaults_of_all_settings_that_have_an_effect(
    configuration: ModuleType,
) -> None:
    uncommented = re.sub(r"^; ([a-z_]+ =)", r"\1", configuration.text(), flags=re.MULTILINE)

    shown = read(uncommented)

    working = {(s.section, s.key): s for s in SETTINGS if s.effect == "yes"}
    assert shown.keys() == working.keys()
    for place, value in shown.items():
        default = "" if working[place].secret else working[place].default
        assert value == configuration.SHIPPED.get(place, default)
