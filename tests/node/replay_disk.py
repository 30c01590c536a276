"""Nodes for replays: in memory, or on disk if the recorded node was restarted or compacted.

Run as a program with a directory and the name of a recording, this module is the node that a test kills.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.node import Node
from penstock.node.buckets.bucket_spec import BucketSpec
from tests.node.replay_state import VBUCKETS, build_documents
from tests.node.watch import run
from tests.patience import PATIENCE
from tests.waiting import wait_readable

ROOT = Path(__file__).parents[2]

ON_DISK: dict[str, str | None] = {
    "dcp_disk_backfill_after_clean_restart": "stopped",
    "dcp_disk_backfill_after_sigkill": "killed",
    "dcp_rollback_purged": None,
    "tap_backfill_dump_after_restart": "stopped",
}
"""By recording: the end of an earlier node on the same disk; None if there was no earlier node."""


@contextmanager
def run_node_for(name: str) -> Iterator[Node]:
    """Run a node with the documents that the recorded server had at the start of the conversation."""
    if name.startswith("defengine_"):
        with Node.running(["another"], vbuckets=VBUCKETS) as node:
            create = node.buckets.create(BucketSpec(name="default", kind="memcached"))
            asyncio.run_coroutine_threadsafe(create, node.loop).result(PATIENCE)
            yield node
        return
    if name not in ON_DISK:
        with Node.running(vbuckets=VBUCKETS) as node:
            run(node, partial(build_documents, node, name))
            yield node
        return
    end = ON_DISK[name]
    with TemporaryDirectory() as directory:
        path = Path(directory)
        if end == "stopped":
            with _run_node_on_disk(path) as node:
                run(node, partial(build_documents, node, name))
        elif end == "killed":
            _build_in_killed_process(path, name)
        with _run_node_on_disk(path) as node:
            if end is None:
                run(node, partial(build_documents, node, name))
            yield node


@contextmanager
def _run_node_on_disk(path: Path) -> Iterator[Node]:
    with Node.running(vbuckets=VBUCKETS, data_dir=path) as node:
        yield node


def _build_in_killed_process(path: Path, name: str) -> None:
    """Build the documents in another process, and kill it when they are on disk."""
    command = [sys.executable, "-m", "tests.node.replay_disk", str(path), name]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            ready = wait_readable([process.stdout], PATIENCE)
            assert ready, f"no documents on disk after {PATIENCE} s"
            assert process.stdout.readline() == b"built\n"
        finally:
            process.kill()


def main(path: str, name: str) -> None:
    with _run_node_on_disk(Path(path)) as node:
        run(node, partial(build_documents, node, name))
        (bucket,) = node.buckets.values()
        assert bucket.flusher is not None
        asyncio.run_coroutine_threadsafe(bucket.flusher.flush(), node.loop).result(PATIENCE)
        sys.stdout.write("built\n")
        sys.stdout.flush()
        sys.stdin.read()  # blocks until the process is killed


if __name__ == "__main__":
    main(*sys.argv[1:])
