"""Bytes in, events out: the receiving half of a connection, with no socket and no clock.

A reader asks `get_buffer` where to put bytes, fills some of it, and calls `receive_data`. What comes back are events in
the order of the bytes: a Frame for everything that is dealt with one by one; a Run for consecutive stream frames, which
stay where they are in the slab; Malformed for a frame that can be answered and skipped; Broken, always last, when there
is no next frame to be found. Only an incomplete frame is copied out of the slab, so that many connections of one event
loop share a slab. A frame too long to be worth copying twice is received in a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import MAX_FRAME, Dialect
from penstock.wire.codec.frame import HEADER, HEADER_BYTES, MAGICS, Frame, cut_frame, frame_length, view_frame
from penstock.wire.columns.heads import Run
from penstock.wire.columns.hop import Offsets, hop, hop_runs
from penstock.wire.columns.shapes import SLACK

SLAB_BYTES = 2 * 1024 * 1024
"""Room for received bytes. Columns from slabs of 1 to 4 MiB were measured fastest."""

VIEWED_FROM = 257 * 1024
"""Bytes of a frame above which its value may be a view. The value has more than 256 KiB then, next to any valid key;
and key and extras fit into the frame, whatever its header says."""

_MOST_READ = 1024 * 1024
"""Bytes that one read puts into a buffer of a frame's own: others have their turn in between."""

_OWN_BUFFER = 64 * 1024
"""An incomplete frame longer than this gets a buffer of its own instead of being copied out and in with each read.
So does one that is longer than the slab."""


class Malformed(NamedTuple):
    """A frame whose parts do not fit: it can be answered (`error.status`) and the next one read."""

    magic: int
    opcode: int
    opaque: int
    error: RemoteProtocolError


class Broken(NamedTuple):
    """Nothing that follows can be read."""

    error: RemoteProtocolError


ReceiveEvent = Frame | Run | Malformed | Broken


class Slab:
    """Room for received bytes, shared by the connections of one event loop or pinned by one batch of views."""

    def __init__(self, nbytes: int = SLAB_BYTES) -> None:
        self.buffer = bytearray(nbytes + SLACK)
        self.view = memoryview(self.buffer)
        self.nbytes = nbytes


