"""The tombstones that a purge request of a compaction covers."""

import numpy as np
import pytest

from penstock.store.log.rewrite import PurgeRequest

# Rows of (vbucket, seqno, deletion time); a time of 0 is a live document.
ROWS = [(7, 1, 100), (7, 2, 0), (7, 3, 200), (7, 4, 300), (8, 1, 100)]

COVERED = [
    (PurgeRequest(7), []),
    (PurgeRequest(7, before=200), [1]),
    (PurgeRequest(7, before=201), [1, 3]),
    (PurgeRequest(7, before=1000), [1, 3, 4]),
    (PurgeRequest(7, before=1000, up_to_seqno=3), [1, 3]),
    (PurgeRequest(7, before=1000, up_to_seqno=2**64 - 1), [1, 3, 4]),
    (PurgeRequest(7, up_to_seqno=3), []),
    (PurgeRequest(7, everything=True), [1, 3, 4]),
    (PurgeRequest(7, before=1, up_to_seqno=1, everything=True), [1, 3, 4]),
    (PurgeRequest(9, everything=True), []),
]


@pytest.mark.parametrize(("request_", "seqnos"), COVERED)
def test_a_request_covers_tombstones_of_its_vbucket(request_, seqnos):
    vbuckets, numbers, times = (np.array(column) for column in zip(*ROWS, strict=True))
    selected = request_.select(vbuckets.astype(np.uint16), numbers, times)
    assert numbers[selected].tolist() == seqnos
