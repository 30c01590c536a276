"""Compaction of a bucket's files, automatic and on demand, while the node serves clients."""

from contextlib import contextmanager

import pytest

from penstock.node import Node
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Noop
from penstock.wire.messages.observe import CompactDb
from tests.node.disks import FullDirectory, replace_directory
from tests.node.wire_client import connected, until_stat

S = Status
VBUCKETS = 4
SMALL = BucketSettings(segment_bytes=64 * 1024)
KEYS = 40


@contextmanager
def running(path, settings=SMALL):
    with Node.running(["default"], VBUCKETS, data_dir=path, settings=settings) as node:
        yield node


@pytest.fixture
def node(tmp_path):
    with running(tmp_path) as node:
        yield node


@pytest.fixture
def client(node):
    with connected(node) as client:
        yield client


def overwrite(client, turns):
    """Write every document `turns` times, so that only the last versions are live."""
    for turn in range(turns):
        for number in range(KEYS):
            client.set(b"key-%d" % number, b"%d" % turn * 500, vbucket=number % VBUCKETS)


def read_all(client):
    return [client.get(b"key-%d" % number, vbucket=number % VBUCKETS)[5:] for number in range(KEYS)]


def get_file_size(client):
    return int(client.stats()["ep_db_file_size"])


def test_compact_command_drops_all_dead_records(tmp_path):
    with running(tmp_path, BucketSettings()) as node, connected(node) as client:
        overwrite(client, 20)
        until_stat(client, "ep_queue_size", 0)
        before, largest = read_all(client), get_file_size(client)
        assert client.status(CompactDb(vbucket=3)) == S.SUCCESS
        assert get_file_size(client) < largest / 2
        assert int(client.stats()["ep_compactions"]) > 0
        assert read_all(client) == before
        overwrite(client, 1)
        before = read_all(client)
        assert client.status(CompactDb()) == S.SUCCESS
    with running(tmp_path) as node, connected(node) as client:
        assert read_all(client) == before


def test_compaction_starts_at_half_dead_segments(client):
    largest = 0
    for _ in range(100):
        overwrite(client, 5)
        if get_file_size(client) < largest:
            break
        largest = get_file_size(client)
    assert int(client.stats()["ep_compactions"]) > 0


def test_compaction_delays_only_requests_behind_it(node, client):
    overwrite(client, 20)
    client.send(CompactDb(), Noop())
    with connected(node) as other:
        other.send(CompactDb())
        other.set(b"new", b"value")
        answers = [client.receive() for _ in range(2)]
        assert [(answer.opcode, answer.specific) for answer in answers] == [
            (Opcode.COMPACT_DB, S.SUCCESS),
            (Opcode.NOOP, S.SUCCESS),
        ]
        (answered,) = [frame for frame in other.frames if frame.opcode == Opcode.COMPACT_DB] or [other.receive()]
        assert answered.specific in (S.EBUSY, S.SUCCESS)


def test_second_compaction_is_refused(node, client):
    overwrite(client, 5)
    compactor = node.buckets["default"].compactor
    answers: list[object] = []
    node.loop.call_soon_threadsafe(lambda: compactor.compact_all(b"reply").begin(answers.append))
    assert client.status(CompactDb()) in (S.EBUSY, S.SUCCESS)


REFUSED = [
    ("of a missing vbucket", CompactDb(vbucket=VBUCKETS), S.NOT_MY_VBUCKET),
    ("with padding that is not 0", CompactDb(padding=1), S.EINVAL),
    ("without extras", Frame(0x80, Opcode.COMPACT_DB), S.EINVAL),
]


@pytest.mark.parametrize(("request_", "status"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_invalid_compactions_are_refused(client, request_, status):
    assert client.status(request_) == status
    assert client.status(Noop()) == S.SUCCESS


def test_bucket_in_memory_cannot_be_compacted():
    with Node.running(vbuckets=VBUCKETS) as node, connected(node) as client:
        assert client.status(CompactDb()) == S.NOT_SUPPORTED


def test_tombstones_are_dropped_at_the_purge_age(tmp_path):
    with running(tmp_path, BucketSettings(purge_age=0)) as node, connected(node) as client:
        for number in range(100):
            client.set(b"key-%d" % number)
            client.delete(b"key-%d" % number)
        for _ in range(10_000):  # until the second of the last deletion is over
            assert client.status(CompactDb()) == S.SUCCESS
            purged = client.stats("vbucket-seqno 0")["vb_0:purge_seqno"]
            if purged == "198":
                break
        assert purged == "198"


LATEST = 2**64 - 1
DROPPED = [  # vbuckets 0 and 1 have deletions at the seqnos 2, 4, 6 and 8; the request names vbucket 0
    ("at any time", {"drop_deletes": 1}, 6),
    ("before a time", {"purge_before_ts": LATEST}, 6),
    ("before a time and up to a seqno", {"purge_before_ts": LATEST, "purge_before_seqno": 4}, 4),
    ("up to a seqno only", {"purge_before_seqno": 4}, 0),
    ("before a time long ago", {"purge_before_ts": 1}, 0),
]


@pytest.mark.parametrize(("fields", "purged"), [row[1:] for row in DROPPED], ids=[row[0] for row in DROPPED])
def test_request_can_drop_tombstones_earlier(tmp_path, fields, purged):
    with running(tmp_path, BucketSettings()) as node, connected(node) as client:
        for vbucket in (0, 1):
            for number in range(4):
                client.set(b"key-%d" % number, vbucket=vbucket)
                client.delete(b"key-%d" % number, vbucket=vbucket)
        assert client.status(CompactDb(**fields)) == S.SUCCESS
        assert client.status(CompactDb()) == S.SUCCESS  # this drops no more
        stats = client.stats("vbucket-seqno")
        assert [stats[f"vb_{vbucket}:purge_seqno"] for vbucket in (0, 1)] == [str(purged), "0"]
        assert client.meta(b"key-3").deleted == 1  # the newest change stays
    with running(tmp_path) as node, connected(node) as client:
        assert client.stats("vbucket-seqno 0")["vb_0:purge_seqno"] == str(purged)
        assert client.stats("vbucket-seqno 0")["vb_0:high_seqno"] == "8"


def test_full_disk_is_reported_to_the_client(node, client):
    overwrite(client, 3)
    replace_directory(node, "default", FullDirectory)
    assert client.status(CompactDb()) == S.ETMPFAIL
    replace_directory(node, "default", FullDirectory.__base__)
    assert read_all(client)[0] is not None


def test_stop_during_a_compaction_leaves_no_files(tmp_path):
    with running(tmp_path) as node, connected(node) as client:
        overwrite(client, 20)
        before = read_all(client)
        client.send(CompactDb())
        client.send(Noop())
    left = [path.name for path in (tmp_path / "default").iterdir() if path.suffix == ".new"]
    assert left == []
    with running(tmp_path) as node, connected(node) as client:
        assert read_all(client) == before
