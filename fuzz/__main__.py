"""Fuzz the receiving side of every dialect.

    python -m fuzz                              20 seconds for each dialect
    python -m fuzz --seconds 600 --dialect tap
    python -m fuzz --dialect dcp build/fuzz/dcp/crash-...    one try again

Needs atheris, which there is for Linux and Python 3.11 to 3.13. What was found interesting stays in build/fuzz.
Exits with 1 as soon as something but a protocol error comes out; the try that did it is kept, and named.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from penstock.wire.constants import Dialect

WORK = Path("build/fuzz")
LONGEST_TRY = 4096  # bytes
MEMORY = 2048  # MiB; what a try allocates beyond that is a finding


def run(dialect: Dialect, seconds: int, tries: list[str]) -> int:
    """Fuzz one dialect in a process of its own, as the fuzzer wants it, and return its exit status."""
    from fuzz.corpus import write_corpus

    corpus = WORK / dialect
    known = write_corpus(corpus, dialect)
    limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST_TRY}", f"-rss_limit_mb={MEMORY}", "-timeout=10"]
    where = [f"-artifact_prefix={corpus}/", "-print_final_stats=1", "-verbosity=0"]
    print(f"{dialect}: {known} tries to begin with, {seconds} s", flush=True)
    command = [sys.executable, "-m", "fuzz", "--inside", dialect, *limits, *where, *(tries or [str(corpus)])]
    return subprocess.run(command, check=False).returncode


def inside(dialect: Dialect, arguments: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["penstock", "fuzz.target"]):
        from fuzz.target import check

    atheris.Setup([sys.argv[0], *arguments], lambda data: check(data, dialect))
    atheris.Fuzz()


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        inside(Dialect(sys.argv[2]), sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=20, help="for each dialect")
    parser.add_argument("--dialect", type=Dialect, choices=list(Dialect), action="append", help="only this one")
    parser.add_argument("tries", nargs="*", help="files with tries to repeat instead, of one dialect")
    chosen = parser.parse_args()
    for dialect in chosen.dialect or Dialect:
        if run(dialect, chosen.seconds, chosen.tries):
            print(f"{dialect}: something but a protocol error came out", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
