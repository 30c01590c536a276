"""Offsets of the Spark source as JSON, and their number of vbuckets."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.stream_position import Position
from penstock.errors import UsageError
from penstock.spark.source.batch_planning import (
    PlanMemory,
    plan_batch,
)
from penstock.spark.source.offsets import (
    Offset,
    ProvenEnd,
    VbucketOffset,
    VbucketRead,
    check_vbucket_count,
    derive_reads,
    make_first_offset,
)
from penstock.spark.source.run_lengths import shorten_text
from tests.spark.plan_builders import A, at, info

SEQNOS = st.integers(0, 2**64 - 1)


@st.composite
def vbucket_offsets(draw: st.DrawFn) -> VbucketOffset:
    numbers = sorted(draw(st.lists(st.integers(1, 2**64 - 1), max_size=8, unique=True)))
    proven = tuple(ProvenEnd(end, high) for end, high in pairwise(numbers))[::2]
    seqno = draw(st.integers(proven[-1].end if proven else 0, 2**64 - 1))
    requested = draw(st.none() | SEQNOS)
    return VbucketOffset(draw(st.integers(0, 99)), draw(SEQNOS), seqno, proven, draw(SEQNOS), requested)


class TestOffsetJson:
    def test_has_a_column_for_each_attribute(self):
        offset = Offset(
            (at(0, 2**64 - 1, 130, (10, 17), (130, 130)), at(1, 7, 5, requested=0), at(0, 0, 0), at(0, 0, 0))
        )
        assert offset.to_json() == {
            "version": 1,
            "history": "0 1 0*2",
            "vbuuid": "18446744073709551615 7 0*2",
            "seqno": "130 5 0*2",
            "proven": "120+7,0+0 -*3",
            "purge": "0*4",
            "requested": "- 0 -*2",
        }

    @given(
        st.lists(vbucket_offsets(), min_size=1, max_size=5),
        st.booleans(),
        st.sampled_from(["", "2d2c7ef0"]),
        st.sampled_from([None, (), (0,), (8, 12)]),
    )
    def test_round_trip(self, vbuckets, pinned, uuid, collection_ids):
        offset = Offset(tuple(vbuckets), pinned, uuid, collection_ids)
        text = json.dumps(offset.to_json())
        again = Offset.from_json(json.loads(text))
        assert again == offset
        assert json.dumps(again.to_json()) == text

    def test_1024_vbuckets_stay_small(self):
        offset, memory = make_first_offset(1024), PlanMemory()
        assert len(json.dumps(offset.to_json())) < 150
        for turn in range(1, 8):
            infos = {v: info(100_000 * turn + 37 * v, vbuuid=2**47 + v) for v in range(1024)}
            offset, memory = plan_batch(offset, infos, None, memory)
        assert len(json.dumps(offset.to_json())) < 80_000

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 2}, "offset of version 2, expected 1"),
            ({"version": None}, "offset of version None"),
            ({"seqno": "1"}, "shorter"),
            ({"seqno": "1*3"}, "longer"),
            ({"seqno": 7}, "7 is not a column"),
            ({"seqno": "1 x"}, "'x' is not a number"),
            ({"seqno": "1 -1"}, "'-1' is not a number"),
            ({"vbuuid": f"1 {2**64}"}, "is not a number from 0 to"),
            ({"history": "0*9999999999"}, "more than 65536 vbuckets"),
            ({"proven": "-*3"}, "shorter"),
            ({"purge": "0"}, "shorter"),
            ({"proven": "- 4"}, "'' is not a number"),
            ({"proven": "- 1+2+3"}, r"'2\+3' is not a number"),
            ({"proven": "- 5+0"}, "not the proven ends of seqno 5"),
            ({"proven": "- 9+0"}, "not the proven ends of seqno 5"),
            ({"proven": "- 0+0,1+0"}, "not the proven ends of seqno 5"),
            ({"proven": "- 4+0,3+0,2+0,1+0,0+0"}, "not the proven ends of seqno 5"),
        ],
    )
    def test_that_is_malformed_is_refused_in_one_sentence(self, change, message):
        good = Offset((at(0, A, 5), at(0, A, 5))).to_json()
        with pytest.raises(UsageError, match=message) as caught:
            Offset.from_json({**good, **change})
        assert "\n" not in str(caught.value)
        assert str(caught.value).endswith(f": {shorten_text({**good, **change})}")

    def test_that_lacks_a_column_is_refused(self):
        with pytest.raises(UsageError, match="not an offset of this source"):
            Offset.from_json({"version": 1, "history": "0"})


def test_number_of_vbuckets_never_changes():
    with pytest.raises(UsageError, match=r"has 32 vbuckets, expected 16 \(0 to 15\)"):
        check_vbucket_count(make_first_offset(16), 32)
    with pytest.raises(UsageError, match="vbucket 2, expected one below 2"):
        plan_batch(make_first_offset(2), {0: info(1), 2: info(1)})
    with pytest.raises(UsageError, match="1 and 2 vbuckets"):
        derive_reads(make_first_offset(1), make_first_offset(2))


class TestVbucketRead:
    @pytest.mark.parametrize(
        ("read", "start", "vbuuid"),
        [
            (VbucketRead(0, 0, A, 0, 9), 0, 0),
            (VbucketRead(0, 2, A, 5, 9), 5, A),
            (VbucketRead(0, 0, A, 0, 9, purge_seqno=6), 0, 0),
        ],
    )
    def test_starts_at_a_complete_snapshot(self, read, start, vbuuid):
        expected = Position(seqno=start, vbuuid=vbuuid, snap_start=start, snap_end=start, history=read.history)
        assert read.start == expected

    def test_reads_only_the_planned_branch(self):
        assert VbucketRead(0, 0, A, 0, 9, purge_seqno=6).policy == PinnedBranch(A, 6)
