"""Finds many rows by vbucket and seqno at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.store.log.segment import Column

Numbers = npt.NDArray[np.uint16]

_DISTINCT_BITS = np.uint64(47)
_DISTINCT = 2**47  # seqnos below, and vbuckets, fit into one number


def find_rows(numbers: Numbers, seqnos: Column, of: Numbers, wanted: Column) -> Column:
    """Return the place of each (of, wanted) among rows sorted by (vbucket, seqno); -1 where there is none."""
    if not len(wanted):
        return np.zeros(0, np.int64)
    if int(seqnos.max()) >= _DISTINCT:
        return find_rows_slowly(numbers, seqnos, of, wanted)
    names, sought = _make_row_ids(numbers, seqnos), _make_row_ids(of, wanted)
    # Where no seqno is missing a row lies as far from its vbucket's first one as the seqnos do.
    firsts = np.searchsorted(numbers, np.arange(2**16))[of]
    places: Column = np.minimum(firsts + wanted - seqnos[np.minimum(firsts, len(seqnos) - 1)], len(seqnos) - 1)
    places = np.maximum(places, 0)
    missed = np.flatnonzero(names[places] != sought)
    places[missed] = np.minimum(np.searchsorted(names, sought[missed]), len(names) - 1)
    places[names[places] != sought] = -1
    return places


def find_rows_slowly(numbers: Numbers, seqnos: Column, of: Numbers, wanted: Column) -> Column:
    """Return the places of rows as `find_rows` does, for seqnos of any size: vbucket by vbucket."""
    places = np.full(len(wanted), -1)
    bounds = np.searchsorted(numbers, np.arange(2**16 + 1)).tolist()
    for vbucket in np.unique(of).tolist():
        asking = np.flatnonzero(of == vbucket)
        start, end = bounds[vbucket], bounds[vbucket + 1]
        found = start + np.searchsorted(seqnos[start:end], wanted[asking])
        there = found < end
        there[there] = seqnos[found[there]] == wanted[asking[there]]
        places[asking[there]] = found[there]
    return places


def _make_row_ids(numbers: Numbers, seqnos: Column) -> npt.NDArray[np.uint64]:
    """Return one number for each (vbucket, seqno), in the same order."""
    return (numbers.astype(np.uint64) << _DISTINCT_BITS) | seqnos.astype(np.uint64)
