"""Durations of a bucket's commands by kind: since the start, and of the last ten minutes."""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final

from penstock.node.timing.histogram import Histogram
from penstock.wire.codec.opcodes import Opcode

RECENT_SECONDS: Final = 600.0
"""The time that the recent durations cover, at most `_STATE_SECONDS` more."""

_STATE_SECONDS = 30.0


class CommandKind(Enum):
    """A kind of command.

    Attributes:
        label: the name in metrics, on pages and in STAT latencies, which only this node has.
        stat: the name in STAT timings: ep-engine's, where ep-engine times the kind.
        opcodes: the opcodes; those of no kind are OTHER.
    """

    GET = ("get", "get_cmd", "GET GETQ GETK GETKQ GAT GATQ GET_LOCKED GET_REPLICA GET_META GETQ_META GET_RANDOM_KEY")
    SET = (
        "set",
        "store_cmd",
        "SET SETQ ADD ADDQ REPLACE REPLACEQ APPEND APPENDQ PREPEND PREPENDQ TOUCH"
        " SET_WITH_META SETQ_WITH_META ADD_WITH_META ADDQ_WITH_META",
    )
    DELETE = ("delete", "delete_cmd", "DELETE DELETEQ DEL_WITH_META DELQ_WITH_META")
    COUNTER = ("counter", "arith_cmd", "INCREMENT INCREMENTQ DECREMENT DECREMENTQ")
    SUBDOC = ("subdoc", "subdoc_cmd", " ".join(each.name for each in Opcode if each.name.startswith("SUBDOC_")))
    OTHER = ("other", "other_cmd", "")

    def __init__(self, label: str, stat: str, opcodes: str) -> None:
        self.label = label
        self.stat = stat
        self.opcodes = frozenset(Opcode[name] for name in opcodes.split())


_KINDS = tuple(CommandKind)
# The UPR draft has its requests of streams in the opcode of SET; a stream needs one of them, which counts as a SET.
_KIND_NUMBERS = bytes(
    next((number for number, kind in enumerate(_KINDS) if opcode in kind.opcodes), _KINDS.index(CommandKind.OTHER))
    for opcode in range(256)
)


class CommandTimes:
    """The durations of a bucket's commands, by kind.

    Recent durations are those since one of its states of the last minutes. A state is kept by the first command after
    half a minute. So an idle bucket needs no timer, and a command costs one comparison.
    """

    def __init__(self) -> None:
        self._histograms = tuple(Histogram() for _ in _KINDS)
        self._states: deque[tuple[float, tuple[Histogram, ...]]] = deque(
            maxlen=int(RECENT_SECONDS / _STATE_SECONDS) + 2
        )
        self._next_state_at = 0.0

    def record(self, opcodes: bytes | bytearray, seconds: float, now: float, times: int = 1) -> None:
        """Count commands that took equally long.

        Args:
            opcodes: the opcode of each command, at least one.
            seconds: their duration.
            now: event-loop time.
            times: how often each of them counts.
        """
        if now >= self._next_state_at:
            self._states.append((now, self._copy_histograms()))
            self._next_state_at = now + _STATE_SECONDS
        if len(opcodes) == 1:
            self._histograms[_KIND_NUMBERS[opcodes[0]]].record(seconds, times)
            return
        numbers = opcodes.translate(_KIND_NUMBERS)
        for number, histogram in enumerate(self._histograms):
            if count := numbers.count(number):
                histogram.record(seconds, count * times)

    def list_all(self) -> dict[CommandKind, Histogram]:
        """Return the durations since the start, or since the counters were reset."""
        return dict(zip(_KINDS, self._histograms, strict=True))

    def list_recent(self, now: float) -> dict[CommandKind, Histogram]:
        """Return the durations of the last ten minutes.

        Args:
            now: event-loop time.
        """
        # No command came between a state's first half minute and the next state.
        since = now - RECENT_SECONDS - _STATE_SECONDS
        earlier = next((state for at, state in self._states if at > since), self._histograms)
        return {
            kind: histogram.subtract(before)
            for kind, histogram, before in zip(_KINDS, self._histograms, earlier, strict=True)
        }

    def reset(self) -> None:
        """Forget all durations."""
        self._states.clear()
        self._next_state_at = 0.0
        for histogram in self._histograms:
            histogram.reset()

    def _copy_histograms(self) -> tuple[Histogram, ...]:
        return tuple(Histogram.merge((each,)) for each in self._histograms)
