"""Are SET and GET as fast as they were? Nodes of two commits serve the same requests in turns, beside memcached.

    python -m benchmarks.paired HEAD~20 HEAD

Each commit is checked out into a directory of its own, and its extension module is built there. The requests go over
one connection, many at a time. The figures are CPU time of the server for a request, and ratios to it: other load on
the machine disturbs these little. A ratio above 1 is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.kv import GET_REPLY, SET_REPLY, exchange_pieces, make_batches
from benchmarks.process import Process, run_memcached
from benchmarks.report import Report, make_parser

_ROOT = Path(__file__).parent.parent


class Load(NamedTuple):
    """Requests of one kind.

    Attributes:
        pieces: the requests, in pieces that are sent at once.
        reply_bytes: bytes of the replies to a piece.
    """

    pieces: list[bytes]
    reply_bytes: int


def make_loads(chosen: argparse.Namespace) -> dict[str, Load]:
    """Return the requests by kind. SETs come first: GETs find their documents."""
    value, half = b"v" * chosen.value_bytes, chosen.pipelined // 2
    batches = (make_batches(chosen.keys, chosen.pipelined, each, chosen.vbuckets) for each in (value, None))
    sets, gets = batches
    return {"SET": Load(sets, half * SET_REPLY), "GET": Load(gets, half * (GET_REPLY + len(value)))}


@contextmanager
def check_out(commit: str) -> Iterator[Path]:
    """Check a commit out into a directory, and build its extension module there."""
    with tempfile.TemporaryDirectory(prefix="penstock-paired-") as directory:
        tree = Path(directory) / "tree"
        subprocess.run(["git", "-C", _ROOT, "worktree", "add", "--quiet", "--detach", tree, commit], check=True)
        try:
            build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
            subprocess.run(build, cwd=tree, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            yield tree
        finally:
            subprocess.run(["git", "-C", _ROOT, "worktree", "remove", "--force", tree], check=True)


@contextmanager
def run_tree(tree: Path, vbuckets: int) -> Iterator[Process]:
    """Run a node of a tree, with the bucket that connections without a login use."""
    options = ["--bucket", "default", "--vbuckets", str(vbuckets), "--port", "0", "--http-port", "0", "--json"]
    command = [sys.executable, "-P", "-m", "penstock", "serve", *options]
    with subprocess.Popen(
        command, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree / "src")}, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            yield Process(process.pid, ready["kv_port"], ready)
        finally:
            process.terminate()


def measure_load(server: Process, load: Load, repeats: int) -> float:
    """Return the CPU seconds of a server for a load, sent `repeats` times over a new connection."""
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.settimeout(60)
        before = server.read_cpu_seconds()
        for _ in range(repeats):
            exchange_pieces(peer, *load)
        return (server.read_cpu_seconds() - before) / repeats


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("old", help="a commit")
    parser.add_argument("new", help="a commit")
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--pipelined", type=int, default=500)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--vbuckets", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=5, help="times that a round sends the requests")
    chosen = parser.parse_args()
    report = Report(f"Two commits in turns, {chosen.pipelined} requests pipelined on one connection", chosen)
    loads = make_loads(chosen)
    with ExitStack() as stack:
        trees = {name: stack.enter_context(check_out(getattr(chosen, name))) for name in ("old", "new")}
        servers = {name: stack.enter_context(run_tree(tree, chosen.vbuckets)) for name, tree in trees.items()}
        if (memcached := stack.enter_context(run_memcached())) is not None:
            servers["memcached"] = memcached
        taken: dict[tuple[str, str], list[float]] = {}
        for _ in range(chosen.rounds + 1):
            for name, server in servers.items():
                for kind, load in loads.items():
                    taken.setdefault((kind, name), []).append(measure_load(server, load, chosen.repeats))
    median = {case: statistics.median(seconds[1:]) for case, seconds in taken.items()}  # the first round warms up
    for (kind, name), seconds in median.items():
        ratio = seconds / median[kind, "new"]
        text = "" if name == "new" else f"; the new commit has {ratio:.2f} of its speed"
        report.add_row(f"{kind}, {name}", f"{seconds / chosen.keys * 1e6:.2f} us of CPU{text}")
    report.finish()


if __name__ == "__main__":
    main()
