"""Members that are killed while the cluster changes: processes of `penstock serve`."""

import json
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from tests.node.http.web_client import WebClient
from tests.node.membership.clusters import BUCKETS, list_names
from tests.patience import PATIENCE
from tests.ports import free_ports
from tests.waiting import wait_readable

ROUNDS = 3
MEMBERS = 3


class MemberProcess:
    """A process of `penstock serve` with ports and a directory that it has again after a kill."""

    def __init__(self, directory, ports, join=None):
        self.ports = ports
        self.options = ["--port", ports[0], "--http-port", ports[1], "--vbuckets", 4, "--data-dir", directory, "--json"]
        self.options += [] if join is None else ["--join", f"http://127.0.0.1:{join}"]
        self.web = WebClient(SimpleNamespace(host="127.0.0.1"), port=ports[1])
        self.start()

    def start(self):
        command = [sys.executable, "-m", "penstock", "serve", *map(str, self.options)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        assert wait_readable([self.process.stdout], PATIENCE), "nothing was printed in time"
        assert json.loads(self.process.stdout.readline())["http_port"] == self.ports[1]

    def kill(self):
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    directory = tmp_path_factory.mktemp("members")
    ports = free_ports(2 * MEMBERS)
    with ExitStack() as stack:
        started = []
        for number in range(MEMBERS):
            own = ports[2 * number : 2 * number + 2]
            started.append(MemberProcess(directory / str(number), own, ports[1] if number else None))
            stack.callback(started[-1].kill)
        yield started


def create_bucket(member, name, acknowledged):
    """Create a bucket, and note its name if the node answers that it is created."""
    try:
        if member.web.post(BUCKETS, name=name, ramQuota=100).status == 202:
            acknowledged.add(name)
    except OSError:
        pass  # the node was killed


def wait_until_equal(members):
    """Return the names of the buckets once all members have the same."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = [list_names(member.web) for member in members]
        if all(names == found[0] for names in found):
            return found[0]
    raise AssertionError(f"the members have different buckets: {found}")


@pytest.mark.process
def test_acknowledged_buckets_survive_kills(members):
    acknowledged: set[str] = set()
    for number in range(ROUNDS):
        asked, killed = members[number], members[min(number, 1)]
        change = threading.Thread(target=create_bucket, args=(asked, f"bucket{number}", acknowledged))
        change.start()
        killed.kill()
        change.join(PATIENCE)
        assert not change.is_alive()
        killed.start()
        create_bucket(asked, f"after{number}", acknowledged)
    names = wait_until_equal(members)
    assert {f"after{number}" for number in range(ROUNDS)} <= acknowledged
    assert acknowledged <= names <= {"default", *(f"{kind}{n}" for kind in ("bucket", "after") for n in range(ROUNDS))}
    assert len({json.dumps(member.web.get_json("/pools")["uuid"]) for member in members}) == 1


@pytest.mark.process
def test_minority_cannot_change_anything(members):
    before = wait_until_equal(members)
    for member in members[1:]:
        member.kill()
    refused = members[0].web.post(BUCKETS, name="never", ramQuota=100)
    assert (refused.status, b"expected at least 2" in refused.body) == (503, True)
    assert list_names(members[0].web) == before
    members[1].start()
    assert members[1].web.post(BUCKETS, name="later", ramQuota=100).status == 202
    assert list_names(members[0].web) == before | {"later"}
    members[2].start()
    assert wait_until_equal(members) == before | {"later"}
