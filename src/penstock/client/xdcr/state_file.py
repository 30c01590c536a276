"""The state file of a replication: its newest checkpoint, as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.client.feeds.stream_position import Position, SnapshotEnd
from penstock.client.xdcr.checkpoint import Checkpoint
from penstock.errors import Error, UsageError

__all__ = ["StateFile"]

_FORMAT = 1


class StateFile:
    """The state file of a replication. After a crash it has the old or the new checkpoint.

    Args:
        path: the file; its directory must exist.
        selection: the options that choose changes. A checkpoint of another choice is refused.
    """

    def __init__(self, path: Path, selection: Mapping[str, Any]) -> None:
        self.path = path
        self._selection = dict(selection)

    def read(self) -> Checkpoint:
        """Return the checkpoint; the beginning if there is no file.

        Raises:
            Error: the file is damaged.
            UsageError: the file belongs to a replication with other filters or another mapping.
        """
        try:
            content = json.loads(self.path.read_bytes())
            if content["format"] != _FORMAT:
                raise ValueError(content["format"])
            selection = dict(content["selection"])
            positions = {int(vbucket): _read_position(each) for vbucket, each in content["positions"].items()}
            ends = {int(vbucket): SnapshotEnd(*map(int, each)) for vbucket, each in content["target_ends"].items()}
        except FileNotFoundError:
            return Checkpoint()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Error(f"{self.path} is not a state file of a replication; remove it to start over") from None
        if selection != self._selection:
            changed = [name for name in self._selection if selection.get(name) != self._selection[name]]
            raise UsageError(
                f"{self.path} has the position of a replication with other options: "
                f"{', '.join(changed) or 'unknown'}; remove it to start over"
            )
        return Checkpoint(positions, ends)

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint."""
        content = {
            "format": _FORMAT,
            "selection": self._selection,
            "positions": {vbucket: _write_position(each) for vbucket, each in checkpoint.positions.items()},
            "target_ends": checkpoint.target_ends,
        }
        new = self.path.with_name(f"{self.path.name}.new")
        with new.open("w", encoding="utf-8") as file:
            file.write(json.dumps(content))  # json.dump would call Python for each number
            file.flush()
            os.fsync(file.fileno())  # before the rename, or a power failure could leave an empty file
        new.replace(self.path)


def _write_position(position: Position) -> list[Any]:
    return [
        *(position.seqno, position.vbuuid, position.snap_start, position.snap_end, position.history),
        [list(end) for end in position.ends],
    ]


def _read_position(content: list[Any]) -> Position:
    seqno, vbuuid, snap_start, snap_end, history, ends = content
    return Position(
        seqno=int(seqno),
        vbuuid=int(vbuuid),
        snap_start=int(snap_start),
        snap_end=int(snap_end),
        history=int(history),
        ends=tuple(SnapshotEnd(*map(int, end)) for end in ends),
    )
