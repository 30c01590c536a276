"""The lag of vbuckets in seconds, from samples of the bucket's seqnos. Decisions without I/O."""

from __future__ import annotations

from collections.abc import Mapping

_MOST_SAMPLES = 32
"""Samples of 1024 seqnos that are kept: some 3 MB."""


class LagSamples:
    """Remembers when the bucket had which seqnos.

    A vbucket lags since the first sample whose seqno its position has not reached. No clock of a server is involved.
    So a lag is known to the time between two samples, and not further back than the first sample.
    """

    def __init__(self) -> None:
        self._samples: list[tuple[float, dict[int, int]]] = []

    def add(self, now: float, high_seqnos: Mapping[int, int], seqnos: Mapping[int, int]) -> None:
        """Add a sample, and forget the samples that all positions have reached.

        Args:
            now: the time of the sample, in seconds of any clock.
            high_seqnos: vbucket -> newest seqno in the bucket.
            seqnos: vbucket -> seqno of the position.
        """
        self._samples = [
            (at, highs) for at, highs in self._samples if any(highs.get(vb, 0) > seqnos[vb] for vb in seqnos)
        ]
        self._samples.append((now, dict(high_seqnos)))
        if len(self._samples) > _MOST_SAMPLES:
            del self._samples[1 : _MOST_SAMPLES // 2 : 2]  # the first one stays: the longest lags count from it

    def find_lag(self, now: float, vbucket: int, seqno: int, high_seqno: int) -> float:
        """Return the seconds since the bucket has had a change that the position has not; 0 without such a change.

        Args:
            now: the time, on the clock of the samples.
            vbucket: the vbucket.
            seqno: the seqno of the position.
            high_seqno: the newest seqno in the bucket. A failover may have made seqnos of earlier samples void.
        """
        if seqno >= high_seqno:
            return 0.0
        return next((now - at for at, highs in self._samples if min(highs.get(vbucket, 0), high_seqno) > seqno), 0.0)
