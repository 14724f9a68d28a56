"""Drawings and pages of the reports: figures as PNG or SVG, and HTML that needs no network.

Owns how a report looks. Called by `bench_report` and `flow` with plain values; never computes one.
matplotlib draws because it does so without a browser, a display or a server, and the same figure
becomes a PNG and an SVG; its figures are used directly, without the global state of pyplot.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lavinmq.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GOOD, BAD, NEUTRAL = "#2a8f5b", "#c8443c", "#8a8f98"
COLOURS = ("#2f6fb5", "#d07a22", "#2a8f5b", "#8b5fbf", "#c8443c", "#6b7280", "#b59a2f", "#3fa7a7")
WIDTH_INCH = 9.0
BAR_INCH = 0.24
# A page is for people: what has more lines belongs into the JSON or Parquet output.
TABLE_MAX = 2000
# Nothing is fetched, whoever wrote the texts: this forbids it to the browser too.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9em}
td,th{padding:.2em .7em;border-bottom:1px solid #8884;text-align:left}
td.n,th.n{text-align:right}tr.bad{background:#c8443c33}tr.good{background:#2a8f5b22}
.wide{overflow-x:auto}svg{max-width:100%;height:auto;background:#fff}
"""


def bars(title: str, values: Sequence[tuple[str, float]], unit: str, limit: float = 0.0) -> Figure:
    """Draw horizontal bars around zero, largest value on top, red beyond `limit`."""
    ordered = sorted(values, key=lambda each: each[1])
    figure = _figure(1.2 + BAR_INCH * max(len(ordered), 3))
    axes = figure.add_subplot()
    colours = [BAD if v > limit else GOOD if v < -limit else NEUTRAL for _, v in ordered]
    axes.barh(range(len(ordered)), [value for _, value in ordered], color=colours, height=0.7)
    axes.set_yticks(range(len(ordered)), [_plain(name, 60) for name, _ in ordered], fontsize=8)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel(unit)
    _finish(figure, title)
    return figure


def lines(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float | None]]],
    unit: str,
    *,
    names: Sequence[str] = (),
    is_time: bool = False,
) -> Figure:
    """Draw one line per series; a value of None is a gap.

    Places are numbers: of `names` where they are given, else unix seconds if `is_time`.
    """
    figure = _figure(3.6)
    axes = figure.add_subplot()
    for number, (name, points) in enumerate(series.items()):
        places: list[Any] = [place for place, _ in points]
        if is_time:
            places = [datetime.fromtimestamp(place, UTC) for place in places]
        heights = [float("nan") if value is None else value for _, value in points]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(places, heights, marker="o", markersize=3, color=colour, label=_plain(name, 40))
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.grid(visible=True, alpha=0.3)
    if names:
        axes.set_xticks(range(len(names)), [_plain(name, 40) for name in names])
    axes.tick_params(axis="x", rotation=20, labelsize=8)
    if len(series) > 1:
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _finish(figure, title)
    return figure


def _figure(height_inch: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PipelineError("plots need matplotlib: pip install matplotlib") from None
    return Figure(figsize=(WIDTH_INCH, min(height_inch, 60.0)), layout="constrained")


def _finish(figure: Figure, title: str) -> None:
    figure.suptitle(_plain(title, 100), fontsize=11)


def _plain(text: str, length: int) -> str:
    """Make a text safe to draw: one line, no formula, not longer than the figure is wide."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    text = text if len(text) <= length else text[: length - 1] + "…"
    return text.replace("$", r"\$")


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure as PNG. Raises: OSError."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    _save(path, image.getvalue())


def _save(path: Path, content: bytes) -> None:
    """Write a file: at any time the old one is there as a whole, or the new. Raises: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        path.write_bytes(content)  # a pipe, such as /dev/stdout
        return
    path = path.resolve()
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def svg(figure: Figure) -> str:
    """Return a figure as the `<svg>` element of a page; equal figures give equal text."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "lavinmq", "svg.fonttype": "none"}):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=nothing)
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


class Page:
    """An HTML page in one file: headings, texts, tables and figures in the order they are added."""

    def __init__(self, title: str) -> None:
        self._title = escape(title)
        self._parts: list[str] = [f"<h1>{self._title}</h1>"]

    def heading(self, text: str) -> None:
        """Start a section."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def figure(self, figure: Figure) -> None:
        """Add a figure, as vectors."""
        self._parts.append(svg(figure))

    def table(
        self,
        head: Sequence[str],
        rows: Sequence[Sequence[str]],
        numbers: int = 0,
        marks: Sequence[str] = (),
        *,
        behind: int = 0,
    ) -> None:
        """Add a table of texts; `numbers` columns, with `behind` others after them, are set right.

        `marks`: per row "bad", "good" or "".
        """
        right = _right(head, numbers, behind)

        def cells(kind: str, row: Sequence[str]) -> str:
            return "".join(
                f'<{kind} class="n">{escape(cell)}</{kind}>'
                if column in right
                else f"<{kind}>{escape(cell)}</{kind}>"
                for column, cell in enumerate(row)
            )

        padded = [*marks, *[""] * (len(rows) - len(marks))]
        body = "\n".join(
            f'<tr class="{escape(mark)}">{cells("td", row)}</tr>'
            for mark, row in zip(padded[:TABLE_MAX], rows[:TABLE_MAX], strict=True)
        )
        table = f"<table><tr>{cells('th', head)}</tr>\n{body}</table>"
        self._parts.append(f'<div class="wide">{table}</div>')
        if len(rows) > TABLE_MAX:
            self.text(f"{len(rows) - TABLE_MAX} more rows are not shown here.")

    def html(self) -> str:
        """Return the whole page."""
        head = (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            f"<title>{self._title}</title><style>{STYLE}</style></head><body>\n"
        )
        return head + "\n".join(self._parts) + "\n</body></html>\n"

    def save(self, path: Path) -> None:
        """Write the page. Raises: OSError."""
        _save(path, self.html().encode("utf-8", "replace"))


def align(
    head: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0, *, behind: int = 0
) -> str:
    """Return a table for a terminal: columns as wide as needed, numbers set right as on a page."""
    lines_ = [list(head), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines_) for column in range(len(head))]
    right = _right(head, numbers, behind)

    def one(line: Sequence[str]) -> str:
        cells = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return "\n".join(one(line) for line in lines_)


def _right(head: Sequence[str], numbers: int, behind: int) -> range:
    """Return the columns of numbers."""
    end = len(head) - behind
    return range(end - numbers, end)
