"""How many hops the changes of a vbucket have left: what TAP needs to end circles of nodes that feed each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MOST", "Hops"]

MOST = 255
"""Of a change made here."""

_KEPT = 8192


class Hops:
    """A function of the seqno, in steps: MOST but where a change came over TAP.

    Of more than some thousand steps the oldest are given up: their changes are let go on as if they were made here.
    """

    __slots__ = ("_starts", "_ttls")

    def __init__(self) -> None:
        self._starts = [0]
        self._ttls = [MOST]

    def note(self, seqno: int, ttl: int) -> None:
        """A change with this seqno, the highest so far, has so many hops left."""
        starts, ttls = self._starts, self._ttls
        while len(starts) > 1 and starts[-1] >= seqno:  # behind another, or of a history that was given up
            starts.pop()
            ttls.pop()
        for start, hops in ((seqno, ttl), (seqno + 1, MOST)):
            if ttls[-1] != hops:
                starts.append(start)
                ttls.append(hops)
        if len(starts) > _KEPT:
            del starts[1 : _KEPT // 2], ttls[1 : _KEPT // 2]

    @property
    def has_spent(self) -> bool:
        """Is there a change that goes no further?"""
        return 0 in self._ttls

    def of(self, seqnos: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """Return the hops that are left of each change."""
        return np.array(self._ttls, np.uint8)[np.searchsorted(self._starts, seqnos, "right") - 1]
