"""The receiving half of a connection: bytes in, events out, with no socket and no clock.

A reader asks `get_buffer` where to put bytes, fills some of it, and calls `receive_data`. That returns events in the
order of the bytes:

- Frame: a frame that is handled alone.
- Run: consecutive stream frames, which stay in the slab.
- MalformedFrame: a frame that can be answered and skipped.
- BrokenInput: the next frame cannot be found. It is always the last event.

Only an incomplete frame is copied out of the slab, so that many connections of one event loop share a slab. A frame too
long to be worth copying twice is received in a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import MAX_FRAME, Dialect
from penstock.wire.codec.frame import (
    HEADER,
    HEADER_BYTES,
    MAGICS,
    Frame,
    cut_frame,
    cut_frames,
    read_frame_length,
    view_frame,
)
from penstock.wire.columns.data_forms import SLACK
from penstock.wire.columns.frame_offsets import Offsets, find_offsets, find_run_offsets
from penstock.wire.columns.heads import Run
from penstock.wire.columns.run_decoder import SMALL_RUN

SLAB_BYTES = 2 * 1024 * 1024
"""Room for received bytes. Columns from slabs of 1 to 4 MiB were measured fastest."""

VIEWED_FROM = 257 * 1024
"""Bytes of a frame above which its value may be a view.

The value then has more than 256 KiB beside any valid key. Key and extras fit into the frame for any header.
"""

_MOST_READ = 1024 * 1024
"""Bytes that a read puts into a frame's own buffer, at most, so that other connections are served in between."""

_OWN_BUFFER = 64 * 1024
"""A longer incomplete frame gets a buffer of its own instead of being copied out and in with each read.

So does a frame that is longer than the slab.
"""


class MalformedFrame(NamedTuple):
    """A frame whose parts contradict its header. It can be answered, and the next frame can be read.

    Attributes:
        magic: the first byte of the frame.
        opcode: its opcode.
        opaque: its opaque.
        error: the fault; `error.status` is the status of the reply.
    """

    magic: int
    opcode: int
    opaque: int
    error: RemoteProtocolError


class BrokenInput(NamedTuple):
    """The input is broken: nothing after this point can be read.

    Attributes:
        error: the fault.
        head: the first bytes that cannot be read, where the fault is an unknown magic.
    """

    error: RemoteProtocolError
    head: bytes = b""


ReceiveEvent = Frame | Run | MalformedFrame | BrokenInput


def make_unknown_magic(view: memoryview) -> BrokenInput:
    """Return the event of bytes that begin with an unknown magic."""
    error = RemoteProtocolError(f"first byte of a frame is 0x{view[0]:02x}, not a known magic")
    return BrokenInput(error, bytes(view[:HEADER_BYTES]))


def cut_event(view: memoryview, offset: int) -> Frame | MalformedFrame | BrokenInput:
    """Return the event of the whole frame at an offset."""
    magic = view[offset]
    if magic not in MAGICS:
        return make_unknown_magic(view[offset : offset + HEADER_BYTES])
    try:
        return cut_frame(view, offset)
    except RemoteProtocolError as error:
        _, opcode, *_, opaque, _ = HEADER.unpack_from(view, offset)
        return MalformedFrame(magic, opcode, opaque, error)


def cut_run(run: Run, count: int) -> tuple[list[Frame | MalformedFrame | BrokenInput], Run]:
    """Return the events of the first `count` messages of a run, each alone, and the rest of the run."""
    view = memoryview(run.buffer)
    alone = [cut_event(view, int(offset)) for offset in run.offsets[:count]]
    return alone, run._replace(offsets=run.offsets[count:])


def split_run(run: Run, most: int) -> Iterator[Run]:
    """Yield a run in runs of `most` messages or fewer, in a buffer of their own: the slab may be used again."""
    first = int(run.offsets[0])
    buffer = bytearray(run.buffer[first : run.end + SLACK])
    offsets = np.asarray(run.offsets, np.int64) - first
    for at in range(0, len(offsets), most):
        following = at + most
        end = int(offsets[following]) if following < len(offsets) else run.end - first
        yield Run(buffer, offsets[at:following], end, run.dialect)


class Slab:
    """Room for received bytes, shared by the connections of one event loop or pinned by one batch of views.

    The memory is not cleared: a connection that receives little touches little of it.
    """

    def __init__(self, nbytes: int = SLAB_BYTES) -> None:
        self.view = np.empty(nbytes + SLACK, np.uint8).data
        self.nbytes = nbytes


