"""Patterns of operators are those of PCRE, and none takes long."""

import pytest

from lavinmq import _pcre
from lavinmq.policy import pattern


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
        (r"^\p{Lu}\w$", ["Éé", "AB"], ["aB", "É-"]),
        ("^a(?i)b$", ["aB", "ab"], ["AB"]),
        (r"^\((?:[^()]|(?R))*\)$", [], ["(a"]),
        (r"^a\Kb$", ["ab"], ["b"]),
        ("^(?|(?<x>a)|(?<x>b))$", ["a", "b"], ["c"]),
    ],
)
def test_a_pattern_means_what_pcre_means(text: str, found: list[str], not_found: list[str]) -> None:
    compiled = pattern.compiled(text)

    assert [name for name in found if not compiled.search(name)] == []
    assert [name for name in not_found if compiled.search(name)] == []


@pytest.mark.parametrize(
    "text",
    ["[", "(", "*", "\\", "[[:nope:]]", r"\x{110000}", r"\k<b>", "a{99999999999999999999}",
     "(" * 3000, "(" * 300 + ")" * 300, "(((a{1,100}){1,100}){1,100}){1,100}", "a" * 4097,
     r"a\Cb", "\ud800"],
)  # fmt: skip
def test_what_cannot_be_compiled_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid regular expression"):
        pattern.compiled(text)


ENDLESS = [
    "^(a+)+$",
    "^(a|aa)+$",
    r"^(\w+\.?)*$",
    "^(?=(a+)+$)",
    r"(a*)*\1[bc]",
    r"^(.*?a){30}[bc]",
]
STUMBLE = "a" * 60 + "!"


@pytest.mark.parametrize("text", ENDLESS)
def test_a_pattern_that_would_never_end_matches_nothing(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = pattern.compiled(text)

    found = [compiled.search("a," * 120) or compiled.search(STUMBLE) for _ in range(3)]

    assert not any(found)
    assert compiled.stumbles >= 3
    assert caplog.text.count("takes too long") == 1


def test_a_pattern_that_stumbles_over_one_name_goes_on_with_others() -> None:
    compiled = pattern.compiled("^(a+)+$")

    assert not compiled.search(STUMBLE)
    assert compiled.search("aaaa")
    assert not compiled.search("b")
    assert compiled.stumbles == 1


def test_usual_patterns_on_long_names_are_far_from_the_limit() -> None:
    names = ["a" * 255, "a.b-c_" * 42, "tenant-1.orders.eu-west-1.dead-letters" * 6]
    for text in (
        r"^(?!amq\.).*", ".*", r"^tenant-[0-9]+\.", r"(orders|invoices)\..*\.dead",
        r"\.dead-letters$",
        r"^([a-z0-9_-]+\.)*[a-z0-9_-]+$", "(?i)EU-.*-[0-9]", "^.*a.*b.*$",
    ):  # fmt: skip
        compiled = pattern.compiled(text)
        for name in names:
            compiled.search(name)
        assert compiled.stumbles == 0, text


def test_an_operation_leaves_out_what_stumbles_when_its_patience_is_over() -> None:
    slow, quick = pattern.compiled("^(a+)+$"), pattern.compiled("^a")
    patience = pattern.Patience(2)

    found = [patience.search(slow, STUMBLE) for _ in range(5)]

    assert not any(found)
    assert slow.stumbles == 2
    assert patience.has_skipped
    assert patience.search(quick, STUMBLE)


def test_a_name_that_is_no_text_is_searched_without_harm() -> None:
    assert pattern.compiled("^q").search("q\udcff")
    with pytest.raises(ValueError, match="cannot be searched"):
        _pcre.Expression(b"q").search(b"\xff")
