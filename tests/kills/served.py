"""Nodes that are killed: the process of `penstock serve`, or a faster process with small log files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.node import Node
from penstock.store.definition.bucket_settings import BucketSettings
from tests.patience import PATIENCE
from tests.waiting import wait_readable

VBUCKETS = 16


def serve(path: str, segment_bytes: int) -> None:
    """Run a node until it is killed. It prints `port N`."""
    asyncio.run(_serve(Path(path), BucketSettings(segment_bytes=segment_bytes)))


async def _serve(path: Path, settings: BucketSettings) -> None:
    node = await Node.start(port=0, buckets=["beer"], vbuckets=VBUCKETS, data_dir=path, settings=settings)
    os.write(1, b"port %d\n" % node.kv_port)
    await node.wait_closed()


class NodeProcess:
    """A process of `penstock serve`.

    Attributes:
        port: the port of the node.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdout is not None
        ready = wait_readable([process.stdout], PATIENCE)
        assert ready, "nothing was printed in time"
        self.port = int(json.loads(process.stdout.readline())["kv_port"])

    @classmethod
    @contextmanager
    def start(cls, path: Path) -> Iterator[NodeProcess]:
        """Run a node; kill it at the end of the context unless that has been done."""
        options = ["--port", "0", "--bucket", "beer", "--vbuckets", str(VBUCKETS), "--data-dir", str(path), "--json"]
        command = [sys.executable, "-m", "penstock", "serve", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            try:
                yield cls(process)
            finally:
                process.kill()

    def kill(self) -> None:
        self._process.kill()
        assert self._process.wait(PATIENCE) == -signal.SIGKILL

    def stop(self) -> None:
        """Stop the node with SIGTERM: a clean stop."""
        self._process.terminate()
        assert self._process.wait(PATIENCE) == 0
