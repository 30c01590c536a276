"""A follower on a connection made of bytes, for tests: a test says what comes, and sees what is delivered and sent."""

from dataclasses import dataclass, field
from typing import Any

from penstock.wire.codec.constants import MAX_SEQNO, Dialect
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import Message, decode_frame
from penstock.wire.columns.schema import Change
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab


def messages_in(data: bytes, dialect: Dialect) -> list[Message]:
    """Return bytes taken apart, as the other side reads them."""
    messages = []
    for frame in FrameReceiver(Slab(1 << 16), run_dialect=None).feed(data):
        assert isinstance(frame, Frame)
        messages.append(decode_frame(frame, dialect))
    return messages


@dataclass
class Receiver:
    """feed: of any dialect. rows: what was delivered and consumed. sent: what was said, beside requests."""

    feed: Any
    rows: list[Change] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)

    def __post_init__(self):
        self.connect()

    def connect(self):
        self.incoming = FrameReceiver(Slab(1 << 18), run_dialect=self.feed.dialect)

    def reconnect(self):
        self.feed.forget_connection()
        self.connect()

    def give(self, *messages):
        """Let the feed receive messages with one read."""
        self.take(self.feed.receive(self.incoming.feed(b"".join(messages))))

    def consume(self, count=MAX_SEQNO):
        """Take deliveries, and be done with them; return the changes."""
        found = []
        while self.feed.deliveries and count > 0:
            count -= 1
            delivery = self.feed.deliveries.popleft()
            found += delivery.changes
            self.take(self.feed.acknowledge(delivery))
        self.rows += found
        return found

    def get(self, *messages):
        """Give messages and return the changes they make."""
        self.give(*messages)
        return self.consume()

    def take(self, data):
        """Take what the feed has to say."""
        self.sent += messages_in(data, self.feed.dialect)
