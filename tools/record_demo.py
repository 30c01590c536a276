"""Run `penstock demo` and keep its output as a picture, docs/demo.svg, for the README.

.venv/bin/python tools/record_demo.py
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "demo.svg"
WIDTH = 118


def main() -> int:
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "demo", *sys.argv[1:]],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(ran.stdout, end="")
    if ran.returncode:
        return ran.returncode
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    console.print(Text.assemble(("$ ", "bold green"), ("make demo", "bold")))
    console.print(Text.from_ansi(ran.stdout), end="", no_wrap=True, crop=True, overflow="ellipsis")
    console.save_svg(str(PICTURE), title="penstock")
    print(f"written to {PICTURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
