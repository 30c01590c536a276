"""Sub-document commands on large documents: their cost, and the delay of other clients.

One connection sends each command several times. Meanwhile a second connection sends GETs of a small document, one after
the other, and measures the time of each. Large values are also stored and changed as a whole. Then the longest pause of
the event loop is measured for each command, in memory and on disk. Last, sub-document commands run on a document of
1 KiB without a network.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

from benchmarks.kept import OURS, add_directory_option, make_scratch_directory
from benchmarks.process import PASSWORD, USER, Process, run_penstock
from benchmarks.report import Report, make_parser, time_in_turns
from benchmarks.served import Disk, run_node
from penstock.store.subdoc.attributes import CommandContext, EditedDocument
from penstock.store.subdoc.command import change_document, run_lookups
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import Request
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Append, Get, Hello, SelectBucket, Set, pack_features
from penstock.wire.messages.sasl import SaslAuth
from penstock.wire.messages.subdoc import (
    LookupSpec,
    MultiLookup,
    MultiMutation,
    MutationSpec,
    SubdocLookup,
    SubdocMutation,
    pack_lookup_specs,
    pack_mutation_specs,
)
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab
from penstock.wire.values.snappy import deflate

PATIENCE = 60.0
_REST = 0.05
GET, COUNT, UPSERT = Opcode.SUBDOC_GET, Opcode.SUBDOC_GET_COUNT, Opcode.SUBDOC_DICT_UPSERT
ADD, PUSH, UNIQUE = Opcode.SUBDOC_DICT_ADD, Opcode.SUBDOC_ARRAY_PUSH_LAST, Opcode.SUBDOC_ARRAY_ADD_UNIQUE
COUNTER = Opcode.SUBDOC_COUNTER

_PROBE = """
import sys, time
from benchmarks.subdoc import DocumentClient
client = DocumentClient(int(sys.argv[1]))
request = client.make_small_request()
client.send_request(request)
print("ready", flush=True)
took = []
sys.stdin.readline()
deadline = time.perf_counter() + float(sys.argv[2])
while time.perf_counter() < deadline:
    began = time.perf_counter()
    client.send_request(request)
    took.append(time.perf_counter() - began)
    time.sleep(0.0002)
