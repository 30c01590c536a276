"""A backfill of all vbuckets over one connection, to a reader that only counts bytes.

The node has a separate process, and is filled with changes of different keys before the first round. Each round opens a
change-stream connection, requests every vbucket up to now, and reads all bytes. Figures are those of the median round.
Connections with the feature COLLECTIONS get the frames of the log unchanged; others get keys without a prefix.
"""

from __future__ import annotations

import argparse
import socket
import time

from benchmarks.report import Report, make_parser
from benchmarks.served import NodeProcess, run_node
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.flags import OpenFlag, StreamFlag
from penstock.wire.messages.dcp import Control, Open, StreamReq
from penstock.wire.messages.kv import Hello

OPENING = {
    "bare keys": (b"", 0),
    "collections": (Hello(value=Feature.COLLECTIONS.to_bytes(2, "big")).encode(), 26),
}
"""Case -> request before OPEN, and the bytes of its reply."""

REPLY = 24
STREAM_BYTES = (24 + 16) + 44 + 28
"""Bytes of each stream in addition to its changes: reply with one entry of a failover log, marker, stream end."""


def time_backfill(node: NodeProcess, vbuckets: int, nbytes: int, way: str) -> float:
    """Return the seconds of a backfill with `nbytes` bytes of changes, from the requests to the last byte."""
    hello, hello_reply = OPENING[way]
    noop = Control(key=b"enable_noop", value=b"true").encode()
    begin = hello_reply + 2 * REPLY
    room = bytearray(4 << 20)
    requests = b"".join(
        StreamReq(
            vbucket=vbucket,
            opaque=vbucket + 1,
            flags=StreamFlag.TO_LATEST,
            start_seqno=0,
            end_seqno=2**64 - 1,
            vbuuid=0,
            snap_start=0,
            snap_end=0,
        ).encode()
        for vbucket in range(vbuckets)
    )
    with socket.create_connection(("127.0.0.1", node.port)) as peer:
        peer.settimeout(60)
        peer.sendall(hello + Open(key=b"benchmark", flags=OpenFlag.PRODUCER).encode() + noop)
        if len(peer.recv(begin, socket.MSG_WAITALL)) != begin:
            raise ConnectionError("DCP OPEN got no reply")
        missing = nbytes + vbuckets * STREAM_BYTES
        start = time.perf_counter()
        peer.sendall(requests)
        while missing > 0:
            received = peer.recv_into(room)
            if not received:
                raise ConnectionError("the node closed the connection")
            missing -= received
        return time.perf_counter() - start


def measure_case(report: Report, chosen: argparse.Namespace, vbuckets: int, value_bytes: int, changes: int) -> None:
    with run_node(vbuckets=vbuckets, changes=changes, value_bytes=value_bytes, profile=chosen.profile) as node:
        for way in OPENING:
            nbytes = node.frame_bytes - (changes if way == "bare keys" else 0)
            walls, cpus = [], []
            for _ in range(chosen.rounds):
                before = node.read_cpu_seconds()
                walls.append(time_backfill(node, vbuckets, nbytes, way))
                cpus.append(node.read_cpu_seconds() - before)
            wall, cpu = sorted(walls)[chosen.rounds // 2], sorted(cpus)[chosen.rounds // 2]
            report.add_row(
                f"{changes} changes of {value_bytes} B, {vbuckets} vbuckets, {way}",
                f"{changes / wall / 1e6:.2f} M changes/s (best {changes / min(walls) / 1e6:.2f}), "
                f"{nbytes / wall / 1e6:.0f} MB/s, {cpu / changes * 1e9:.0f} ns CPU of the node a change",
            )


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=2_000_000, help="number of changes of 100 B; a fourth for 1 KB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vbuckets", type=int, nargs="*", default=[64, 1024])
    parser.add_argument("--value-bytes", type=int, nargs="*", default=[100, 1024])
    parser.add_argument("--profile", action="store_true", help="print where the node spends its time")
    chosen = parser.parse_args()
    report = Report("Backfill over one connection to a counting reader", chosen)
    for value_bytes in chosen.value_bytes:
        changes = chosen.changes if value_bytes < 512 else chosen.changes // 4
        for vbuckets in chosen.vbuckets:
            measure_case(report, chosen, vbuckets, value_bytes, changes)
    report.finish()


if __name__ == "__main__":
    main()
