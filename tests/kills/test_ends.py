"""Where a log ends in the middle of one operation, which wrote more than one record."""

from itertools import count
from pathlib import Path

from penstock.store.bucket import Bucket
from penstock.store.durable import DurableLog, log_name
from penstock.store.record import RECORD_BYTES
from penstock.wire.constants import VbucketState
from penstock.wire.schema import Event
from tests.store.model import START


def opened(path: Path) -> Bucket:
    vbuuids = count(1)
    return Bucket.open(path, "beer", vbuckets=1, clock=lambda: START, new_vbuuid=lambda: next(vbuuids))


def test_a_part_of_a_snapshot_never_seems_to_be_all_of_it(tmp_path: Path) -> None:
    bucket = opened(tmp_path / "whole")
    assert isinstance(bucket.log, DurableLog)
    (vbucket,) = bucket.vbuckets
    vbucket.set_state(VbucketState.REPLICA)
    began = bucket.log.end
    for seqno in (1, 2):
        vbucket.apply(Event.MUTATION, b"k%d" % seqno, b"v", cas=seqno, rev_seqno=1, seqno=seqno, snapshot_end=2)
    bucket.commit()
    data = bucket.log.directory.read(log_name(1))
    bucket.close()
    seen = set()
    for end in [*range(began, len(data), RECORD_BYTES), len(data)]:  # no record is shorter
        path = tmp_path / f"{end}"
        path.mkdir()
        for name in ("bucket.json", log_name(1)):
            (path / name).write_bytes((tmp_path / "whole" / name).read_bytes())
        (path / log_name(1)).write_bytes(data[:end])
        bucket = opened(path)
        (vbucket,) = bucket.vbuckets
        seen.add((vbucket.high_seqno, vbucket.whole_seqno))
        bucket.close()
    assert seen == {(0, 0), (1, 0), (2, 0), (2, 2)}
