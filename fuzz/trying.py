"""Make tries for one target, in a process of its own, which libFuzzer requires."""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from pathlib import Path

from fuzz.targets import Target

SECONDS = 2.0
"""Seconds between two notes of progress."""

GRAMMAR = 0.9
"""Share of the tries that are changed as their grammar allows; the others are changed anywhere."""


class ProgressNotes:
    """Writes the progress of a process to a file. The process ends abruptly, so it writes all the time."""

    def __init__(self, target: Target, path: Path) -> None:
        self._target = target
        self._path = path
        self._began = self._last = time.monotonic()
        self.tries = 0

    def count_try(self) -> None:
        """Count a try, and write the file from time to time."""
        self.tries += 1
        now = time.monotonic()
        if now - self._last < SECONDS:
            return
        self._last = now
        seen = dict(sorted(self._target.answered().items()))
        found = {"tries": self.tries, "seconds": round(now - self._began), "seen": seen}
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(found), encoding="utf-8")
        draft.replace(self._path)


def save_try(data: bytes, found: Path) -> None:
    """Write a try with a finding. libFuzzer uses the same name, but does not write findings in the first tries."""
    found.mkdir(parents=True, exist_ok=True)
    (found / f"crash-{hashlib.sha1(data).hexdigest()}").write_bytes(data)


def fuzz(target: Target, notes: Path, found: Path, arguments: list[str]) -> None:
    """Run libFuzzer with its arguments; does not return.

    Args:
        target: the target that receives the tries.
        notes: file for the progress.
        found: directory for tries with findings.
        arguments: libFuzzer's own.
    """
    import atheris

    with atheris.instrument_imports(include=["penstock", "fuzz.consumer", "fuzz.documents", "fuzz.node", "fuzz.http"]):
        check = target.check()
    mutate, progress = target.mutate(), ProgressNotes(target, notes)

    def change(data: bytes, longest: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() > GRAMMAR:
            changed: bytes = atheris.Mutate(data, longest)
            return changed
        return mutate(data, longest, chance)

    def try_one(data: bytes) -> None:
        try:
            check(data)
        except BaseException:
            save_try(data, found)
            raise
        progress.count_try()

    atheris.Setup([sys.argv[0], *arguments], try_one, custom_mutator=change)
    atheris.Fuzz()
