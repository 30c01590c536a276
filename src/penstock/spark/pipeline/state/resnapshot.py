"""New snapshots of vbuckets: requests to the run of a lake, and their progress.

The run starts a new history of a requested vbucket. A rollback row to 0 voids its rows, and the batch with this row
reads all its documents again. So in the tables, nothing is lost, and nothing is there twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Error, UsageError
from penstock.spark.lake.changelog.merge_rules import ROLLBACK_EVENTS
from penstock.spark.lake.reading.lake_positions import read_planned_end, read_position
from penstock.spark.lake.reading.lake_readers import scan_changelog
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.state.run_state import is_locked
from penstock.spark.source.read_positions import add_requests, remove_requests
from penstock.spark.storage.object_path import LakePath

_POLL_SECONDS = 0.1
"""Seconds between two checks of the lake's position."""


def locate_requests(lake: LakeDirectory) -> LakePath:
    """Return the file with the requests to the runs of a lake."""
    return lake.path / "_resnapshot.json"


def request_resnapshot(lake: LakeDirectory, choose: Callable[[int], Collection[int]]) -> dict[int, int]:
    """Request that the run of a lake, or its next run, reads vbuckets again.

    Args:
        lake: the lake.
        choose: returns the vbuckets in a bucket with so many vbuckets.

    Returns:
        The vbuckets with the history that a plan must leave. Vbuckets of which nothing was read yet are left out.

    Raises:
        UsageError: no run has planned a batch, or the bucket does not have a vbucket.
    """
    # The newest plan, not the newest batch: a plan that is in progress may have started a new history before this call.
    end = read_planned_end(lake)
    if end is None:
        raise UsageError(f"{lake.path} has no position yet; expected the lake of a pipeline that has run")
    count = len(end.vbuckets)
    chosen = sorted(choose(count))
    if chosen and chosen[-1] >= count:
        raise UsageError(f"vbuckets has {chosen[-1]}, but the bucket has vbuckets 0 to {count - 1}")
    histories = {vb: end.vbuckets[vb].history for vb in chosen if end.vbuckets[vb].seqno}
    if histories:
        add_requests(locate_requests(lake), histories)
    return histories


def wait_for_resnapshot(lake: LakeDirectory, histories: dict[int, int], timeout: float) -> bool:
    """Wait until the changelog has all requested vbuckets again, and remove the requests.

    Args:
        lake: the lake.
        histories: the requests.
        timeout: seconds to wait.

    Returns:
        False if the run of the lake has ended before; the next run fulfils the requests.

    Raises:
        Error: the timeout has passed.
    """
    deadline = time.monotonic() + timeout
    waiting = dict(histories)
    while waiting:
        position = read_position(lake)
        done = {vb for vb in waiting if position is not None and position.offset.vbuckets[vb].history > waiting[vb]}
        if done:
            remove_requests(locate_requests(lake), done)
            # A rollback of the bucket in the moment of the request starts a new history too, but not at 0.
            missed = _find_missed(lake, {vb: waiting.pop(vb) for vb in done})
            waiting |= _request_again(lake, missed)
            continue
        if not is_locked(lake):
            return False
        if time.monotonic() >= deadline:
            raise Error(
                f"after {timeout:g} s, {len(waiting)} vbuckets were not read again; the request stays, and the run"
                " continues"
            )
        time.sleep(_POLL_SECONDS)
    return True


def _request_again(lake: LakeDirectory, vbuckets: Collection[int]) -> dict[int, int]:
    return request_resnapshot(lake, lambda count: vbuckets) if vbuckets else {}


def _find_missed(lake: LakeDirectory, histories: dict[int, int]) -> set[int]:
    """Return the vbuckets that did not go back to 0 after these histories."""
    is_cut = pc.field("event").isin(ROLLBACK_EVENTS) & pc.field("vbucket").isin(list(histories))
    rows = scan_changelog(
        lake, ["vbucket", "history", "seqno"], is_cut & (pc.field("seqno") == pa.scalar(0, pa.int64()))
    )
    restarted = {each["vbucket"] for each in rows.to_pylist() if each["history"] > histories[each["vbucket"]]}
    return histories.keys() - restarted
