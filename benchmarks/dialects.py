"""All dialects in one run: decoding to columns, a node's stream to a counting reader, and from a node to Arrow.

Ratios are against DCP. The node has a separate process and is filled with changes of different keys. All dialects
stream the same history, from its beginning up to now.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import time

import numpy as np

import penstock
from benchmarks.report import Report, make_parser, time_in_turns
from benchmarks.served import NodeProcess, run_node
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.flags import OpenFlag, StreamFlag, TapConnectFlag
from penstock.wire.columns.frame_form import FORMS
from penstock.wire.columns.heads import Run, StreamContext
from penstock.wire.columns.reframe import reframe
from penstock.wire.columns.run_decoder import decode_run
from penstock.wire.messages.dcp import Mutation, Open, StreamReq
from penstock.wire.messages.tap import TapConnect, TapOptions
from penstock.wire.messages.upr import UprStreamReq
from penstock.wire.messages.upr_draft import DraftStreamReq
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab

VBUCKETS = 64
MESSAGES_TO_DECODE = 1_000_000


def time_decoding(dialect: Dialect, value_bytes: int) -> tuple[int, float]:
    """Return the number of messages in a slab, and the CPU seconds of decoding it."""
    frame = Mutation(vbucket=1, key=b"\0key-%09d" % 0, value=b"v" * value_bytes, by_seqno=1, rev_seqno=1).encode()
    slab = Slab()
    count = slab.nbytes // len(frame)
    sent = reframe(bytearray(frame * count), np.arange(count) * len(frame), FORMS[dialect], opaque=1)
    context = StreamContext(VBUCKETS)
    connection = FrameReceiver(slab, run_dialect=dialect)

    def decode() -> None:
        room = connection.get_buffer()
        room[: len(sent)] = sent
        for event in connection.receive_data(len(sent)):
            if isinstance(event, Run):
                decode_run(event, context)

    return count, time_in_turns({"": decode}, rounds=max(3, MESSAGES_TO_DECODE // count // 20), calls=20)[""].median


def make_stream_requests(dialect: Dialect, ends: dict[int, int]) -> tuple[bytes, int, int]:
    """Return the requests that open the streams, with sizes of replies.

    Args:
        dialect: the dialect.
        ends: vbucket -> end seqno.

    Returns:
        The requests, the bytes of the reply to the opening of the connection, and the bytes of header and extras of
        each change. Other messages of a stream are not counted.
    """
    if dialect is Dialect.TAP:
        options_ = TapOptions(TapConnectFlag.DUMP)
        return TapConnect(flags=options_.flags, value=options_.pack()).encode(), 0, 49
    if dialect is Dialect.DCP:
        opening = Open(key=b"benchmark", flags=OpenFlag.PRODUCER).encode()
        streams = [
            StreamReq(vbucket=vb, opaque=vb + 1, flags=StreamFlag.TO_LATEST, start_seqno=0, end_seqno=2**64 - 1)
            for vb in ends
        ]
        return opening + b"".join(stream.encode() for stream in streams), 24, 55
    kind = UprStreamReq if dialect is Dialect.UPR else DraftStreamReq
    asked = [kind(vbucket=vb, opaque=vb + 1, start_seqno=0, end_seqno=end) for vb, end in ends.items()]
    return b"".join(request.encode() for request in asked), 0, 52


def time_counting_reader(node: NodeProcess, dialect: Dialect, changes: int, value_bytes: int) -> float:
    """Return the seconds from the requests to the last change, with a reader that only counts bytes."""
    room = bytearray(4 << 20)
    sent, answer, head = make_stream_requests(dialect, dict.fromkeys(range(VBUCKETS), changes // VBUCKETS))
    missing = answer + changes * (head + 13 + value_bytes)  # other messages of a stream are too few to matter
    with socket.create_connection(("127.0.0.1", node.port)) as peer:
        peer.settimeout(60)
        start = time.perf_counter()
        peer.sendall(sent)
        while missing > 0:
            received = peer.recv_into(room)
            if not received:
                raise ConnectionError(f"{dialect}: the node closed the connection with {missing} bytes missing")
            missing -= received
        return time.perf_counter() - start


async def time_arrow_reader(node: NodeProcess, dialect: Dialect, changes: int) -> float:
    async with penstock.connect(f"couchbase://127.0.0.1:{node.port}/default?protocol={dialect}") as bucket:
        start, rows = time.perf_counter(), 0
        async for batch in bucket.batches(stop="now"):
            rows += batch.num_rows
        seconds = time.perf_counter() - start
    if rows != changes:
        raise RuntimeError(f"{dialect}: read {rows} rows of {changes}")
    return seconds


def measure_case(report: Report, chosen: argparse.Namespace, value_bytes: int, changes: int) -> None:
    rates: dict[str, dict[Dialect, float]] = {"decode to columns": {}, "node to a counting reader": {}, "to Arrow": {}}
    decode, count_only, arrow = rates.values()
    for dialect in Dialect:
        count, seconds = time_decoding(dialect, value_bytes)
        decode[dialect] = count / seconds
    with run_node(vbuckets=VBUCKETS, changes=changes, value_bytes=value_bytes) as node:
        counted: dict[Dialect, list[float]] = {dialect: [] for dialect in Dialect}
        consumed: dict[Dialect, list[float]] = {dialect: [] for dialect in Dialect}
        for _ in range(chosen.rounds):
            for dialect in Dialect:  # in turn, so that a disturbance affects all
                counted[dialect].append(time_counting_reader(node, dialect, changes, value_bytes))
                consumed[dialect].append(asyncio.run(time_arrow_reader(node, dialect, changes)))
    count_only |= {dialect: changes / statistics.median(seconds) for dialect, seconds in counted.items()}
    arrow |= {dialect: changes / statistics.median(seconds) for dialect, seconds in consumed.items()}
    for about, by_dialect in rates.items():
        for dialect, rate in by_dialect.items():
            ratio = rate / by_dialect[Dialect.DCP]
            report.add_row(f"{about}, {value_bytes} B, {dialect}", f"{rate / 1e6:.2f} M/s, {ratio:.2f} of DCP")


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=2_000_000, help="number of changes of 100 B; a fourth for 1 KB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--value-bytes", type=int, nargs="*", default=[100, 1024])
    chosen = parser.parse_args()
    report = Report("The dialects against each other", chosen)
    for value_bytes in chosen.value_bytes:
        changes = chosen.changes if value_bytes < 512 else chosen.changes // 4
        measure_case(report, chosen, value_bytes, changes // VBUCKETS * VBUCKETS)
    report.finish()


if __name__ == "__main__":
    main()
