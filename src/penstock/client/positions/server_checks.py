"""The check of saved positions against the server, before a consumer resumes at them."""

from __future__ import annotations

from penstock.client.bucket import Bucket
from penstock.client.positions.position_checks import check_bucket, find_ahead
from penstock.client.positions.saved_positions import SavedPositions
from penstock.wire.codec.constants import MAX_SEQNO


async def check_positions(bucket: Bucket, saved: SavedPositions, place: str) -> None:
    """Check that the server has the bucket and the history of positions.

    Args:
        bucket: the connected bucket.
        saved: the positions.
        place: where the positions are saved, for errors.

    Raises:
        PositionOfOtherBucket: the positions belong to another bucket.
        PositionAhead: a position is newer than the newest change of the server.
    """
    found = await bucket.cluster()
    check_bucket(saved, found.uuid, found.vbuckets, place)
    started = [vbucket for vbucket, position in saved.by_vbucket.items() if position.seqno]
    seqnos = await bucket.high_seqnos() if started else {}
    doubtful = [vb for vb in started if saved.by_vbucket[vb].seqno > seqnos.get(vb, MAX_SEQNO)]
    if doubtful and (error := find_ahead(saved, seqnos, await bucket.failover_logs(doubtful), place)):
        raise error
