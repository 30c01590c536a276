"""The checks before a consumer resumes at saved positions. Decisions without I/O."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client.positions.saved_positions import SavedPositions
from penstock.errors import PositionAhead, PositionOfOtherBucket
from penstock.store.history.failover_log import FailoverLog


def check_bucket(saved: SavedPositions, uuid: str, vbuckets: int, place: str) -> None:
    """Check that positions belong to a bucket.

    Args:
        saved: the positions. An empty uuid belongs to every bucket.
        uuid: the uuid of the bucket; empty if the server does not report it.
        vbuckets: the number of vbuckets of the bucket.
        place: where the positions are saved, for the error.

    Raises:
        PositionOfOtherBucket: the uuids or the numbers of vbuckets differ.
    """
    advice = "the bucket was deleted and created again, or is a different bucket; reset the positions to start over"
    if saved.uuid and uuid and saved.uuid != uuid:
        raise PositionOfOtherBucket(f"{place}: found the bucket uuid {saved.uuid}, expected {uuid}: {advice}")
    if saved.vbuckets != vbuckets:
        raise PositionOfOtherBucket(f"{place}: found {saved.vbuckets} vbuckets, expected {vbuckets}: {advice}")


def find_ahead(
    saved: SavedPositions, seqnos: Mapping[int, int], logs: Mapping[int, FailoverLog], place: str
) -> PositionAhead | None:
    """Return the error of the first position that the server's history does not reach; None without one.

    A position in an older branch is not ahead: its branch lost changes, so a producer answers with a rollback.

    Args:
        saved: the positions.
        seqnos: vbucket -> its high seqno.
        logs: vbucket -> its failover log, newest entry first.
        place: where the positions are saved, for the error.
    """
    for vbucket, position in sorted(saved.by_vbucket.items()):
        if vbucket not in seqnos or vbucket not in logs or position.seqno <= seqnos[vbucket]:
            continue
        if position.vbuuid == logs[vbucket][0].vbuuid:
            return PositionAhead(
                f"{place}: found seqno {position.seqno} of vbucket {vbucket}, expected at most {seqnos[vbucket]}, "
                "the server's newest; an older copy of the bucket was restored, or the positions were edited"
            )
    return None
