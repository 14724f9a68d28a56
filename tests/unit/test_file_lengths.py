"""A file of more than 500 lines says in its head why it is one."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = 500
HEAD = 30


def test_long_files_say_why_they_are_one() -> None:
    sources = [
        path
        for room in ("lavinmq", "cext", "pyspark_lavinmq", "pyspark_lavinmq_segments")
        for path in (ROOT / room).rglob("*")
        if path.suffix in (".py", ".pyx", ".pxd")
    ]
    lines = {path: path.read_text().splitlines() for path in sources}
    silent = [
        str(path.relative_to(ROOT))
        for path, text in lines.items()
        if len(text) > MOST and "onger than 500 lines" not in " ".join(text[:HEAD])
    ]

    assert len(sources) > 300
    assert silent == []
