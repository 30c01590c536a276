"""Members that are killed while the cluster changes: processes of `penstock serve`."""

import json
import threading
import time

import pytest

from tests.node.membership.clusters import BUCKETS, list_names
from tests.node.membership.member_process import run_members
from tests.patience import PATIENCE

ROUNDS = 3
MEMBERS = 3


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    with run_members(tmp_path_factory.mktemp("members"), MEMBERS) as started:
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
