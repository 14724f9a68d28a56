"""Coverage-guided fuzzing of one target, or of all in turn: `python tests/fuzz/run.py TARGET`.

Needs the compiled modules of `make build BUILD=fuzz`, which report their coverage and carry
AddressSanitizer, and atheris, which brings libFuzzer and instruments the Python half. What
libFuzzer learns stays in `build/fuzz/TARGET`; an input that breaks the target is written to
`tests/fuzz/found/TARGET`, where pytest replays it from then on. Exit code 1 when one was found.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Started as a script, `tests/fuzz` itself is on the path.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz.targets import FUZZ, NAMES

ROOT = FUZZ.parents[1]
LARGEST_INPUT = 16384
RUNTIME = "asan_with_fuzzer.so"
# The runtime stands in for crypt() and must find the real one at its start.
WRAPPED_LIBRARY = "libcrypt.so.1"
SANITIZER_OPTIONS = "detect_leaks=0:allocator_may_return_null=1"


def main() -> int:
    """Fuzz as the command line says."""
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__)
    parser.add_argument("target", choices=[*NAMES, "all"])
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    options = parser.parse_args()
    if options.target == "all":
        return max([_fuzz_in_process(name, options.seconds) for name in NAMES])
    if "LD_PRELOAD" not in os.environ:
        return _fuzz_in_process(options.target, options.seconds)
    _fuzz(options.target, options.seconds)
    return 0


def _fuzz_in_process(name: str, seconds: int) -> int:
    """Run this script again below the runtime that both halves' coverage reports to."""
    environment = os.environ | {
        "LD_PRELOAD": f"{_runtime()}:{WRAPPED_LIBRARY}",
        "ASAN_OPTIONS": SANITIZER_OPTIONS,
        # Objects from the C library's malloc: the sanitizer then sees where each of them ends.
        "PYTHONMALLOC": "malloc",
    }
    command = [sys.executable, __file__, name, "--seconds", str(seconds)]
    print(f"== {name}", flush=True)
    return 1 if subprocess.run(command, env=environment, check=False).returncode else 0


def _runtime() -> Path:
    atheris = importlib.util.find_spec("atheris")
    if atheris is None or atheris.origin is None:
        sys.exit("atheris is not installed; `make fuzz` does it")
    return Path(atheris.origin).parents[1] / RUNTIME


def _fuzz(name: str, seconds: int) -> None:
    """Fuzz in this process, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["lavinmq"]):
        from tests.fuzz.targets import opened

        # The target's module is imported here, and with it what is to be instrumented.
        directory = tempfile.TemporaryDirectory(prefix="fuzz-")
        context = opened(name, Path(directory.name))
    learnt, found = ROOT / "build" / "fuzz" / name, FUZZ / "found" / name
    for folder in (learnt, found):
        folder.mkdir(parents=True, exist_ok=True)
    arguments = [
        f"-max_total_time={seconds}",
        f"-max_len={LARGEST_INPUT}",
        f"-artifact_prefix={found}/",
        "-timeout=20",
        "-detect_leaks=0",
        "-print_final_stats=1",
        str(learnt),
        str(FUZZ / "corpus" / name),
        str(found),
    ]
    with directory, context as target:
        atheris.Setup([sys.argv[0], *arguments], target)
        atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
