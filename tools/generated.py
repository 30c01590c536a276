"""Pages that are made from the code: written, or with --check only compared."""

from __future__ import annotations

import sys
from pathlib import Path


def publish(target: Path, text: str) -> int:
    """Write a page, or with --check say whether it would change. Returns the exit status."""
    if "--check" not in sys.argv[1:]:
        target.parent.mkdir(exist_ok=True)
        target.write_text(text)
        return 0
    if target.exists() and target.read_text() == text:
        return 0
    print(f"{target} is not what the code says: run python {sys.argv[0]}", file=sys.stderr)
    return 1
