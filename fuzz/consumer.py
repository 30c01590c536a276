"""One try against a consumer: the path of a peer's bytes up to the application.

A try begins with a few bytes that cut the rest into reads; the rest are the bytes of a peer. The
receiving half of a connection gets it twice: as a server reads it (every frame alone), and as a consumer does (runs
and columns). Both must give the same result. It also goes to a consumer that has asked for streams, under opaques from
recordings and specifications. The only valid errors are protocol errors, and the error of a refused request.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from fuzz import corpus
from fuzz.frames import split_reads
from penstock.client.feeds.collection_selection import (
    PLAIN_CONTENT,
    CollectionSelection,
    KnownCollections,
    StreamContent,
)
from penstock.client.feeds.consumer_feed import ConsumerFeed
from penstock.client.feeds.feed import Feed
from penstock.client.feeds.vbucket_stream import StreamTarget
from penstock.client.tap.tap_feed import TapFeed
from penstock.errors import RemoteProtocolError, StatusError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame, cut_frame, join_frame
from penstock.wire.codec.layout import Code, Message, decode_frame
from penstock.wire.codec.opcodes import DraftCode
from penstock.wire.columns.collection_names import CollectionNames
from penstock.wire.columns.heads import Run, StreamContext
from penstock.wire.columns.message_decoder import decode_messages
from penstock.wire.columns.run_decoder import decode_run, make_batch
from penstock.wire.messages.describe import describe_frame
from penstock.wire.protocol.dialect_detection import detect_dialect
from penstock.wire.protocol.frame_receiver import BrokenInput, FrameReceiver, MalformedFrame, ReceiveEvent, Slab

SLAB_BYTES = 4096
LONGEST = 64 * 1024  # of a frame
VBUCKETS = 1024
FOLLOWED = (0, 12)
COLLECTIONS = KnownCollections({"_default": 0}, {("_default", "_default"): 0})
OPAQUES = (0xDEADBEEF, 0x2D, 0x2001, 0x2002, *range(1, 9))


answered: Counter[str] = Counter()
"""How often each message was understood; `opcode refused`: how often a frame was no message."""


def list_tries(dialect: Dialect) -> Iterator[bytes]:
    """Yield the tries to begin with."""
    return corpus.list_tries(dialect)


def check_frame(frame: Frame, dialect: Dialect) -> None:
    """Check that a frame either is a message that encodes to the same bytes, or raises a remote protocol error."""
    detect_dialect(frame)
    try:
        message = decode_frame(frame, dialect)
    except RemoteProtocolError:
        answered[f"{frame.opcode:#04x} refused"] += 1
        return
    answered[f"{frame.opcode:#04x} {type(message).__name__}"] += 1
    describe_frame(frame, dialect)
    written = message.encode(_find_code(message, frame))
    assert decode_frame(cut_frame(memoryview(written), 0), dialect) == message, f"{message} is read as another message"
    if frame.magic == message.magic:  # others mean the same as a plain one
        assert written == join_frame(frame), f"{message} is not what was read"


def _find_code(message: Message, frame: Frame) -> Code:
    """Return the code under which a message came: several opcodes may share a layout."""
    code = message.opcode
    return code if isinstance(code, DraftCode) else type(code)(frame.opcode)


def check_run(run: Run, collections: CollectionNames | None = None) -> None:
    """Check that columns and the loop over messages give the same rows, or both find a fault."""
    context = StreamContext(VBUCKETS)
    context.collections = collections
    outcomes: list[object] = []
    for way in (lambda: decode_run(run, context), lambda: make_batch(decode_messages(run, context))):
        try:
            outcomes.append(way().to_pylist())
        except RemoteProtocolError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1], f"columns and loop differ: {outcomes}"


def consume(data: bytes, dialect: Dialect, collections: KnownCollections | None = None) -> None:
    """Let a consumer of two vbuckets receive a try, and read its answers."""
    wanted = {vbucket: StreamTarget() for vbucket in FOLLOWED}
    feed: ConsumerFeed = (
        TapFeed(VBUCKETS, FOLLOWED, window=SLAB_BYTES)
        if dialect is Dialect.TAP
        else Feed(
            VBUCKETS,
            wanted,
            window=SLAB_BYTES,
            dialect=dialect,
            content=PLAIN_CONTENT
            if collections is None
            else StreamContent(selection=CollectionSelection(), xattrs=True),
        )
    )
    feed.use_collections(collections)
    opaques = itertools.cycle(OPAQUES)
    connection = FrameReceiver(Slab(SLAB_BYTES), run_dialect=dialect, max_frame=LONGEST)
    try:
        for piece in split_reads(data):
            for request in feed.take_requests(lambda: next(opaques)):
                request.encode()
            feed.receive(event for event in connection.feed(piece) if isinstance(event, Frame | Run))
            while feed.deliveries:
                delivery = feed.deliveries.popleft()
                delivery.batch.validate(full=True)
                feed.acknowledge(delivery)
    except (RemoteProtocolError, StatusError):
        return


def check(data: bytes, dialect: Dialect) -> None:
    """Run one try. Errors other than protocol errors are raised."""
    consume(data, dialect)
    if dialect is Dialect.DCP:
        consume(data, dialect, COLLECTIONS)
    alone: list[object] = []
    in_runs: list[object] = []
    single = FrameReceiver(Slab(SLAB_BYTES), run_dialect=None, max_frame=LONGEST)
    running = FrameReceiver(Slab(SLAB_BYTES), run_dialect=dialect, max_frame=LONGEST)
    for piece in split_reads(data):
        for event in single.feed(piece):
            alone.append(_name_event(event))
            if isinstance(event, Frame):
                check_frame(event, dialect)
        for event in running.feed(piece):
            if isinstance(event, Run):
                in_runs += map(_name_event, _cut_run(event))
                check_run(event)
                if dialect is Dialect.DCP:
                    check_run(event, CollectionNames())
            else:
                in_runs.append(_name_event(event))
    assert alone == in_runs, "runs are not the frames that were sent"


def _cut_run(run: Run) -> Iterator[ReceiveEvent]:
    view = memoryview(run.buffer)
    for offset in run.offsets:
        try:
            yield cut_frame(view, int(offset))
        except RemoteProtocolError as error:
            yield MalformedFrame(run.buffer[offset], run.buffer[offset + 1], 0, error)


def _name_event(event: ReceiveEvent) -> object:
    if isinstance(event, MalformedFrame | BrokenInput):
        return str(event.error)
    return event
