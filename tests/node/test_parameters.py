"""SET_PARAM: the effect of each parameter, and refused parameters."""

import pytest

from penstock.node import Node
from penstock.wire.codec.constants import ParamType
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import SeqnoPersistence, Set
from penstock.wire.messages.observe import CompactDb, SetParam, StopPersistence
from tests.node.wire_client import connected, until_stat

S, P = Status, ParamType


@pytest.fixture
def client(tmp_path):
    with Node.running(["default"], 4, data_dir=tmp_path) as node, connected(node) as client:
        yield client


def set_param(client, kind, name, value, **fields):
    return client.status(SetParam(type=kind, key=name.encode(), value=value.encode(), **fields))


SHOWN = [
    ("max_size", "104857600", "ep_max_size"),
    ("cache_size", "104857600", "ep_max_size"),
    ("max_ttl", "60", "ep_max_ttl"),
    ("persistent_metadata_purge_age", "60", "ep_persistent_metadata_purge_age"),
]


@pytest.mark.parametrize("kind", [P.FLUSH, P.CONFIG], ids=["flush", "config"])
@pytest.mark.parametrize(("name", "value", "shown"), SHOWN, ids=[row[0] for row in SHOWN])
def test_config_statistics_show_set_parameters(client, kind, name, value, shown):
    assert set_param(client, kind, name, value) == S.SUCCESS
    assert client.stats("config")[shown] == value


def test_max_ttl_applies_to_the_next_document(client):
    assert set_param(client, P.FLUSH, "max_ttl", "1000000") == S.SUCCESS
    client.set(b"k")
    assert int(client.meta(b"k").expiry) > 0


def test_small_quota_refuses_the_next_change(client):
    client.set(b"k")
    assert set_param(client, P.FLUSH, "max_size", "1") == S.SUCCESS
    statuses = {client.set(b"k%d" % number, bytes(1_000_000)).specific for number in range(70)}
    assert statuses == {S.SUCCESS, S.ENOMEM}


def test_expiry_pager_interval_and_switch_are_applied(client):
    client.ask(Set(key=b"k", expiry=1_000_000_000))  # in the past
    assert set_param(client, P.FLUSH, "exp_pager_enabled", "false") == S.SUCCESS
    assert set_param(client, P.FLUSH, "exp_pager_stime", "1") == S.SUCCESS
    assert client.stats()["ep_num_expiry_pager_runs"] == "0"
    assert set_param(client, P.FLUSH, "exp_pager_enabled", "true") == S.SUCCESS
    until_stat(client, "ep_num_expiry_pager_runs", 1)


def test_shorter_purge_age_drops_tombstones(client):
    for number in range(3):
        client.set(b"k%d" % number)
        client.delete(b"k%d" % number)
    assert set_param(client, P.FLUSH, "persistent_metadata_purge_age", "0") == S.SUCCESS
    for _ in range(10_000):  # until the second of the deletions is over
        assert client.status(CompactDb()) == S.SUCCESS
        purged = client.stats("vbucket-seqno 0")["vb_0:purge_seqno"]
        if purged != "0":
            break
    assert purged == "4"


def test_persistence_timeout_is_applied(client):
    assert set_param(client, P.FLUSH, "seqno_persistence_timeout", "0") == S.SUCCESS
    assert client.status(StopPersistence()) == S.SUCCESS
    client.set(b"k")
    assert client.status(SeqnoPersistence(seqno=1)) == S.ETMPFAIL


def test_max_cas_is_applied_to_one_vbucket(client):
    high = 2**63
    assert set_param(client, P.VBUCKET, "max_cas", str(high), vbucket=1) == S.SUCCESS
    assert client.set(b"k", vbucket=1).cas > high
    assert client.set(b"k", vbucket=0).cas < high
    assert set_param(client, P.VBUCKET, "max_cas", "1", vbucket=4) == S.NOT_MY_VBUCKET


@pytest.mark.parametrize("name", ["bfilter_enabled", "defragmenter_interval", "alog_sleep_time"])
def test_parameters_without_effect_are_accepted(client, name):
    assert set_param(client, P.FLUSH, name, "1") == S.SUCCESS


REFUSED = [
    ("of no type", 0, "max_ttl", "1", S.EINVAL),
    ("of an unknown type", 7, "max_ttl", "1", S.EINVAL),
    ("of the flusher, unknown", P.FLUSH, "colour", "1", S.EINVAL),
    ("of the configuration, unknown", P.CONFIG, "colour", "1", S.EINVAL),
    ("of DCP, unknown", P.DCP, "colour", "1", S.EINVAL),
    ("of the vbuckets, unknown", P.VBUCKET, "colour", "1", S.EINVAL),
    ("of checkpoints, unknown", P.CHECKPOINT, "colour", "1", S.KEY_ENOENT),
    ("of replication", P.REPLICATION, "colour", "1", S.KEY_ENOENT),
    ("known, of another type", P.DCP, "max_ttl", "1", S.EINVAL),
    ("without effect, of another type", P.DCP, "bfilter_enabled", "1", S.EINVAL),
    ("not a number", P.FLUSH, "max_ttl", "long", S.EINVAL),
    ("negative", P.FLUSH, "max_ttl", "-1", S.EINVAL),
    ("too large", P.FLUSH, "max_ttl", "2147483648", S.EINVAL),
    ("a quota of 0", P.FLUSH, "max_size", "0", S.EINVAL),
    ("neither true nor false", P.FLUSH, "exp_pager_enabled", "1", S.EINVAL),
    ("too many digits", P.FLUSH, "max_ttl", "1" * 5000, S.EINVAL),
]


@pytest.mark.parametrize(("kind", "name", "value", "status"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED])
def test_invalid_parameters_are_refused(client, kind, name, value, status):
    assert set_param(client, kind, name, value) == status


@pytest.mark.parametrize(
    "frame",
    [
        Frame(0x80, SetParam.opcode, key=b"max_ttl", value=b"1"),
        Frame(0x80, SetParam.opcode, extras=bytes(4), value=b"1"),
        Frame(0x80, SetParam.opcode, extras=bytes(4), key=b"max_ttl"),
    ],
    ids=["without a type", "without a name", "without a value"],
)
def test_incomplete_requests_are_refused(client, frame):
    assert client.status(frame) == S.EINVAL


def test_persistence_timeout_is_refused_in_memory():
    with Node.running(vbuckets=4) as node, connected(node) as client:
        assert set_param(client, P.FLUSH, "seqno_persistence_timeout", "1") == S.NOT_SUPPORTED
        assert set_param(client, P.FLUSH, "max_ttl", "1") == S.SUCCESS
