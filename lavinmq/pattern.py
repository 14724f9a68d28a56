"""Regular expressions of operators, which write PCRE: in policies and in permissions.

Python's `re` runs them. What is only spelled differently is translated: `\\z`, `\\Z`, `\\h`, `\\e`,
`\\x{..}`, `\\Q..\\E`, `(?<name>..)`, `\\k<name>` and classes such as `[[:alpha:]]`. What `re`
cannot do (`\\p{..}`, `\\K`, recursion, flags in the middle) does not compile. Nothing here bounds
the time that an expression takes; who may set one is trusted with that, as in other brokers.
Source: AMQP reference, section 21.
"""

import re
from typing import Final

_NAMED: Final = {
    "alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z",
    "space": r"\s", "blank": r" \t", "word": r"\w", "xdigit": "0-9a-fA-F",
    "punct": r"!-/:-@\[-`{-~", "cntrl": r"\x00-\x1f\x7f", "print": " -~", "graph": "!-~",
}  # fmt: skip
_ESCAPES: Final = {r"\z": r"\Z", r"\Z": r"(?=\n?\Z)", r"\h": r"[ \t]", r"\e": r"\x1b"}
_ESCAPES_IN_CLASS: Final = {r"\h": r" \t", r"\e": r"\x1b"}

_TOKEN: Final = re.compile(
    r"""\\Q(?P<literal>.*?)(?:\\E|\Z)
      | \\x\{(?P<code>[0-9a-fA-F]{1,6})\}
      | \\k[<{'](?P<reference>\w+)[>}']
      | \(\?<(?P<group>[A-Za-z_]\w*)>
      | \\.
      | (?P<class>\[\^?\]?)
      | .""",
    re.VERBOSE | re.DOTALL,
)
_TOKEN_IN_CLASS: Final = re.compile(
    r"""\\x\{(?P<code>[0-9a-fA-F]{1,6})\} | \[:(?P<named>\w+):\] | \\. | .""",
    re.VERBOSE | re.DOTALL,
)


def compiled(text: str) -> re.Pattern[str]:
    """The expression, to be searched anywhere in a name.

    Raises: ValueError with a text for people when it means nothing to `re`.
    """
    try:
        return re.compile(_translated(text))
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"Invalid regular expression {text!r}: {error}") from error


def _translated(text: str) -> str:
    """The expression as Python spells it."""
    parts = []
    at = 0
    while found := _TOKEN.match(text, at):
        at = found.end()
        token = found[0]
        if found["literal"] is not None:
            parts.append(re.escape(found["literal"]))
        elif found["code"]:
            parts.append(re.escape(_character(found["code"])))
        elif found["reference"]:
            parts.append(f"(?P={found['reference']})")
        elif found["group"]:
            parts.append(f"(?P<{found['group']}>")
        elif found["class"]:
            inside, at = _class(text, at)
            parts.append(token + inside)
        else:
            parts.append(_ESCAPES.get(token, token))
    return "".join(parts)


def _class(text: str, at: int) -> tuple[str, int]:
    """What follows the `[` of a class, up to and with its `]`, and where that ends."""
    parts: list[str] = []
    while found := _TOKEN_IN_CLASS.match(text, at):
        at = found.end()
        token = found[0]
        if token == "]":
            parts.append(token)
            break
        if found["named"]:
            parts.append(_named(found["named"]))
        elif found["code"]:
            parts.append(re.escape(_character(found["code"])))
        elif token in "[&~|" or (token == "-" and parts[1:] and parts[-1] == "-"):
            parts.append("\\" + token)  # `re` keeps these in pairs for operators to come
        else:
            parts.append(_ESCAPES_IN_CLASS.get(token, token))
    return "".join(parts), at


def _named(name: str) -> str:
    """The characters of `[:name:]`. Raises: re.error."""
    if name not in _NAMED:
        raise re.error(f"unknown class [:{name}:]")
    return _NAMED[name]


def _character(code: str) -> str:
    """The character of `\\x{code}`. Raises: re.error."""
    try:
        return chr(int(code, 16))
    except ValueError:
        raise re.error(f"no character {code}") from None
