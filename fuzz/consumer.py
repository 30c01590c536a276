"""What is done with the bytes of one try: everything that bytes of a peer go through before an application sees them.

A try is a few bytes that say how the rest is cut into reads, and the rest, which a peer is supposed to have sent. It
goes through the receiving half of a connection, as a server reads it (every frame alone) and as a consumer does (runs
and columns). The two must say the same. It also goes to a consumer that has asked for streams, under opaques that
recordings and specifications have. Nothing but a protocol error, or what a refusal means, may come out.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from fuzz import corpus
from fuzz.frames import reads
from penstock.client.feeds.consumer_feed import ConsumerFeed
from penstock.client.feeds.feed import Feed, StreamTarget
from penstock.client.feeds.selection import PLAIN_CONTENT, KnownCollections, Selection, StreamContent
from penstock.client.tap.tap_feed import TapFeed
from penstock.errors import RemoteProtocolError, StatusError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame, cut_frame, join_frame
from penstock.wire.codec.layout import Code, Message, decode
from penstock.wire.codec.opcodes import DraftCode
from penstock.wire.columns.collection_names import CollectionNames
from penstock.wire.columns.heads import Run, StreamContext
from penstock.wire.columns.message_decoder import decode_messages
from penstock.wire.columns.run_decoder import batch_of, decode_run
from penstock.wire.messages.describe import describe
from penstock.wire.protocol.dialect_detection import detect
from penstock.wire.protocol.frame_receiver import Broken, Connection, Malformed, ReceiveEvent, Slab

SLAB_BYTES = 4096
LONGEST = 64 * 1024  # of a frame
VBUCKETS = 1024
FOLLOWED = (0, 12)
COLLECTIONS = KnownCollections({"_default": 0}, {("_default", "_default"): 0})
OPAQUES = (0xDEADBEEF, 0x2D, 0x2001, 0x2002, *range(1, 9))


answered: Counter[str] = Counter()
"""How often each message was understood; `opcode refused`: how often one was none."""


def tries(dialect: Dialect) -> Iterator[bytes]:
    """Yield the tries to begin with."""
    return corpus.tries(dialect)


def check_frame(frame: Frame, dialect: Dialect) -> None:
    """A frame is a message that is written as it was read, or its peer's mistake."""
    detect(frame)
    try:
        message = decode(frame, dialect)
    except RemoteProtocolError:
        answered[f"{frame.opcode:#04x} refused"] += 1
        return
    answered[f"{frame.opcode:#04x} {type(message).__name__}"] += 1
    describe(frame, dialect)
    written = message.encode(_code(message, frame))
    assert decode(cut_frame(memoryview(written), 0), dialect) == message, f"{message} is read as another message"
    if frame.magic == message.magic:  # others mean the same as a plain one
        assert written == join_frame(frame), f"{message} is not what was read"


def _code(message: Message, frame: Frame) -> Code:
    """Return the code under which a message came: several opcodes may share a layout."""
    code = message.opcode
    return code if isinstance(code, DraftCode) else type(code)(frame.opcode)


def check_run(run: Run, collections: CollectionNames | None = None) -> None:
    """Columns and the loop over messages give the same rows, or both find the mistake."""
    context = StreamContext(VBUCKETS)
    context.collections = collections
    outcomes: list[object] = []
    for way in (lambda: decode_run(run, context), lambda: batch_of(decode_messages(run, context))):
        try:
            outcomes.append(way().to_pylist())
        except RemoteProtocolError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1], f"columns and loop differ: {outcomes}"


def consume(data: bytes, dialect: Dialect, collections: KnownCollections | None = None) -> None:
    """Let a consumer of two vbuckets receive a try, and take all it says in answer."""
    wanted = {vbucket: StreamTarget() for vbucket in FOLLOWED}
    feed: ConsumerFeed = (
        TapFeed(VBUCKETS, FOLLOWED, window=SLAB_BYTES)
        if dialect is Dialect.TAP
        else Feed(
            VBUCKETS,
            wanted,
            window=SLAB_BYTES,
            dialect=dialect,
            content=PLAIN_CONTENT if collections is None else StreamContent(selection=Selection(), xattrs=True),
        )
    )
    feed.use_collections(collections)
    opaques = itertools.cycle(OPAQUES)
    connection = Connection(Slab(SLAB_BYTES), runs=dialect, max_frame=LONGEST)
    try:
        for piece in reads(data):
            for request in feed.requests(lambda: next(opaques)):
                request.encode()
            feed.receive(event for event in connection.feed(piece) if isinstance(event, Frame | Run))
            while feed.deliveries:
                delivery = feed.deliveries.popleft()
                delivery.batch.validate(full=True)
                feed.consumed(delivery)
    except (RemoteProtocolError, StatusError):
        return


def check(data: bytes, dialect: Dialect) -> None:
    """Raise whatever is no protocol error."""
    consume(data, dialect)
    if dialect is Dialect.DCP:
        consume(data, dialect, COLLECTIONS)
    alone: list[object] = []
    in_runs: list[object] = []
    single = Connection(Slab(SLAB_BYTES), runs=None, max_frame=LONGEST)
    running = Connection(Slab(SLAB_BYTES), runs=dialect, max_frame=LONGEST)
    for piece in reads(data):
        for event in single.feed(piece):
            alone.append(_name(event))
            if isinstance(event, Frame):
                check_frame(event, dialect)
        for event in running.feed(piece):
            if isinstance(event, Run):
                in_runs += map(_name, _cut(event))
                check_run(event)
                if dialect is Dialect.DCP:
                    check_run(event, CollectionNames())
            else:
                in_runs.append(_name(event))
    assert alone == in_runs, "runs are not the frames that were sent"


def _cut(run: Run) -> Iterator[ReceiveEvent]:
    view = memoryview(run.buffer)
    for offset in run.offsets:
        try:
            yield cut_frame(view, int(offset))
        except RemoteProtocolError as error:
            yield Malformed(run.buffer[offset], run.buffer[offset + 1], 0, error)


def _name(event: ReceiveEvent) -> object:
    if isinstance(event, Malformed | Broken):
        return str(event.error)
    return event
