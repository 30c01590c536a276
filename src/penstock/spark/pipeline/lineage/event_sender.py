"""Delivery of events to a server or a file, on a thread of its own. A run neither waits for it nor fails by it."""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.errors import Error

MOST_EVENTS = 256
"""Events that wait. An event that finds no room is dropped."""
END_SECONDS = 5.0
"""Seconds that the end of a run waits for the last events."""

_log = logging.getLogger("penstock.lineage")

Deliver = Callable[[Mapping[str, Any]], None]
"""Delivers one event. Raises Error or OSError if it cannot."""


class EventSender:
    """A bounded queue of events, and the thread that delivers them.

    Args:
        deliver: delivers an event; called by the thread.

    Attributes:
        place: the receiver, for messages.
    """

    def __init__(self, deliver: Deliver, place: str) -> None:
        self.place = place
        self._deliver = deliver
        self._events: queue.Queue[Mapping[str, Any] | None] = queue.Queue(MOST_EVENTS)
        self._offered = self._delivered = 0  # each is written by one thread
        self._thread = threading.Thread(target=self._deliver_all, name="penstock-lineage", daemon=True)

    @property
    def dropped(self) -> int:
        """Events that were not delivered. Before the end, the waiting events count too."""
        return self._offered - self._delivered

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(queue.Full):
            self._events.put_nowait(None)
        self._thread.join(END_SECONDS)
        if self.dropped:
            _log.warning("lineage: %d events were not delivered to %s", self.dropped, self.place)

    def send(self, event: Mapping[str, Any]) -> None:
        """Queue an event, or drop it if the queue is full. Returns at once."""
        self._offered += 1
        with suppress(queue.Full):
            self._events.put_nowait(event)

    def _deliver_all(self) -> None:
        has_warned = False
        while (event := self._events.get()) is not None:
            try:
                self._deliver(event)
                self._delivered += 1
            except (Error, OSError) as error:
                if not has_warned:
                    _log.warning("lineage: %s", error)
                has_warned = True


def append_event(path: Path, event: Mapping[str, Any]) -> None:
    """Append an event to a file, as a line of JSON."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n")
