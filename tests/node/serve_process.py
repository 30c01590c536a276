"""Processes of `penstock serve` with fixed ports and directories, so that they can be killed and started again."""

import asyncio
import json
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

from penstock.client.connect.address import parse_address
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from tests.node.http.web_client import WebClient
from tests.patience import PATIENCE
from tests.ports import free_ports
from tests.waiting import wait_readable

VBUCKETS = 4


def wait_for(condition, name):
    """Return the first true result of a function."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
    raise AssertionError(f"{name}: not within {PATIENCE:g} s")


class ServeProcess:
    """A process of `penstock serve` with ports and a directory that it has again after a kill."""

    def __init__(self, directory, ports, options=()):
        self.ports = ports
        self.options = ["--port", ports[0], "--http-port", ports[1], "--vbuckets", VBUCKETS]
        self.options += ["--data-dir", directory, "--json", *options]
        self.web = WebClient(SimpleNamespace(host="127.0.0.1"), port=ports[1])
        self.start()

    @property
    def node(self):
        """The ports, in the form that wire clients take."""
        return SimpleNamespace(host="127.0.0.1", kv_port=self.ports[0])

    def start(self):
        command = [sys.executable, "-m", "penstock", "serve", *map(str, self.options)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        assert wait_readable([self.process.stdout], PATIENCE), "nothing was printed in time"
        assert json.loads(self.process.stdout.readline())["http_port"] == self.ports[1]

    def kill(self):
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)


def make_address(process):
    return parse_address(f"couchbase://127.0.0.1:{process.ports[0]}/default")


def copy_vbuckets(source, target, vbuckets):
    """Copy vbuckets of a node to a target, up to now."""

    async def run():
        options = ReplicationOptions(vbuckets=vbuckets, overwrite=True, until_caught_up=True)
        async with Replicator(make_address(source), make_address(target), options) as replicator:
            await replicator.run()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


@contextmanager
def run_processes(directory, count, *options):
    """Run processes, each of which stands alone."""
    ports = free_ports(2 * count)
    started = []
    try:
        for number in range(count):
            own = ports[2 * number : 2 * number + 2]
            started.append(ServeProcess(directory / str(number), own, options))
        yield started
    finally:
        for process in started:
            process.kill()