class Connection:
    """What one peer sent so far.

    runs: hand consecutive data messages of this dialect on as Run events; None: each is a Frame like any other.
    viewed: opcodes of frames whose value is a view where the frame is longer than VIEWED_FROM: it is received in a
    buffer of its own, and nobody copies it unasked.
    max_frame: bytes of a frame that is waited for. No read brings more than these either, so a longer frame is refused
    however it arrives, and what one read brings is bounded for peers that are not trusted yet.
    """

    def __init__(
        self, slab: Slab, *, runs: Dialect | None, max_frame: int = MAX_FRAME, viewed: Collection[int] = ()
    ) -> None:
        self.slab = slab
        self._viewed = viewed
        self._runs = runs
        self.max_frame = max_frame
        self._kept = b""
        self._own: Slab | None = None
        self._own_filled = 0
        self._broken = False

    @property
    def is_between_frames(self) -> bool:
        """Did the last bytes end a frame?"""
        return not self._kept and self._own is None

    @property
    def half_frame(self) -> str:
        """What has come of a frame that is incomplete; empty between two frames."""
        if self._own is not None:
            return f"{self._own_filled} of the {self._own.nbytes} bytes of a frame"
        if len(self._kept) < HEADER_BYTES:
            return f"{len(self._kept)} of the {HEADER_BYTES} bytes of a header" if self._kept else ""
        size = frame_length(self._kept, 0, self.max_frame)
        return f"{len(self._kept)} of the {size} bytes of a frame"

    def get_buffer(self) -> memoryview:
        """Return where the next bytes go: never empty, valid until the next call on any connection of this slab."""
        if self._own is not None:
            return self._own.view[self._own_filled : min(self._own_filled + _MOST_READ, self._own.nbytes)]
        kept = len(self._kept)
        self.slab.view[:kept] = self._kept
        # `max_frame` may have become less than is kept: then a few bytes more show that the frame is too long.
        return self.slab.view[kept : max(min(self.slab.nbytes, self.max_frame), kept + HEADER_BYTES)]

    def receive_data(self, nbytes: int) -> list[ReceiveEvent]:
        """Take the first `nbytes` of the buffer given out last as received, and return what they complete."""
        if self._broken:
            return []
        if self._own is not None:
            return self._receive_own(self._own, nbytes)
        return self._receive(self.slab, len(self._kept) + nbytes)

    def feed(self, data: bytes | memoryview) -> Iterator[ReceiveEvent]:
        """Receive bytes that are already somewhere else. A Run is valid until the next event is asked for."""
        rest = memoryview(data)
        while rest:
            room = self.get_buffer()
            nbytes = min(len(room), len(rest))
            room[:nbytes] = rest[:nbytes]
            rest = rest[nbytes:]
            yield from self.receive_data(nbytes)

    def _receive_own(self, own: Slab, nbytes: int) -> list[ReceiveEvent]:
        self._own_filled += nbytes
        if self._own_filled < own.nbytes:
            return []
        self._own = None
        if own.nbytes > VIEWED_FROM and own.buffer[1] in self._viewed:
            return [view_frame(own.view)]
        return self._receive(own, own.nbytes)

    def _receive(self, slab: Slab, end: int) -> list[ReceiveEvent]:
        if self._runs is None:
            offsets, position = hop(slab.buffer, 0, end)
            events = self._alone(slab, offsets)
        else:
            starts, alone, position = hop_runs(slab.buffer, end, self._runs)
            events = self._in_runs(slab, starts, alone, position, self._runs)
        if not self._broken:
            self._keep(slab, position, end, events)
        return events

    def _keep(self, slab: Slab, position: int, end: int, events: list[ReceiveEvent]) -> None:
        """Copy the incomplete frame at `position` out of the slab."""
        self._kept = b""
        if end - position >= HEADER_BYTES:
            try:
                size = frame_length(slab.buffer, position, self.max_frame)
            except RemoteProtocolError as error:
                self._break(events, error)
                return
            if size > min(_OWN_BUFFER, slab.nbytes):
                self._own = Slab(size)
                self._own_filled = end - position
                self._own.view[: self._own_filled] = slab.view[position:end]
                return
        self._kept = slab.view[position:end].tobytes()

    def _in_runs(
        self, slab: Slab, offsets: Offsets, alone: list[int], end: int, dialect: Dialect
    ) -> list[ReceiveEvent]:
        """Return the frames at `offsets` as runs and, of the indices `alone`, one by one."""
        events: list[ReceiveEvent] = []
        behind = 0
        for index in alone:
            offset = int(offsets[index])
            if behind < index:
                events.append(Run(slab.buffer, offsets[behind:index], offset, dialect))
            behind = index + 1
            events += self._alone(slab, [offset])
            if self._broken:
                return events
        if behind < len(offsets):
            events.append(Run(slab.buffer, offsets[behind:], end, dialect))
        return events

    def _alone(self, slab: Slab, offsets: list[int]) -> list[ReceiveEvent]:
        events: list[ReceiveEvent] = []
        for offset in offsets:
            magic = slab.buffer[offset]
            if magic not in MAGICS:
                self._break(events, RemoteProtocolError(f"first byte of a frame is 0x{magic:02x}, not a known magic"))
                return events
            try:
                events.append(cut_frame(slab.view, offset))
            except RemoteProtocolError as error:
                _, opcode, *_, opaque, _ = HEADER.unpack_from(slab.buffer, offset)
                events.append(Malformed(magic, opcode, opaque, error))
        return events

    def _break(self, events: list[ReceiveEvent], error: RemoteProtocolError) -> None:
        self._broken = True
        self._kept = b""
        events.append(Broken(error))
