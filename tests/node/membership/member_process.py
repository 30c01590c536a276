"""Members that are processes of `penstock serve`, so that signals can stop and kill them."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

from tests.node.http.web_client import WebClient
from tests.patience import PATIENCE
from tests.ports import free_ports
from tests.waiting import wait_readable

__all__ = ["MemberProcess", "run_members", "wait_for"]


def wait_for(condition, name):
    """Return the first true result of a function."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
    raise AssertionError(f"{name}: not within {PATIENCE:g} s")


class MemberProcess:
    """A process of `penstock serve` with ports and a directory that it has again after a kill."""

    def __init__(self, directory, ports, join=None, options=()):
        self.ports = ports
        self.options = ["--port", ports[0], "--http-port", ports[1], "--vbuckets", 4, "--data-dir", directory, "--json"]
        self.options += [*options, *([] if join is None else ["--join", f"http://127.0.0.1:{join}"])]
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


@contextmanager
def run_members(directory, count, *options):
    """Run processes; all but the first join the cluster of the first."""
    ports = free_ports(2 * count)
    started = []
    try:
        for number in range(count):
            own = ports[2 * number : 2 * number + 2]
            started.append(MemberProcess(directory / str(number), own, ports[1] if number else None, options))
        yield started
    finally:
        for member in started:
            member.kill()
