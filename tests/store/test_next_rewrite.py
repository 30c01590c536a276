"""The choice of the segments that a compaction rewrites next."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.store.log.rewrite_choice import MOST_DEAD, choose_next_rewrite
from penstock.store.log.segment import Rows, Segment

_FRAME_BYTES = 100
_ROWS = 10
_LONGEST = _FRAME_BYTES * _ROWS  # so that two segments of the tests do not fit into one


def _make_segment(number: int, dead: int) -> Segment:
    """Return a segment of ten frames, of which the first `dead` are dead."""
    numbers = np.arange(_ROWS)
    superseded = np.where(numbers < dead, 1_000, 0).astype(np.int64)
    lengths = np.full(_ROWS, _FRAME_BYTES, np.uint32)
    rows = Rows(numbers + 1, (numbers * _FRAME_BYTES).astype(np.uint32), lengths, superseded)
    segment = Segment(memoryview(bytes(_LONGEST)), np.array([0, _ROWS], np.int32), rows, ids=(number, number))
    segment.set_superseded(superseded)
    return segment


@pytest.mark.parametrize(
    ("dead", "in_order", "expected"),
    [
        ([1, 1, 1], True, None),
        ([0, 3, 4, 3], True, 1),
        ([0, 3, 4, 3], False, 2),
        ([0, 0, 6, 0, 0, 0, 0, 0, 0, 0], False, 2),
        ([0, 0, 4, 0, 0, 0, 0, 0, 0, 0], False, None),
        ([3, 3, 3], False, 0),
    ],
)
def test_next_segment_to_rewrite_is_chosen_by_gain_or_order(
    dead: list[int], in_order: bool, expected: int | None
) -> None:
    sealed = [_make_segment(number, count) for number, count in enumerate(dead, 1)]
    gains = [segment.dead_bytes for segment in sealed]
    chosen, _ = choose_next_rewrite(sealed, gains, _LONGEST, front=0, pressed=False, in_order=in_order)
    assert chosen == (None if expected is None else slice(expected, expected + 1))
    assert expected is None or gains[expected] > MOST_DEAD * sealed[expected].size
