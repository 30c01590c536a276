"""The TTL of TAP changes: the number of hops that a change may still travel between nodes.

The TTL ends circles of nodes that feed each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

MAX_TTL = 255
"""TTL of a change that was made on this node."""

_MAX_STEPS = 8192


class TapTtls:
    """The TTL of each change of a vbucket, as a step function of the seqno.

    All changes have MAX_TTL but those that came over TAP. Above some thousand steps, the oldest are dropped: their
    changes count as made on this node.
    """

    __slots__ = ("_starts", "_ttls")

    def __init__(self) -> None:
        self._starts = [0]
        self._ttls = [MAX_TTL]

    def record(self, seqno: int, ttl: int) -> None:
        """Record the TTL of the newest change.

        Args:
            seqno: the seqno of the change, the highest so far.
            ttl: the hops that the change may still travel.
        """
        starts, ttls = self._starts, self._ttls
        while len(starts) > 1 and starts[-1] >= seqno:  # right after another change, or from an abandoned history
            starts.pop()
            ttls.pop()
        for start, value in ((seqno, ttl), (seqno + 1, MAX_TTL)):
            if ttls[-1] != value:
                starts.append(start)
                ttls.append(value)
        if len(starts) > _MAX_STEPS:
            del starts[1 : _MAX_STEPS // 2], ttls[1 : _MAX_STEPS // 2]

    @property
    def has_expired(self) -> bool:
        """Whether a change may travel no further."""
        return 0 in self._ttls

    def get_ttls(self, seqnos: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """Return the TTL of each change."""
        return np.array(self._ttls, np.uint8)[np.searchsorted(self._starts, seqnos, "right") - 1]
