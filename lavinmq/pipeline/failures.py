"""What Spark raises, in one line: the innermost cause, with the exit status that belongs to it.

An error of a Python data source reaches the driver as text: Java exceptions around a Python
traceback. Its last line names the class and the message of the cause: all that people need.
"""

from __future__ import annotations

import re

from lavinmq.pipeline.errors import DataLossError, PipelineError, UsageError

LINE_MAX = 500
# `pkg.module.NameError: text`, at the beginning of a line of a Python traceback.
_PYTHON = re.compile(
    r"^(?:Caused by: )?(?:[\w.]+\.)?(?P<name>\w*(?:Error|Exception|Failure|Loss)\w*):"
    r" (?P<text>.+)$",
    re.MULTILINE,
)
_CONDITION = re.compile(r"^\[(?P<name>[A-Z_.]+)\] (?P<text>.+)$", re.DOTALL)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]*@")


def explain(error: BaseException) -> PipelineError:
    """Return the error as one of ours: one line, without passwords."""
    if isinstance(error, PipelineError):
        return error
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        return PipelineError(one_line(f"{name}{error.strerror}"))
    name, text = _cause(str(error) or type(error).__name__)
    if name.startswith("DataLoss"):
        return DataLossError(one_line(text))
    if name in {"OptionError", "OptionsError"}:
        return UsageError(one_line(text))
    return PipelineError(one_line(text))


def one_line(text: str) -> str:
    """Return a text in one line of at most LINE_MAX characters, without users of URLs."""
    line = _USER_INFO.sub("", " ".join(text.split()))
    return line if len(line) <= LINE_MAX else f"{line[: LINE_MAX - 1]}…"


def _cause(text: str) -> tuple[str, str]:
    """The class and message of the innermost Python exception in a text, else of Spark's own."""
    found = [m for m in _PYTHON.finditer(text) if not m["name"].startswith(("Py4J", "Spark"))]
    ours = [m for m in found if m["name"].startswith("DataLoss")] or [
        m for m in found if m["name"] not in {"PythonException", "UnboundLocalError"}
    ]
    if ours:
        return ours[-1]["name"], ours[-1]["text"]
    condition = _CONDITION.match(text.strip())
    if condition:
        return condition["name"], condition["text"].split("\n", 1)[0]
    return "", text.strip().split("\n", 1)[0]