class FrameReceiver:
    """Cuts the bytes of one peer into frames and runs.

    Args:
        slab: where bytes are received.
        run_dialect: consecutive data messages of this dialect become Run events; None: each is a Frame.
        max_frame: bytes of a frame, at most. No read brings more bytes either. A longer frame is therefore refused
            however it arrives, and a peer that is not trusted yet can send little with one read.
        viewed_opcodes: opcodes of frames whose value is a view if the frame is longer than VIEWED_FROM. Such a frame is
            received in a buffer of its own and is not copied.
    """

    def __init__(
        self,
        slab: Slab,
        *,
        run_dialect: Dialect | None,
        max_frame: int = MAX_FRAME,
        viewed_opcodes: Collection[int] = (),
    ) -> None:
        self.slab = slab
        self._viewed_opcodes = viewed_opcodes
        self._run_dialect = run_dialect
        self.max_frame = max_frame
        self._kept = b""
        self._frame_buffer: Slab | None = None
        self._frame_filled = 0
        self._broken = False

    @property
    def is_between_frames(self) -> bool:
        """Whether the last received byte ended a frame."""
        return not self._kept and self._frame_buffer is None

    @property
    def incomplete_frame(self) -> str:
        """How much of an incomplete frame was received, for errors; empty between two frames."""
        if self._frame_buffer is not None:
            return f"{self._frame_filled} of the {self._frame_buffer.nbytes} bytes of a frame"
        if len(self._kept) < HEADER_BYTES:
            return f"{len(self._kept)} of the {HEADER_BYTES} bytes of a header" if self._kept else ""
        size = read_frame_length(self._kept, 0, self.max_frame)
        return f"{len(self._kept)} of the {size} bytes of a frame"

    def get_buffer(self) -> memoryview:
        """Return the memory for the next bytes: never empty, valid until the next call on any receiver of this slab."""
        if self._frame_buffer is not None:
            return self._frame_buffer.view[
                self._frame_filled : min(self._frame_filled + _MOST_READ, self._frame_buffer.nbytes)
            ]
        kept = len(self._kept)
        self.slab.view[:kept] = self._kept
        # `max_frame` may have become less than is kept: then a few bytes more show that the frame is too long.
        return self.slab.view[kept : max(min(self.slab.nbytes, self.max_frame), kept + HEADER_BYTES)]

    def receive_data(self, nbytes: int) -> list[ReceiveEvent]:
        """Accept the first `nbytes` of the buffer that was given out last.

        Returns:
            The events that these bytes complete.
        """
        if self._broken:  # BrokenInput was the last event
            return []
        if self._frame_buffer is not None:
            return self._receive_in_frame_buffer(self._frame_buffer, nbytes)
        return self._receive_in_slab(self.slab, len(self._kept) + nbytes)

    def feed(self, data: bytes | memoryview) -> Iterator[ReceiveEvent]:
        """Receive bytes from other memory.

        Yields:
            The events that the bytes complete. A Run is valid until the next event is requested.
        """
        rest = memoryview(data)
        while rest:
            room = self.get_buffer()
            nbytes = min(len(room), len(rest))
            room[:nbytes] = rest[:nbytes]
            rest = rest[nbytes:]
            yield from self.receive_data(nbytes)

    def _receive_in_frame_buffer(self, own: Slab, nbytes: int) -> list[ReceiveEvent]:
        self._frame_filled += nbytes
        if self._frame_filled < own.nbytes:
            return []
        self._frame_buffer = None
        if own.nbytes > VIEWED_FROM and own.view[1] in self._viewed_opcodes:
            return [view_frame(own.view)]
        return self._receive_in_slab(own, own.nbytes)

    def _receive_in_slab(self, slab: Slab, end: int) -> list[ReceiveEvent]:
        if self._run_dialect is None:
            frames, position = cut_frames(slab.view, 0, end)
            offsets, position = find_offsets(slab.view, position, end)
            events: list[ReceiveEvent] = [*frames, *self._cut_frames(slab, offsets)]
        else:
            starts, alone, position = find_run_offsets(slab.view, end, self._run_dialect)
            events = self._make_runs(slab, starts, alone, position, self._run_dialect)
        if not self._broken:
            self._keep_incomplete_frame(slab, position, end, events)
        return events

    def _keep_incomplete_frame(self, slab: Slab, position: int, end: int, events: list[ReceiveEvent]) -> None:
        """Copy the incomplete frame at `position` out of the slab."""
        self._kept = b""
        if position < end and slab.view[position] not in MAGICS:
            # The banner of another protocol may be shorter than a header, and nothing follows it.
            self._end_input(events, make_unknown_magic(slab.view[position:end]))
            return
        if end - position >= HEADER_BYTES:
            try:
                size = read_frame_length(slab.view, position, self.max_frame)
            except RemoteProtocolError as error:
                self._end_input(events, BrokenInput(error))
                return
            if size > min(_OWN_BUFFER, slab.nbytes):
                self._frame_buffer = Slab(size)
                self._frame_filled = end - position
                self._frame_buffer.view[: self._frame_filled] = slab.view[position:end]
                return
        self._kept = slab.view[position:end].tobytes()

    def _make_runs(
        self, slab: Slab, offsets: Offsets, alone: list[int], end: int, dialect: Dialect
    ) -> list[ReceiveEvent]:
        """Return the frames at `offsets` as runs; those at the indices `alone` one by one."""
        events: list[ReceiveEvent] = []
        behind = 0
        if not isinstance(offsets, list) and len(offsets) < SMALL_RUN * (len(alone) + 1):
            offsets = (
                offsets.tolist()
            )  # the messages of small runs are decoded one by one: numbers of a list are faster
        for index in alone:
            offset = int(offsets[index])
            if behind < index:
                events.append(Run(slab.view, offsets[behind:index], offset, dialect))
            behind = index + 1
            events += self._cut_frames(slab, [offset])
            if self._broken:
                return events
        if behind < len(offsets):
            events.append(Run(slab.view, offsets[behind:], end, dialect))
        return events

    def _cut_frames(self, slab: Slab, offsets: list[int]) -> list[ReceiveEvent]:
        events: list[ReceiveEvent] = []
        for offset in offsets:
            event = cut_event(slab.view, offset)
            if isinstance(event, BrokenInput):
                self._end_input(events, event)
                break
            events.append(event)
        return events

    def receive_runs(self, dialect: Dialect) -> None:
        """Make Run events of the data messages of a dialect from now on."""
        self._run_dialect = dialect

    def _end_input(self, events: list[ReceiveEvent], event: BrokenInput) -> None:
        self._broken = True
        self._kept = b""
        events.append(event)
