"""Programs that tests start, as they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SUBMIT = BIN / "spark-submit"


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, env=environment, cwd=cwd)
