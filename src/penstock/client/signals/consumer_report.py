"""The state of a change stream at one moment, as one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.client.signals.stream_counts import StreamCounts


@dataclass(frozen=True, slots=True)
class VbucketLag:
    """The lag of one vbucket.

    Attributes:
        seqno: the seqno of the position.
        high_seqno: the newest seqno in the bucket, or in the selected collections.
        seconds: since when the bucket has had a change that the stream has not delivered; 0 without such a change.
    """

    seqno: int
    high_seqno: int
    seconds: float

    @property
    def seqnos(self) -> int:
        """The seqnos that the stream has not delivered. Some of them may be of changes that it does not request."""
        return max(self.high_seqno - self.seqno, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerReport:
    """The state of a change stream or a consumer at one moment.

    Attributes:
        bucket: the name of the bucket.
        at: seconds since the epoch.
        counts: the counts since the stream or the consumer began.
        changes_per_second: since the last report, or since the beginning.
        bytes_per_second: likewise, bytes on the wire.
        lags: vbucket -> lag. Empty for TAP, which has no seqnos, and before the bucket has reported its seqnos.
        seqnos_at: when the bucket reported its seqnos, in seconds since the epoch. It is earlier than `at` while nodes
            do not answer; 0: never.
        buffered_bytes: bytes that were received, and are not processed.
        missing: vbuckets that wait for their node.
    """

    bucket: str
    at: float
    counts: StreamCounts
    changes_per_second: float = 0.0
    bytes_per_second: float = 0.0
    lags: Mapping[int, VbucketLag] = field(default_factory=dict)
    seqnos_at: float = 0.0
    buffered_bytes: int = 0
    missing: tuple[int, ...] = ()

    @property
    def lag_seqnos(self) -> int:
        """The lag of all vbuckets together, in seqnos."""
        return sum(each.seqnos for each in self.lags.values())

    @property
    def largest_lag_seqnos(self) -> int:
        """The lag of the vbucket that lags most, in seqnos."""
        return max((each.seqnos for each in self.lags.values()), default=0)

    @property
    def lag_seconds(self) -> float:
        """The lag of the vbucket that lags longest, in seconds."""
        return max((each.seconds for each in self.lags.values()), default=0.0)

    @property
    def lagging_vbuckets(self) -> int:
        """The number of vbuckets with a lag."""
        return sum(each.seqnos > 0 for each in self.lags.values())

    @property
    def is_caught_up(self) -> bool:
        """Whether the stream had all changes when the bucket last reported its seqnos."""
        return bool(self.lags) and not self.missing and not self.lagging_vbuckets

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON members. Only vbuckets with a lag are listed."""
        return {
            "bucket": self.bucket,
            "at": self.at,
            "is_caught_up": self.is_caught_up,
            "lag_seqnos": self.lag_seqnos,
            "lag_seconds": self.lag_seconds,
            "lagging": {
                str(vb): {"seqno": each.seqno, "high_seqno": each.high_seqno, "seconds": each.seconds}
                for vb, each in sorted(self.lags.items())
                if each.seqnos
            },
            "seqnos_at": self.seqnos_at,
            "changes_per_second": self.changes_per_second,
            "bytes_per_second": self.bytes_per_second,
            "buffered_bytes": self.buffered_bytes,
            "missing": [*self.missing],
            **asdict(self.counts),
        }
