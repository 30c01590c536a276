"""Positions of a lake, and waiting for writes; the lakes are written without Spark."""

import json
import threading
from datetime import UTC, datetime, timedelta

import pytest

from penstock.client.documents.mutation_tokens import MutationToken
from penstock.errors import OperationTimeout, UsageError, WriteLost
from penstock.spark import Lake
from penstock.spark.lake.reading.lake_positions import BranchHistory, contains_write, find_position_at
from penstock.spark.source.offsets import Offset, VbucketOffset
from tests.patience import PATIENCE
from tests.spark.lakes import VBUCKETS, append, checkpoint, rollback, row

BRANCH = 1000  # vbuuid of history 0 in tests.spark.lakes


def plan(lake: Lake, batch: int, **ends: VbucketOffset) -> Offset:
    """Write the offset file of a batch as Spark does; `vb7=...` is the end in vbucket 7."""
    checkpoint(lake.checkpoint)
    offset = Offset(tuple(ends.get(f"vb{vbucket}", VbucketOffset()) for vbucket in range(VBUCKETS)))
    lines = ["v1", '{"batchWatermarkMs":0,"batchTimestampMs":0}', json.dumps(offset.to_json())]
    (lake.checkpoint / "offsets" / str(batch)).write_text("\n".join(lines))
    return offset


def end(lake: Lake, batch: int) -> None:
    (lake.checkpoint / "commits").mkdir(exist_ok=True)
    (lake.checkpoint / "commits" / str(batch)).write_text("v1\n{}")


def written(lake: Lake, seqno: int, batch: int = 0, **more) -> Offset:
    offset = plan(lake, batch, vb7=VbucketOffset(0, BRANCH, seqno, **more))
    append(lake, batch, [row(7, number, b"key %d" % number) for number in range(1, seqno + 1)] if not batch else [])
    end(lake, batch)
    return offset


def test_newest_position_is_read(lake):
    assert lake.position() is None
    first = written(lake, 3)
    found = lake.position()
    assert found is not None
    assert (found.batch, found.offset) == (0, first)
    assert found.committed is not None
    assert abs(found.committed - datetime.now(UTC)) < timedelta(minutes=5)
    second = written(lake, 9, batch=1)
    plan(lake, 2, vb7=VbucketOffset(0, BRANCH, 20))  # planned, but not committed
    newest, oldest = lake.position(), lake.position(0)
    assert newest is not None
    assert oldest is not None
    assert (newest.offset, oldest.offset) == (second, first)
    with pytest.raises(UsageError, match="has no batch 2; expected one from 0 to 1"):
        lake.position(2)
    (lake.checkpoint / "offsets" / "0").unlink()
    with pytest.raises(UsageError, match="does not exist; the oldest batch in the checkpoint is 1"):
        lake.position(0)
    (lake.checkpoint / "offsets" / "1").write_text("nonsense")
    with pytest.raises(UsageError, match="is not an offset file of Spark"):
        lake.position()


def test_past_positions_are_found(lake):
    assert find_position_at(lake, datetime.now(UTC)) is None
    offsets = [written(lake, 3), written(lake, 9, batch=1)]
    ends = [found.committed for batch in (0, 1) if (found := lake.position(batch)) and found.committed]
    moment = timedelta(microseconds=1)
    assert find_position_at(lake, ends[0] - timedelta(hours=1)) is None
    for when, batch in ((ends[1], 1), (ends[1] + moment, 1), (ends[1] + timedelta(days=1), 1)):
        found = find_position_at(lake, when)
        assert found is not None
        assert (found.batch, found.offset) == (batch, offsets[batch])


def token(seqno: int, vbuuid: int = BRANCH, vbucket: int = 7) -> MutationToken:
    return MutationToken(vbucket, vbuuid, seqno)


def test_wait_returns_at_once_for_held_writes(lake):
    written(lake, 3)
    lake.wait_for([], timeout=0)
    lake.wait_for([token(1), token(3)], timeout=0)