took.sort()
print(len(took), took[len(took) * 99 // 100], took[-1], flush=True)
"""


_RIVAL = """
from penstock.store.subdoc.text import count_levels
text = b"[" + b"1," * 9_000_000 + b"1]"
print("ready", flush=True)
while True:
    count_levels(text)
"""
"""Another program that uses a processor. With it, the delay of GETs shows the share of the machine."""


class DocumentClient:
    """A connection after its login, which sends one request at a time."""

    def __init__(self, port: int, *, login: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.connection = FrameReceiver(Slab(1 << 20), run_dialect=None)
        if not login:
            self.send_request(Hello(value=pack_features([Feature.JSON, Feature.SNAPPY])))
            return
        self.send_request(SaslAuth(key=b"PLAIN", value=f"\0{USER}\0{PASSWORD}".encode()))
        self.send_request(Hello(value=pack_features([Feature.JSON, Feature.SNAPPY])))
        self.send_request(SelectBucket(key=b"default"))

    def make_small_request(self) -> Request:
        return Get(key=b"small")

    def send_request(self, request: Request | bytes) -> Frame:
        """Return the reply to a request. Raises ConnectionError if its status is not success."""
        self.socket.sendall(request if isinstance(request, bytes) else request.encode())
        while True:
            for frame in self.connection.feed(self.socket.recv(1 << 20)):
                assert isinstance(frame, Frame)
                if frame.specific != Status.SUCCESS:
                    raise ConnectionError(f"opcode 0x{frame.opcode:02x}: status 0x{frame.specific:x}")
                return frame


def repeat_items(target: int, item: Callable[[int], str], brackets: str) -> str:
    """Return an array or object of about `target` bytes."""
    count = target // (len(item(10**6)) + 1)
    return f"{brackets[0]}{','.join(map(item, range(count)))}{brackets[1]}"


def make_documents(nbytes: int) -> dict[bytes, bytes]:
    half = nbytes // 2
    objects = repeat_items(half, lambda n: f'{{"id":{n},"name":"name {n}","tags":["x","yy"],"v":{n}.5}}', "[]")
    keys = ",".join(f'"k{n}":{n}' for n in range(16))
    return {
        b"objects": f'{{"a":{objects},"b":{objects},{keys}}}'.encode(),
        b"numbers": f'{{"a":{repeat_items(nbytes, str, "[]")}}}'.encode(),
        b"fields": repeat_items(nbytes, lambda n: f'"field{n:07d}":{n}', "{}").encode(),
    }


def make_lookups(key: bytes, *paths: bytes) -> MultiLookup:
    return MultiLookup(key=key, value=pack_lookup_specs([(GET, 0, path) for path in paths]))


def make_changes(key: bytes, *specs: tuple[int, int, bytes, bytes]) -> MultiMutation:
    return MultiMutation(key=key, value=pack_mutation_specs(specs))


def make_commands() -> dict[str, Request | bytes]:
    """Return the commands on large documents."""
    spread = [b"a[%d].name" % (n * 8000) for n in range(8)] + [b"b[-1].v", b"b[-1].id", *(b"k%d" % n for n in range(6))]
    return {
        "16 paths, all over an array of objects": make_lookups(b"objects", *spread),
        "16 times a[-1] of numbers": make_lookups(b"numbers", *[b"a[-1]"] * 16),
        "16 keys of an object": make_lookups(b"fields", *(b"field%07d" % (n * 50_000) for n in range(16))),
        "GET_COUNT of an object": SubdocLookup.for_path(b"", key=b"fields").encode(COUNT),
        "one missing key, with MKDIR_P off": make_changes(b"fields", (UPSERT, 0, b"another", b"1")),
        "ARRAY_ADD_UNIQUE to numbers": make_unique_push(),
        "16 upserts": make_changes(b"objects", *((UPSERT, 0, b"k%d" % n, b'"new"') for n in range(16))),
        "16 counters": make_changes(b"objects", *((COUNTER, 0, b"c%d" % n, b"1") for n in range(16))),
        "16 pushes to one array": make_changes(b"objects", *((PUSH, 0, b"b", b"1") for _ in range(16))),
    }


def make_unique_push() -> bytes:
    return SubdocMutation.for_path(b"a", b'"%f"' % time.time(), key=b"numbers").encode(UNIQUE)


def make_value_commands(document: bytes) -> dict[str, Request | bytes]:
    """Return commands that store large values as a whole."""
    halves = b'["' + b"\\ud800" * (len(document) // 6) + b'"]'
    return {
        "SET": Set(key=b"whole", value=document),
        "SET with half surrogate pairs": Set(key=b"whole", value=halves),
        "SET, compressed": Set(key=b"whole", value=deflate(document), datatype=Datatype.SNAPPY),
        "GET": Get(key=b"objects"),
        "APPEND of one byte": Append(key=b"text", value=b" "),
    }


def measure_gets_beside(node: Process, work: Callable[[], object], seconds: float) -> tuple[int, float, float]:
    """Return the number, the p99 and the longest of the GETs that another process sends during some work, in ms."""
    command = [sys.executable, "-c", _PROBE, str(node.port), str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
        assert probe.stdin is not None
        assert probe.stdout is not None
        probe.stdout.readline()
        probe.stdin.write("go\n")
        probe.stdin.flush()
        done = threading.Event()

        def keep_on() -> None:
            while not done.is_set():
                work()

        thread = threading.Thread(target=keep_on)
        thread.start()
        count, p99, longest = probe.stdout.readline().split()
        done.set()
        thread.join()
    return int(count), float(p99) * 1e3, float(longest) * 1e3


def measure_commands(report: Report, node: Process, chosen: argparse.Namespace) -> None:
    client = DocumentClient(node.port)
    large = make_documents(chosen.bytes)
    for key, document in large.items():
        client.send_request(Set(key=key, value=document))
    client.send_request(Set(key=b"small", value=b"{}"))
    client.send_request(Set(key=b"text", value=large[b"objects"]))
    count, p99, longest = measure_gets_beside(node, partial(time.sleep, 0.01), chosen.seconds)
    report.add_row("GETs beside nothing", f"p99 {p99:.1f} ms, longest {longest:.1f} ms of {count}")
    with subprocess.Popen([sys.executable, "-c", _RIVAL], stdout=subprocess.PIPE) as rival:
        assert rival.stdout is not None
        rival.stdout.readline()
        count, p99, longest = measure_gets_beside(node, partial(time.sleep, 0.01), chosen.seconds)
        rival.kill()
    report.add_row("GETs beside another process that scans", f"p99 {p99:.1f} ms, longest {longest:.1f} ms of {count}")
    for name, request in {**make_commands(), **make_value_commands(large[b"objects"])}.items():
        took = []
        for _ in range(chosen.rounds):
            began = time.perf_counter()
            client.send_request(request)
            took.append((time.perf_counter() - began) * 1e3)
            if "UNIQUE" in name:
                request = make_unique_push()
        repeated = SubdocLookup.for_path(b"a[0]", key=b"numbers").encode(GET) if "UNIQUE" in name else request
        count, p99, longest = measure_gets_beside(node, partial(client.send_request, repeated), chosen.seconds)
        report.add_row(
            name,
            f"{min(took):.0f} ms (median {statistics.median(took):.0f}); "
            f"GETs meanwhile p99 {p99:.1f} ms, longest {longest:.1f} ms of {count}",
        )


def measure_pauses(report: Report, chosen: argparse.Namespace, where: str, disk: Disk | None) -> None:
    """Report the longest pause of the event loop for each command. It does not depend on other load."""
    with run_node(vbuckets=chosen.vbuckets, disk=disk) as node:
        client = DocumentClient(node.port, login=False)
        large = make_documents(chosen.bytes)
        for key, document in large.items():
            client.send_request(Set(key=key, value=document))
        client.send_request(Set(key=b"text", value=large[b"objects"]))
        for name, request in {**make_commands(), **make_value_commands(large[b"objects"])}.items():
            pauses = []
            for _ in range(chosen.rounds):
                node.settle()
                node.longest_pause()
                client.send_request(make_unique_push() if "UNIQUE" in name else request)
                time.sleep(_REST)  # work after the reply is included
                pauses.append(node.longest_pause())
            pause = min(pauses, key=attrgetter("own"))
            report.add_row(
                f"pause, {where}: {name}", f"{pause.own * 1e3:.1f} ms, {pause.cpu * 1e3:.1f} ms of it CPU time"
            )


def measure_small(report: Report, rounds: int) -> None:
    text = {"id": 1, "name": "some name", "tags": ["a", "b"], "address": {"city": "Town", "geo": [1.5, 2.5]}, "n": 5}
    body = json.dumps(text | {"text": "lorem ipsum " * 60, "list": [{"k": n} for n in range(8)]}).encode()
    document, around = EditedDocument(body, {}, int(Datatype.JSON)), CommandContext()

    def read(*paths: bytes) -> Callable[[], object]:
        return lambda: run_lookups(document, [LookupSpec(GET, 0, path) for path in paths], around)

    def write(*specs: Sequence[object]) -> Callable[[], object]:
        return lambda: change_document(document, [MutationSpec(*spec) for spec in specs], 0, around)  # type: ignore[arg-type]

    cases = {
        "one path": read(b"address.city"),
        "4 paths": read(b"id", b"list[-1].k", b"address.geo[0]", b"n"),
        "upsert": write((UPSERT, 0, b"name", b'"other"')),
        "counter": write((COUNTER, 0, b"n", b"1")),
        "push": write((PUSH, 0, b"tags", b'"c"')),
        "4 upserts": write(*((UPSERT, 0, path, b"1") for path in (b"id", b"name", b"new", b"n"))),
    }
    times = time_in_turns(cases, rounds, calls=1000)
    for name, each in times.items():
        report.add_row(f"{len(body)} bytes, no network: {name}", f"{each.median * 1e6:.1f} us")


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--bytes", type=int, default=18 << 20, help="size of a large document")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of the GETs beside each command")
    parser.add_argument("--vbuckets", type=int, default=1024, help="vbuckets of the node whose pauses are measured")
    parser.add_argument("--pauses", action="store_true", help="measure pauses only, without GETs")
    add_directory_option(parser)
    chosen = parser.parse_args()
    size = f"{chosen.bytes / (1 << 20):.3g} MiB"
    report = Report(f"Sub-document commands on {size}, and GETs of others meanwhile", chosen)
    if not chosen.pauses:
        with run_penstock() as node:
            measure_commands(report, node, chosen)
    measure_pauses(report, chosen, "in memory", None)
    with make_scratch_directory(chosen) as directory:
        measure_pauses(report, chosen, "on disk", Disk(OURS, directory))
    measure_small(report, chosen.rounds)
    report.finish()


if __name__ == "__main__":
    main()
