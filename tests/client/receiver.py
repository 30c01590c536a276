"""A feed without a socket: a test gives it bytes, and reads the delivered changes and the sent messages."""

from dataclasses import dataclass, field
from typing import Any

from penstock.wire.codec.constants import MAX_SEQNO, Dialect
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import Message, decode_frame
from penstock.wire.columns.schema import Change
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab


def messages_in(data: bytes, dialect: Dialect) -> list[Message]:
    """Return the messages in the bytes, decoded as the other side decodes them."""
    messages = []
    for frame in FrameReceiver(Slab(1 << 16), run_dialect=None).feed(data):
        assert isinstance(frame, Frame)
        messages.append(decode_frame(frame, dialect))
    return messages


@dataclass
class Receiver:
    """Gives bytes to a feed, and collects its changes and messages.

    Attributes:
        feed: of any dialect.
        rows: changes that were delivered and consumed.
        sent: messages that the feed sent, without its requests.
        incoming: the frames of the current connection.
    """

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
        """Give messages to the feed, as one read of a socket."""
        self.take(self.feed.receive(self.incoming.feed(b"".join(messages))))

    def consume(self, count=MAX_SEQNO):
        """Consume up to `count` deliveries, and acknowledge each; return their changes."""
        found = []
        while self.feed.deliveries and count > 0:
            count -= 1
            delivery = self.feed.deliveries.popleft()
            found += delivery.changes
            self.take(self.feed.acknowledge(delivery))
        self.rows += found
        return found

    def get(self, *messages):
        """Give messages to the feed; return the changes that it delivers."""
        self.give(*messages)
        return self.consume()

    def take(self, data):
        """Record the messages that the feed sends."""
        self.sent += messages_in(data, self.feed.dialect)
