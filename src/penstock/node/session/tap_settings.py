"""The settings of the node's TAP side."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TapSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TapSettings:
    """Times in seconds; the names and defaults are ep-engine's.

    noop_interval: an idle connection gets a NOOP that often. ack_grace_period: a consumer that owes an answer for so
    long is gone. backoff_period: how long a consumer that has no room is left alone. keepalive: a named consumer may
    go on where it was if it is back in this time; a registered one always. ack_interval: every so many messages one
    asks for an answer; ack_window_size: so many intervals may be unanswered.
    """

    noop_interval: float = 200.0
    ack_grace_period: float = 300.0
    backoff_period: float = 5.0
    keepalive: float = 0.0
    ack_interval: int = 1000
    ack_window_size: int = 10
