"""Finds what somebody meant who misspelt a name: the nearest of the known ones.

Pure; what it costs is paid by whoever made a mistake.
"""

from __future__ import annotations

from collections.abc import Iterable

LIKE = 0.6  # of all letters, how many have to be in the same order
VERY_LIKE = 0.8  # nobody meant anything else
LONGEST = 64  # names that are longer are not compared: somebody else chose them


def nearest(name: str, known: Iterable[str], likeness: float = LIKE) -> str:
    """Return the known name that is most like `name`, empty if none is like it enough."""
    if len(name) > LONGEST:
        return ""
    from difflib import get_close_matches

    by_letters = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), by_letters, 1, likeness)
    return by_letters[found[0]] if found else ""


def hint(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: `, did you mean 'x'?` or nothing."""
    found = nearest(name, known)
    return f", did you mean '{found}'?" if found else ""
