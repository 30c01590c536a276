"""Change the modules that decide in small ways, and check that their tests notice each change.

```sh
python -m mutation                                # all modules of modules.toml
python -m mutation store/history/rollback         # one module
python -m mutation --show store/log/row_index     # print survivors without a reason, as rows of survivors.toml
```

Each change of the code, a mutant, must make a test fail, or be in survivors.toml with a reason.
The exit status is 1 if a survivor lacks a reason, or if tests kill less than 95 % of all mutants. It is also 1 if a row
of survivors.toml names a mutant that is killed or does not exist.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from mutation.mutants import WORK, MutationFailed, Outcome, test_module
from mutation.tables import Change, Watched, read_modules, read_survivors

GOAL = 0.95
REPORT = WORK / "report.json"


def main() -> int:
    modules = read_modules()
    parser = argparse.ArgumentParser(prog="python -m mutation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="module", help="as store/rollback; default: all of modules.toml")
    parser.add_argument("--processes", type=int, default=2, help="mutants that run at a time")
    parser.add_argument("--show", action="store_true", help="print new survivors as rows of survivors.toml")
    chosen = parser.parse_args()
    unknown = set(chosen.modules) - {watched.module for watched in modules}
    if unknown:
        parser.error(f"not in modules.toml: {', '.join(sorted(unknown))}")
    outcomes = {}
    for watched in modules:
        if chosen.modules and watched.module not in chosen.modules:
            continue
        try:
            outcomes[watched.module] = run_module(watched, chosen.processes)
        except MutationFailed as error:
            print(error, file=sys.stderr)
            return 1
    faults = list(find_faults(outcomes))
    write_report(outcomes, faults, REPORT)
    print_table(outcomes)
    for fault in faults:
        print(fault, file=sys.stderr)
    if chosen.show:
        print_rows(outcomes)
    return 1 if faults else 0


def run_module(watched: Watched, processes: int) -> Outcome:
    began = time.monotonic()
    outcome = test_module(watched, processes)
    print(f"{watched.module}: {outcome.killed} of {outcome.total} killed, {time.monotonic() - began:.0f} s", flush=True)
    return outcome


def find_faults(outcomes: dict[str, Outcome]) -> Iterator[str]:
    """Yield a sentence for each survivor without a reason, each row without a survivor, and a missed goal."""
    explained = read_survivors()
    for module, outcome in outcomes.items():
        known = explained.get(module, {})
        for change in dict.fromkeys(outcome.survivors):
            if change not in known:
                yield f"{module}, {change.function}: no test notices `{change.after}` in place of `{change.before}`"
        for change in known.keys() - set(outcome.survivors):
            yield f"{module}, {change.function}: survivors.toml has a mutant that is none: `{change.after}`"
    total = sum(outcome.total for outcome in outcomes.values())
    killed = sum(outcome.killed for outcome in outcomes.values())
    if killed < GOAL * total:
        yield f"the tests kill {killed} of {total} mutants, less than {GOAL:.0%}"


def write_report(outcomes: dict[str, Outcome], faults: list[str], path: Path) -> None:
    rows = {module: {"mutants": found.total, "killed": found.killed} for module, found in outcomes.items()}
    path.write_text(json.dumps({"modules": rows, "faults": faults}, indent=2), encoding="utf-8")


def print_table(outcomes: dict[str, Outcome]) -> None:
    sums = Outcome(sum(row.total for row in outcomes.values()), sum(row.killed for row in outcomes.values()), [])
    for module, outcome in {**outcomes, "all": sums}.items():
        share = outcome.killed / max(outcome.total, 1)
        print(f"{module:<28} {outcome.total:>5} mutants {outcome.killed:>5} killed {share:>7.1%}")


def print_rows(outcomes: dict[str, Outcome]) -> None:
    explained = read_survivors()
    for module, outcome in outcomes.items():
        by_function: dict[str, list[Change]] = {}
        for change in dict.fromkeys(outcome.survivors):
            if change not in explained.get(module, {}):
                by_function.setdefault(change.function, []).append(change)
        for function, changes in by_function.items():
            print(f'\n[[survivor]]\nmodule = "{module}"\nfunction = "{function}"\nreason = ""\nchanges = [')
            for change in changes:
                print(f"    [{json.dumps(change.before)}, {json.dumps(change.after)}],")
            print("]")


if __name__ == "__main__":
    raise SystemExit(main())
