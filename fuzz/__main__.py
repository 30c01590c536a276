"""Fuzz consumers of every dialect, a node in every dialect and over HTTP, and the parser of typed documents.

    python -m fuzz                                          20 seconds for each dialect
    python -m fuzz --minutes 60 --dialect tap --jobs 2
    python -m fuzz --dialect dcp --side node build/fuzz/dcp-node/found/crash-...    one try again

The time of a dialect is shared among its sides. Needs atheris, which exists for Linux and Python 3.11 to 3.13.
Interesting tries stay in build/fuzz; each finding is a file, and the command that repeats it is printed.
build/fuzz/report.json has the counts of the run.

The exit status is 1 if there is a finding. Findings are errors other than protocol errors, defects that a node logged,
and answers that are no messages. A try that takes 10 seconds or 2 GiB is a finding too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fuzz.targets import DIALECTS, TARGETS, Target

WORK = Path("build/fuzz")
REPORT = WORK / "report.json"
LONGEST_TRY = 4096  # bytes
MEMORY = 2048  # MiB; a try that allocates more is a finding
PROGRESS_SECONDS = 60
LOG_SHOWN = 4000  # characters of a failed process's output


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        from fuzz.trying import fuzz

        target = _find_target(sys.argv[2])
        fuzz(target, _get_notes_path(target), _get_findings_path(target), sys.argv[3:])
        return 0
    chosen = parse_arguments()
    targets = [
        target
        for target in TARGETS
        if target.dialect in (chosen.dialect or DIALECTS) and target.side in (chosen.side or (target.side,))
    ]
    if chosen.tries and len(targets) > 1:
        print("a try is repeated on one side of one dialect: expected --dialect and --side", file=sys.stderr)
        return 2
    seconds = chosen.seconds if chosen.minutes is None else round(60 * chosen.minutes)
    sides = Counter(target.dialect for target in targets)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        running = [pool.submit(run, target, seconds // sides[target.dialect], chosen.tries) for target in targets]
        rows = [one.result() for one in running]
    WORK.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps({"targets": rows}, indent=2), encoding="utf-8")
    print_table(rows)
    return 1 if any(row["findings"] for row in rows) else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=20, help="for each dialect")
    parser.add_argument("--minutes", type=float, help="for each dialect, in place of seconds")
    parser.add_argument("--dialect", choices=DIALECTS, action="append", help="only this one")
    parser.add_argument("--side", choices=("consumer", "node"), action="append", help="only this one")
    parser.add_argument("--jobs", type=int, default=1, help="how many run at a time")
    parser.add_argument("tries", nargs="*", help="files with tries to repeat instead, of one side of one dialect")
    return parser.parse_args()


def run(target: Target, seconds: int, tries: list[str]) -> dict[str, Any]:
    """Fuzz a target in a process of its own, and return its row of the report."""
    corpus, found, log = WORK / target.name / "corpus", _get_findings_path(target), WORK / target.name / "log.txt"
    before = set(found.glob("*"))
    begin = write_tries(target, corpus)
    found.mkdir(parents=True, exist_ok=True)
    _get_notes_path(target).unlink(missing_ok=True)
    print(f"{target.name}: {begin} tries to begin with, {seconds} s", flush=True)
    limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST_TRY}", f"-rss_limit_mb={MEMORY}", "-timeout=10"]
    where = [f"-artifact_prefix={found}/", "-verbosity=0"]
    command = [sys.executable, "-m", "fuzz", "--inside", target.name, *limits, *where, *(tries or [str(corpus)])]
    with log.open("wb") as output:
        status = watch(target, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT))
    files = sorted(str(path) for path in set(found.glob("*")) - before)
    if status and not files:
        files = tries or [str(log)]
    if status:
        print(log.read_text(encoding="utf-8", errors="replace")[-LOG_SHOWN:], file=sys.stderr)
    for path in files:
        print(f"{target.name}: a finding; repeat it with\n    {format_repeat_command(target, path)}", file=sys.stderr)
    return {"target": target.name, "status": status, **read_notes(target), "findings": files}


def format_repeat_command(target: Target, path: str) -> str:
    """Return the command that tries a file again."""
    return f".venv/bin/python -m fuzz --dialect {target.dialect} --side {target.side} {path}"


def write_tries(target: Target, corpus: Path) -> int:
    """Write the tries that fuzzing begins with into a directory; return how many there are."""
    corpus.mkdir(parents=True, exist_ok=True)
    begin = sorted(set(target.list_tries()))
    for number, data in enumerate(begin):
        (corpus / f"begin-{number:04}").write_bytes(data)
    return len(begin)


def watch(target: Target, process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process and print its progress each minute. Returns its exit status."""
    began = time.monotonic()
    while True:
        try:
            return process.wait(PROGRESS_SECONDS)
        except subprocess.TimeoutExpired:
            notes = read_notes(target)
            minutes = (time.monotonic() - began) / 60
            print(f"{target.name}: {minutes:.0f} min, {notes['tries']} tries, {len(notes['seen'])} kinds", flush=True)


def read_notes(target: Target) -> dict[str, Any]:
    """Return the progress that a target's process wrote last."""
    try:
        notes: dict[str, Any] = json.loads(_get_notes_path(target).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"tries": 0, "seconds": 0, "seen": {}}
    return notes


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'target':<20} {'seconds':>8} {'tries':>10} {'opcodes':>8} {'kinds':>6} {'findings':>9}")
    for row in rows:
        opcodes = len({kind.partition(" ")[0] for kind in row["seen"]})
        print(
            f"{row['target']:<20} {row['seconds']:>8} {row['tries']:>10} {opcodes:>8} {len(row['seen']):>6} "
            f"{len(row['findings']):>9}"
        )


def _find_target(name: str) -> Target:
    """Return the target of this name."""
    return next(target for target in TARGETS if target.name == name)


def _get_findings_path(target: Target) -> Path:
    return WORK / target.name / "found"


def _get_notes_path(target: Target) -> Path:
    return WORK / target.name / "notes.json"


if __name__ == "__main__":
    raise SystemExit(main())
