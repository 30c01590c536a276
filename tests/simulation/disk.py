"""Simulated disks of a machine: one for each directory of a bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from penstock.store.disk.bucket_files import Directory
from tests.store.memory_disk import MemoryDisk


class MachineDisks:
    """The disks of one machine, which outlive its processes.

    Attributes:
        by_path: path of a bucket's directory -> its disk.
        make_disk: makes an empty disk.

    Args:
        on_death: called as a process ends in the middle of a call.
    """

    def __init__(self, on_death: Callable[[], None]) -> None:
        self.by_path: dict[Path, MemoryDisk] = {}
        self.make_disk: Callable[[], MemoryDisk] = MemoryDisk
        self._on_death = on_death

    def open(self, path: Path) -> Directory:
        """Return the directory of a path, as the class `Directory` does."""
        if path not in self.by_path:
            disk = self.by_path[path] = self.make_disk()
            disk.on_death = self._on_death
        return self.by_path[path](path)

    def end_process(self, random: Random, *, power: bool) -> None:
        """End the process that used the disks; without power, unsynced data may be lost."""
        for disk in self.by_path.values():
            if power:
                disk.lose_power(random)
            else:
                disk.kill()

    def plan_death(self, calls: int) -> None:
        """Let the process die in a call of the operating system, after this number of calls."""
        for disk in self.by_path.values():
            disk.calls_left = calls
