"""Registered TAP consumers have all documents in the end, after any failures; slow consumers cost no memory."""

from collections.abc import Iterable
from itertools import cycle

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.node import Node
from penstock.node.session.tap_settings import TapSettings
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.flags import TapFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Delete, Flush, Noop, Set
from penstock.wire.messages.tap import (
    CreateCheckpoint,
    DeregisterTapClient,
    TapDelete,
    TapFlush,
    TapMutation,
    TapOpaqueMessage,
)
from tests.examples import scaled
from tests.node.tap_client import F, TapClient
from tests.node.wire_client import connected

FLAGS = F.REGISTERED_CLIENT | F.SUPPORT_ACK | F.CHECKPOINT
KEYS = st.sampled_from([b"a", b"b", b"c"])
VBUCKETS = st.integers(0, 1)
WRITES = st.one_of(
    st.builds(Set, vbucket=VBUCKETS, key=KEYS, value=st.integers(0, 9).map(lambda number: b"%d" % number)),
    st.builds(Delete, vbucket=VBUCKETS, key=KEYS),
    st.builds(CreateCheckpoint, vbucket=VBUCKETS),
)
STEPS = st.one_of(WRITES, WRITES, WRITES, st.just("look"), st.just("look"), st.just("break"), st.just(Flush()))
ANSWERS = st.sampled_from(["yes", "yes", "yes", "yes", "later", "fail"])


class Consumer:
    """TAP consumer that keeps the documents that it receives.

    Attributes:
        node: the node.
        kept: values by vbucket and key.
        answers: the reaction to each message that requests an answer: yes, later or fail. After a failure, the consumer
            ignores the message and all later messages of the connection.
        client: the current connection.
        failed: whether the connection has failed.
    """

    def __init__(self, node: Node, answers: Iterable[str]) -> None:
        self.node = node
        self.kept: dict[tuple[int, bytes], bytes] = {}
        self.answers = iter(answers)
        self.connect()

    def connect(self) -> None:
        self.client = TapClient(self.node).connect(b"r", FLAGS)
        self.failed = False

    def process(self) -> None:
        """Process the received messages, and the effects of the answers."""
        for _ in range(4):
            self.client.ask(Noop())
            frames, self.client.frames = self.client.frames, []
            for frame in frames:
                if not self.failed:
                    self.apply(frame)

    def apply(self, frame: Frame) -> None:
        message = decode_frame(frame, Dialect.TAP)
        requests_answer = bool(getattr(message, "tap_flags", 0) & TapFlag.ACK)
        answer = next(self.answers) if requests_answer else "yes"
        self.failed = answer == "fail"
        if answer == "later":
            self.client.answer(message, Status.ETMPFAIL)
        if answer != "yes":
            return
        match message:
            case TapMutation():
                self.kept[message.vbucket, message.key] = message.value
            case TapDelete():
                self.kept.pop((message.vbucket, message.key), None)
            case TapFlush():
                self.kept.clear()
            case TapOpaqueMessage(engine_private=b"\0\0\0\1"):
                self.kept = {place: value for place, value in self.kept.items() if place[0] != message.vbucket}
        if requests_answer:
            self.client.answer(message)


def test_consumer_has_everything_in_the_end():
    with Node.running(vbuckets=2) as node, connected(node) as client:
        # Small limits, so that a few changes fill the window.
        node.tap = TapSettings(backoff_period=0, ack_interval=2, ack_window_size=2)
        vbuckets = node.buckets["default"].store.vbuckets

        @settings(max_examples=scaled(60), deadline=None)
        @given(st.lists(STEPS, max_size=40), st.lists(ANSWERS, min_size=1, max_size=12))
        @example(
            [Set(key=b"a", value=b"1"), "look", Set(key=b"a", value=b"2"), "look", "break"], ["yes", "yes", "fail"]
        )
        @example([Set(key=b"a"), Set(key=b"b"), Set(key=b"a"), "look", "look", "break", "look"], ["yes", "later"])
        @example([Set(key=b"a"), "look", "look", Flush(), "look", "break"], ["yes"] * 7 + ["fail"])
        def check(steps, answers):
            consumer = Consumer(node, cycle(answers))
            for step in steps:
                if step == "look":
                    consumer.process()
                elif step == "break":
                    consumer.client.close()
                    consumer.connect()
                else:
                    client.ask(step)
            consumer.client.close()
            consumer.answers = cycle(["yes"])
            consumer.connect()
            expected = {
                (number, key): item.value
                for number in (0, 1)
                for key in (b"a", b"b", b"c")
                if (item := vbuckets[number].get(b"\0" + key)) is not None
            }
            for _ in range(200):
                consumer.process()
                if consumer.kept == expected:
                    break
            assert consumer.kept == expected
            consumer.client.close()
            client.ask(DeregisterTapClient(key=b"r"))
            client.ask(Flush())

        check()


def test_slow_consumer_needs_no_memory():
    with Node.running(vbuckets=4) as node, connected(node) as client:
        value = b"x" * 4000
        for number in range(5000):
            client.send(Frame(0x80, Opcode.SETQ, number % 4, extras=bytes(8), key=b"%d" % number, value=value))
        client.ask(Noop())
        tap = TapClient(node, receive_buffer=4096).connect(flags=F.BACKFILL | F.DUMP, backfill=0)
        try:
            tap.read_message()
            largest = max(int(client.stats()["ep_bytes_unsent"]) for _ in range(50))
            assert largest < 6_000_000
            assert sum(isinstance(message, TapMutation) for message in tap.read_to_end()) == 5000
        finally:
            tap.close()
