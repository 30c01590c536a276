"""Runs the month: `python -m tests.drift [--short] [--no-spark] [--seed N]`. Prints a line for each table and day."""

from __future__ import annotations

import argparse
import sys
import time
from tempfile import TemporaryDirectory

from tests.drift.drift_run import run_month


def main() -> int:
    """Run the month of the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.drift")
    parser.add_argument("--short", action="store_true", help="five days instead of thirty")
    parser.add_argument("--no-spark", action="store_true", help="micro-batches without Spark")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    with TemporaryDirectory(prefix="penstock-drift-") as directory:
        lines = run_month(directory, is_short=options.short, with_spark=not options.no_spark, seed=options.seed)
        for line in lines:
            print(line, flush=True)
    print(f"all tables equalled the bucket in all readers, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