def test_wait_returns_when_writes_arrive(lake):
    done: list[bool] = []

    def wait() -> None:
        lake.wait_for([token(3), token(9)], timeout=PATIENCE)
        done.append(True)

    waiter = threading.Thread(target=wait)
    waiter.start()
    written(lake, 3)
    assert not done
    written(lake, 9, batch=1)
    waiter.join(PATIENCE)
    assert done


def test_wait_ends_at_the_timeout(lake):
    with pytest.raises(OperationTimeout, match=r"after 0\.01 s change 4 of vbucket 7 is not in .*, which nothing was"):
        lake.wait_for([token(4)], timeout=0.01)
    written(lake, 3)
    with pytest.raises(OperationTimeout, match=r"change 4 of vbucket 7 and 1 more is not in .*, which ends at 3$"):
        lake.wait_for([token(4), token(5)], timeout=0)
    with pytest.raises(OperationTimeout, match="ends at 3, on another branch"):
        lake.wait_for([token(2, vbuuid=77)], timeout=0)  # a branch that the lake has not reached yet
    with pytest.raises(UsageError, match=r"vbucket 64, and .* is of a bucket with 64"):
        lake.wait_for([token(1, vbucket=64)])


def test_rolled_back_write_is_lost(lake):
    written(lake, 9)
    plan(lake, 1, vb7=VbucketOffset(1, BRANCH + 1, 8, requested=6))
    rolled = rollback(7, 5, 1) | {"requested_seqno": 6}
    append(lake, 1, [rolled, *(row(7, seqno, b"new %d" % seqno, history=1) for seqno in (6, 7, 8))])
    lake.wait_for([token(5), token(6), token(8, BRANCH + 1)], timeout=0)
    with pytest.raises(
        WriteLost, match="vbucket 7 was rolled back to 6 on another branch, which does not have change 7"
    ):
        lake.wait_for([token(6), token(7)], timeout=PATIENCE)


HISTORIES = [
    ("behind", token(5), (BRANCH, 4), None, False),
    ("reached", token(5), (BRANCH, 5), None, True),
    ("superseded", token(5), (BRANCH, 9), None, True),
    ("nothing planned yet", token(5), (0, 0), None, False),
    ("a newer branch", token(5, 8), (7, 9), BranchHistory({7: (0, 9)}), False),
    ("rolled back below it", token(5, 7), (8, 9), BranchHistory({7: (0, 6), 8: (1, 9)}, ((1, 4),)), WriteLost),
    ("rolled back above it", token(5, 7), (8, 9), BranchHistory({7: (0, 6), 8: (1, 9)}, ((1, 5),)), True),
    ("to be read again", token(5, 7), (8, 3), BranchHistory({7: (0, 6), 8: (1, 3)}, ((1, 5),)), False),
    ("rolled back twice", token(5, 7), (9, 9), BranchHistory({7: (0, 6), 9: (2, 9)}, ((1, 5), (2, 4))), WriteLost),
    ("rolled back before it", token(5, 8), (9, 9), BranchHistory({8: (1, 6), 9: (1, 9)}, ((1, 2),)), True),
    ("went on elsewhere, behind it", token(5, 7), (8, 9), BranchHistory({7: (0, 5), 8: (0, 9)}), True),
    ("went on elsewhere, perhaps before it", token(6, 7), (8, 9), BranchHistory({7: (0, 5), 8: (0, 9)}), WriteLost),
    ("went on elsewhere, not that far", token(6, 7), (8, 5), BranchHistory({7: (0, 5), 8: (0, 5)}), False),
    ("read again and not that far", token(5, 7), (8, 9), BranchHistory({7: (1, 3), 8: (1, 9)}, ((1, 2),)), WriteLost),
]


@pytest.mark.parametrize(
    ("write", "stands", "history", "expected"), [pytest.param(*case, id=name) for name, *case in HISTORIES]
)
def test_history_decides_about_a_write(write, stands, history, expected):
    vbuuid, seqno = stands
    if expected is WriteLost:
        with pytest.raises(WriteLost):
            contains_write(write, vbuuid, seqno, history)
    else:
        assert contains_write(write, vbuuid, seqno, history) is expected
