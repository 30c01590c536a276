"""The state file of a replication: its newest checkpoint, as saved positions with notes about the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import convert

from penstock.client.connect.cluster_map import ClusterMap
from penstock.client.feeds.stream_position import SnapshotEnd
from penstock.client.positions.file_positions import FilePositions
from penstock.client.positions.position_checks import check_bucket
from penstock.client.positions.saved_positions import SavedPositions
from penstock.client.xdcr.checkpoint import Checkpoint
from penstock.digits import read_u64
from penstock.errors import Error, PositionsUnreadable, UsageError

_SELECTION, _TARGET_ENDS = "xdcr_selection", "xdcr_target_ends"
"""The notes: the options that choose changes, and [vbucket, seqno, vbuuid] for each end."""


@dataclass(frozen=True, slots=True)
class StateFile:
    """The state file of a replication. After a crash it has the old or the new checkpoint.

    Attributes:
        path: the file; its directory must exist.
        selection: the options that choose changes. A checkpoint of another choice is refused.
    """

    path: Path
    selection: Mapping[str, Any]

    async def read(self, source: ClusterMap) -> Checkpoint:
        """Return the checkpoint; the beginning if there is no file.

        Raises PositionOfOtherBucket if the file belongs to another source.

        Args:
            source: the cluster map of the source bucket.

        Returns:
            The checkpoint.

        Raises:
            Error: the file is damaged.
            UsageError: the file belongs to a replication with other filters or another mapping.
        """
        try:
            saved = await FilePositions(self.path).read()
            if saved is None:
                return Checkpoint()
            selection = convert(saved.notes[_SELECTION], dict[str, Any])
            ends = convert(saved.notes[_TARGET_ENDS], list[tuple[int, int, str]])
            target_ends = {vbucket: SnapshotEnd(seqno, read_u64(vbuuid)) for vbucket, seqno, vbuuid in ends}
        except (PositionsUnreadable, ValueError, KeyError):  # the errors of msgspec are ValueErrors
            raise Error(f"{self.path} is not a state file of a replication; remove it to start over") from None
        if selection != self.selection:
            changed = [name for name in self.selection if selection.get(name) != self.selection[name]]
            raise UsageError(
                f"{self.path} has the position of a replication with other options: "
                f"{', '.join(changed) or 'unknown'}; remove it to start over"
            )
        check_bucket(saved, source.uuid, source.vbuckets, str(self.path))
        return Checkpoint(saved.by_vbucket, target_ends)

    async def write(self, checkpoint: Checkpoint, source: ClusterMap) -> None:
        """Replace the checkpoint.

        Args:
            checkpoint: the new checkpoint.
            source: the cluster map of the source bucket.
        """
        ends = [[vbucket, end.seqno, str(end.vbuuid)] for vbucket, end in checkpoint.target_ends.items()]
        saved = SavedPositions(
            bucket=source.bucket,
            uuid=source.uuid,
            vbuckets=source.vbuckets,
            by_vbucket=checkpoint.positions,
            notes={_SELECTION: dict(self.selection), _TARGET_ENDS: ends},
        )
        await FilePositions(self.path).write(saved)
