"""The longest pause of a node's event loop during each large piece of work. The limit is 20 ms.

The node has a separate process. A second process requests one document after the other on its own connection. Its
longest wait is the delay that other clients would see. A timer in the node measures its longest delay, without the time
for which its thread waited for a processor. It also measures the largest CPU time of the loop between two ticks. On a
machine with other load, only the CPU time shows the work of the node.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

from benchmarks.kept import OURS, add_directory_option, generate_vbuuid, make_scratch_directory, run_in_process
from benchmarks.report import Report, make_parser
from benchmarks.served import Disk, NodeProcess, run_node
from penstock.store.bucket_store import BucketStore
from penstock.wire.codec.constants import Feature, ParamType
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.codec.frame import HEADER, HEADER_BYTES
from penstock.wire.messages.collections import SetManifest
from penstock.wire.messages.dcp import Open, StreamReq
from penstock.wire.messages.kv import Flush, Get, GetClusterConfig, Hello, Set, Stat, pack_features
from penstock.wire.messages.observe import CompactDb, SetParam

VALUE = b"v" * 100
_COMMIT = 10_000
_PATIENCE = 120.0
_PROBE_SECONDS = 0.001
_REPLY_BYTES = 1 << 20
_SPAWN = multiprocessing.get_context("spawn")


class Scene(NamedTuple):
    """A node with documents, and a process that requests one document after the other.

    Attributes:
        node: the node.
        probe: a pipe to the process that requests documents.
        vbuckets: number of vbuckets of the bucket.
        documents: number of documents of the bucket.
        seconds: duration of work without a fixed length.
        rest: seconds after each piece of work, which are measured too.
    """

    node: NodeProcess
    probe: Pipe
    vbuckets: int
    documents: int
    seconds: float
    rest: float

    def connect(self) -> socket.socket:
        peer = socket.create_connection(("127.0.0.1", self.node.port))
        peer.settimeout(_PATIENCE)
        return peer


def make_key(number: int) -> bytes:
    return b"key-%09d" % number


# The process that requests documents


def request_documents(pipe: Pipe, port: int) -> None:
    """Request one document after the other. On each message of the pipe, send the longest time to a reply so far."""
    request = Get(key=make_key(0)).encode()
    longest = 0.0
    with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)) as peer:
        peer.settimeout(_PATIENCE)
        pipe.send(None)
        while True:
            began = time.perf_counter()
            peer.sendall(request)
            if not peer.recv(_REPLY_BYTES):
                return
            longest = max(longest, time.perf_counter() - began)
            if pipe.poll(_PROBE_SECONDS):
                if pipe.recv() is None:
                    return
                pipe.send(longest)
                longest = 0.0


@contextmanager
def run_scene(chosen: argparse.Namespace, vbuckets: int, directory: Path | None = None) -> Iterator[Scene]:
    """Run a node with documents, and the process that requests them.

    Args:
        chosen: the options of the command line.
        vbuckets: number of vbuckets.
        directory: data directory with the documents; None: in memory.
    """
    with ExitStack() as stack:
        disk = None if directory is None else Disk(OURS, directory)
        node = stack.enter_context(
            run_node(
                vbuckets=vbuckets,
                changes=0 if disk else chosen.documents,
                value_bytes=len(VALUE),
                profile=chosen.profile,
                disk=disk,
            )
        )
        node.longest_pause()
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=request_documents, args=(theirs, node.port), daemon=True)
        process.start()
        theirs.close()
        stack.callback(process.kill)
        ours.recv()
        yield Scene(node, ours, vbuckets, chosen.documents, chosen.seconds, chosen.rest)


# The work of the node


def exchange_requests(peer: socket.socket, requests: bytes, replies: int) -> None:
    """Send requests and read `replies` replies. Raises RuntimeError if one of them reports an error."""
    peer.sendall(requests)
    reader = peer.makefile("rb")
    for _ in range(replies):
        head = HEADER.unpack(reader.read(HEADER_BYTES))
        reader.read(head[6])
        if head[5]:
            raise RuntimeError(f"status 0x{head[5]:02x} from the node, expected success")


def do_nothing(_: Scene) -> None:
    """Do nothing. The figures then show the noise of the machine."""


def store_documents(scene: Scene, *, expiry: int = 0, keys: int | None = None) -> None:
    """Overwrite documents as fast as possible, 500 at a time."""
    number, until = 0, time.monotonic() + scene.seconds
    with scene.connect() as peer:
        while (time.monotonic() < until) if keys is None else number < keys:
            piece = [
                Set(key=make_key(n % scene.documents), value=VALUE, vbucket=n % scene.vbuckets, expiry=expiry)
                for n in range(number, number + 500)
            ]
            exchange_requests(peer, b"".join(one.encode() for one in piece), len(piece))
            number += len(piece)


def compact_bucket(scene: Scene) -> None:
    """Compact the whole bucket, while documents are stored."""
    with scene.connect() as peer:
        peer.sendall(CompactDb().encode())
        store_documents(scene)
        peer.recv(_REPLY_BYTES)


def make_manifest_change(count: int, uid: int) -> Callable[[Scene], None]:
    """Return work that sets a manifest with `count` collections in addition to the default one."""

    def change(scene: Scene) -> None:
        default = [{"name": "_default", "uid": "0"}]
        others = [{"name": f"c{number}", "uid": f"{number + 8:x}"} for number in range(count)]
        contents = {"uid": f"{uid:x}", "scopes": [{"name": "_default", "uid": "0", "collections": default + others}]}
        with scene.connect() as peer:
            exchange_requests(peer, SetManifest(value=json.dumps(contents).encode()).encode(), 1)

    return change


def read_all_vbuckets(scene: Scene) -> None:
    """Read from every vbucket at once, then change each."""
    numbers = range(min(2 * scene.vbuckets + 500, scene.documents))
    with scene.connect() as peer:
        gets = b"".join(Get(key=make_key(n), vbucket=n % scene.vbuckets).encode() for n in numbers)
        exchange_requests(peer, gets, len(numbers))
        sets = b"".join(Set(key=make_key(n), value=VALUE, vbucket=n % scene.vbuckets).encode() for n in numbers)
        exchange_requests(peer, sets, len(numbers))


def flush_bucket(scene: Scene) -> None:
    with scene.connect() as peer:
        exchange_requests(peer, Flush().encode(), 1)


def roll_back_vbuckets(scene: Scene) -> None:
    scene.node.roll_back()


def open_streams(scene: Scene) -> None:
    """Open a stream of every vbucket at once, and read until no more bytes arrive."""
    with scene.connect() as peer:
        exchange_requests(peer, Open(key=b"pauses", flags=OpenFlag.PRODUCER).encode(), 1)
        requests = [
            StreamReq(vbucket=number, opaque=number, start_seqno=0, end_seqno=2**64 - 1).encode()
            for number in range(scene.vbuckets)
        ]
        peer.sendall(b"".join(requests))
        peer.settimeout(scene.seconds / 2)
        room = bytearray(_REPLY_BYTES)
        try:
            while peer.recv_into(room):
                pass
        except TimeoutError:
            pass


def request_statistics(scene: Scene) -> None:
    with scene.connect() as peer:
        peer.sendall(
            b"".join(Stat(key=group).encode() for group in (b"vbucket-details", b"vbucket-seqno", b"dcp", b""))
        )
        peer.settimeout(scene.seconds / 2)
        try:
            while peer.recv(_REPLY_BYTES):
                pass
        except TimeoutError:
            pass


def request_cluster_maps(scene: Scene) -> None:
    """Request the cluster map on 500 connections at once. Half of them also receive pushed maps."""
    features = pack_features([Feature.DUPLEX, Feature.CLUSTERMAP_CHANGE_NOTIFICATION])
    with ExitStack() as stack:
        peers = [stack.enter_context(scene.connect()) for _ in range(500)]
        for number, peer in enumerate(peers):
            if number % 2:
                exchange_requests(peer, Hello(value=features).encode(), 1)
        for peer in peers:
            peer.sendall(GetClusterConfig().encode())
        make_manifest_change(2, uid=2)(scene)
        for peer in peers:
            peer.recv(_REPLY_BYTES)


def expire_documents(scene: Scene) -> None:
    """Store documents that expire, and wait until the expiry pager finds them."""
    store_documents(scene, expiry=1, keys=scene.documents)
    parameter = SetParam(key=b"exp_pager_stime", value=b"1", type=ParamType.FLUSH).encode()
    with scene.connect() as peer:
        exchange_requests(peer, parameter, 1)
        time.sleep(scene.seconds)


def delete_bucket(scene: Scene) -> None:
    url = f"http://127.0.0.1:{scene.node.http_port}/pools/default/buckets/default"
    with urlopen(Request(url, method="DELETE"), timeout=_PATIENCE):
        pass


# Measuring


def measure_pause(report: Report, scene: Scene, about: str, work: Callable[[Scene], None]) -> None:
    """Do the work, wait `rest` seconds, and report the longest pause."""
    scene.probe.send("reset")
    scene.probe.recv()
    scene.node.longest_pause()
    began = time.perf_counter()
    work(scene)
    seconds = time.perf_counter() - began
    time.sleep(scene.rest)
    pause = scene.node.longest_pause()
    seen = 0.0
    if work is not delete_bucket:  # which closes the connection of the process that requests documents
        scene.probe.send("longest")
        seen = scene.probe.recv()
    report.add_row(
        about,
        f"{pause.own * 1e3:.1f} ms; CPU time at most {pause.cpu * 1e3:.1f} ms{'' if pause.cpu < 0.02 else ' (!)'}; "
        f"the longest GET {seen * 1e3:.1f} ms on the clock; it took {seconds:.2f} s",
    )


MEMORY: dict[str, Callable[[Scene], None]] = {
    "nothing": do_nothing,
    "a collection is made": make_manifest_change(1, uid=1),
    "1,024 DCP streams are opened": open_streams,
    "vbucket-details and other statistics": request_statistics,
    "500 clients ask for the cluster map": request_cluster_maps,
    "documents are stored (seals)": store_documents,
    "documents expire": expire_documents,
    "all vbuckets are rolled back": roll_back_vbuckets,
    "all documents are flushed": flush_bucket,
    "1,000 collections are made": make_manifest_change(1000, uid=3),
    "1,000 collections are dropped": make_manifest_change(0, uid=4),
    "the bucket is deleted": delete_bucket,
}
DISK: dict[str, Callable[[Scene], None]] = {
    "first commands after the start": read_all_vbuckets,
    "a collection is made": make_manifest_change(1, uid=1),
    "1,024 DCP streams are opened": open_streams,
    "documents are stored (commits)": store_documents,
    "documents are stored, everything is rewritten": compact_bucket,
    "all vbuckets are rolled back": roll_back_vbuckets,
    "all documents are flushed": flush_bucket,
    "1,000 collections are made": make_manifest_change(1000, uid=3),
    "1,000 collections are dropped": make_manifest_change(0, uid=4),
    "the bucket is deleted": delete_bucket,
}


def fill_store(directory: Path, vbuckets: int, documents: int) -> None:
    bucket = BucketStore.open(directory, "default", vbuckets=vbuckets, clock=time.time_ns, new_vbuuid=generate_vbuuid)
    for number in range(documents):
        bucket.vbuckets[number % vbuckets].set(b"\0" + make_key(number), VALUE)
        if number % _COMMIT == 0:
            bucket.log.commits.run()
    bucket.close()


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--vbuckets", type=int, nargs="+", default=[1024, 1])
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of work without a fixed length")
    parser.add_argument("--rest", type=float, default=1.0, help="seconds after each piece of work, measured too")
    parser.add_argument("--only", default="", help="run only the cases whose names contain this text")
    parser.add_argument("--profile", action="store_true", help="print where the node spends its time")
    add_directory_option(parser)
    chosen = parser.parse_args()
    report = Report("The longest pause of a node's event loop", chosen)
    for vbuckets in chosen.vbuckets:
        name = f"{vbuckets} vbucket{'s' if vbuckets > 1 else ''}"
        if memory := select_cases(f"in memory, {name}", MEMORY, chosen.only):
            with run_scene(chosen, vbuckets) as stage:
                measure_cases(report, stage, memory)
        if disk := select_cases(f"on disk, {name}", DISK, chosen.only):
            with make_scratch_directory(chosen) as directory:
                run_in_process(fill_store, directory / "default", vbuckets, chosen.documents)
                with run_scene(chosen, vbuckets, directory) as stage:
                    measure_cases(report, stage, disk)
    report.finish()


def select_cases(where: str, work: dict[str, Callable[[Scene], None]], only: str) -> dict[str, Callable[[Scene], None]]:
    named = {f"{where}: {about}": each for about, each in work.items()}
    return {about: each for about, each in named.items() if only in about}


def measure_cases(report: Report, stage: Scene, work: dict[str, Callable[[Scene], None]]) -> None:
    for about, each in work.items():
        measure_pause(report, stage, about, each)


if __name__ == "__main__":
    main()
