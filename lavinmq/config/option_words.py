"""Cuts a command line into options with their values and other words, whatever program it is of.

Understood: ``--option value``, ``--option=value``, ``-p 5672``, ``-p5672``, ``-p=5672`` and
clusters of short options, of which only the last may take a value (``-dp5672``). What stands behind
``--`` is no option. It judges no value. Not argparse: importing it costs a broker 0.4 to 1.6 MB for
its life, and lavinmqctl the time of its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence


class OptionError(ValueError):
    """An option with a value too many or too few; a text for people."""


def cut(argv: Sequence[str], takes_value: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """The options of a command line with their values, and other words with an empty name.

    Args: takes_value: of the name of an option, asked when its turn comes; raises what it likes for
        one that is unknown.
    Raises: OptionError.
    """
    rest = iter(argv)
    for word in rest:
        if word == "--":
            yield from (("", each) for each in rest)
        elif word.startswith("--"):
            name, equals, text = word.partition("=")
            if takes_value(name):
                yield name, text if equals else _value(name, rest)
            elif equals:
                raise OptionError(f"Option {name} takes no value")
            else:
                yield name, ""
        elif word.startswith("-") and len(word) > 1:
            yield from _cluster(word, rest, takes_value)
        else:
            yield "", word


def _cluster(
    word: str, rest: Iterator[str], takes_value: Callable[[str], bool]
) -> Iterator[tuple[str, str]]:
    for index in range(1, len(word)):
        name = f"-{word[index]}"
        if takes_value(name):
            yield name, word[index + 1 :].removeprefix("=") or _value(name, rest)
            return
        yield name, ""


def _value(name: str, rest: Iterator[str]) -> str:
    text = next(rest, None)
    # A forgotten value must not swallow the next option; "-1" is a number.
    if text is None or (text.startswith("-") and not text[1:].isdigit() and text != "-"):
        raise OptionError(f"Missing value of option {name}")
    return text
