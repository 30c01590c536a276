"""The settings of the node's TAP producer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TapSettings:
    """Settings of TAP, with the names and defaults of ep-engine. Times are in seconds.

    Attributes:
        noop_interval: an idle connection gets a NOOP after this time.
        ack_grace_period: a consumer that owes an answer for this time counts as dead.
        backoff_period: pause after a consumer has refused a change for the moment.
        keepalive: time in which a named consumer may return and resume; a registered consumer always may.
        ack_interval: number of messages of which one asks for an answer.
        ack_window_size: number of intervals that may be unanswered.
    """

    noop_interval: float = 200.0
    ack_grace_period: float = 300.0
    backoff_period: float = 5.0
    keepalive: float = 0.0
    ack_interval: int = 1000
    ack_window_size: int = 10
