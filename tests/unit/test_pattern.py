"""Patterns of operators: PCRE as far as it is only spelled differently, and refusal of the rest."""

import re

import pytest

from lavinmq import pattern


@pytest.mark.parametrize(
    ("text", "found", "not_found"),
    [
        ("", ["", "q"], []),
        ("q", ["q", "aqa"], ["a"]),
        (r"^(?!amq\.).*", ["q", ""], ["amq.gen-1"]),
        (r"\Aq\z", ["q"], ["q\n", "aq"]),
        (r"q\Z", ["q", "q\n"], ["qa"]),
        (r"^a\hb$", ["a b", "a\tb"], ["a\nb", "ahb"]),
        (r"^\x{e9}\e\x{2e}$", ["é\x1b."], ["é\x1bx"]),
        (r"^\Qa.b\E+$", ["a.b", "a.bb"], ["axb"]),
        (r"\Qa.*", ["a.*"], ["abc"]),
        (r"^(?<first>.)\k<first>$", ["aa"], ["ab"]),
        (r"^(?P<first>.)\k{first}(?P=first)$", ["aaa"], ["aab"]),
        (r"(?<=a)b(?<!xb)", ["ab"], ["cb"]),
        ("^[[:alpha:]_]+$", ["a_Z"], ["a1", ""]),
        ("^[^[:digit:]]$", ["a"], ["1"]),
        (r"^[\h\x{41}-C]+$", ["A B\tC"], ["D"]),
        ("^[]a]+$", ["]a"], ["b"]),
        ("^[^]a]+$", ["b"], ["]"]),
        ("^[a[&&||~~-]+$", ["a[&|~-"], ["b"]),
        ("^[a+--]+$", ["a+,-"], ["."]),
        ("^[--/]+$", ["-./"], ["a", ","]),
        ("^[[a]$", ["[", "a"], ["]"]),
        (r"^a\[[^]]$", ["a[b"], ["a[]"]),
        (r"^a\\z$", ["a\\z"], ["a"]),
        ("(?i)QUEUE", ["queue"], ["q"]),
        ("^a++b$", ["aab"], ["a"]),
        ("^(?>a|ab)c$", ["ac"], ["abc"]),
    ],
)
def test_a_pattern_means_what_pcre_means(text: str, found: list[str], not_found: list[str]) -> None:
    compiled = pattern.compiled(text)

    assert [name for name in found if not compiled.search(name)] == []
    assert [name for name in not_found if compiled.search(name)] == []


@pytest.mark.parametrize(
    "text",
    ["[", "(", "*", "\\", r"\p{L}", r"a\Kb", "(?R)", "a(?i)b", "[[:nope:]]", r"\x{110000}",
     "(?<a>.)(?<a>.)", r"\k<b>", "a{99999999999999999999}", "(" * 5000],
)  # fmt: skip
def test_what_cannot_be_compiled_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid regular expression"):
        pattern.compiled(text)


def test_usual_patterns_are_left_as_they_are() -> None:
    for text in (".*", "^q", r"^(a|b)\.[0-9]{2,3}$", r"^$", r"\w+-\d+", "[a-z]+"):
        assert pattern.compiled(text) == re.compile(text)
