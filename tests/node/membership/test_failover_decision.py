"""The decision on a failover: whether it is safe, and which replicas become active."""

import pytest
from msgspec.structs import replace

from penstock.errors import UsageError
from penstock.node.agreement.failover_settings import FailoverSettings
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.membership.cluster_document import ClusterDocument, ClusterNode
from penstock.node.membership.failover_decision import (
    MemberReport,
    ReplicaState,
    check_permission,
    check_silence,
    fail_over_member,
    find_lost_member,
    restore_member,
)

NODES = tuple(ClusterNode(id=name, host="127.0.0.1", kv=number + 1) for number, name in enumerate("abcd"))
ENABLED = FailoverSettings(enabled=True, timeout=5.0, max_count=2)
SPEC = BucketSpec(name="beer", vbuckets=4, uuid="1" * 32)


def make_document(*chains, settings=ENABLED):
    document = ClusterDocument(uuid="1", nodes=NODES, failover=settings).with_bucket(SPEC)
    return document.with_map("beer", chains)


def report(vbucket, seqno, *log, silent=9.0):
    return MemberReport(silent, {"beer": (ReplicaState(vbucket, seqno, log or ((7, 0),)),)})


ALONE = [("b",), ("b",), ("b",)]


def test_best_replica_owns_the_vbucket_and_the_lost_member_is_marked():
    document = make_document(("a", "b", "c"), ("b", "a", "c"), ("c", "b", None), ("d", None, None))
    after = fail_over_member(document, "a", {"b": report(0, 10), "c": report(0, 12)})
    assert after.get_bucket("beer").read_chains() == (
        ("c", "b", None), ("b", None, "c"), ("c", "b", None), ("d", None, None)
    )  # fmt: skip
    assert [node.failed for node in after.nodes] == [True, False, False, False]
    assert after.members == ("b", "c", "d")
    assert after.get_bucket("beer").map.revision > document.get_bucket("beer").map.revision


def test_replica_of_the_newest_branch_is_better_than_a_longer_one():
    document = make_document(("a", "b", "c"), *ALONE)
    reports = {"b": report(0, 20, (7, 0)), "c": report(0, 12, (8, 10), (7, 0))}
    assert fail_over_member(document, "a", reports).get_bucket("beer").read_chains()[0] == ("c", "b", None)


@pytest.mark.parametrize(
    ("chain", "reports", "expected"),
    [
        (("a",), {}, 1),
        (("a", "b"), {}, 1),
        (("a", "b", "c"), {"b": report(0, 5)}, 2),
        (("a", "b", "c"), {"b": report(0, 5), "a": report(0, 6)}, 2),
        (("a", "b", "c"), {"b": report(0, 5), "c": MemberReport(9.0, {"beer": (ReplicaState(0, 6, ()),)})}, 2),
        (("a", "b", "c", "d"), {"b": report(0, 5)}, 2),
    ],
)
def test_too_few_replicas_might_miss_a_durable_write(chain, reports, expected):
    with pytest.raises(UsageError, match=f"expected {expected}"):
        fail_over_member(make_document(chain, *ALONE), "a", reports)


def test_plain_cache_and_last_member_are_not_failed_over():
    plain = ClusterDocument(uuid="1", nodes=NODES).with_bucket(BucketSpec(name="beer", kind="memcached", uuid="1" * 32))
    with pytest.raises(UsageError, match="plain cache"):
        fail_over_member(plain, "a", {})
    with pytest.raises(UsageError, match="last member"):
        fail_over_member(ClusterDocument(uuid="1", nodes=NODES[:1]), "a", {})


@pytest.mark.parametrize(
    ("silent", "settings", "lost"),
    [
        ({"b": 4.9, "c": 1.0}, ENABLED, None),
        ({"b": 5.0, "c": 6.0}, ENABLED, "c"),
        ({"b": 9.0}, replace(ENABLED, enabled=False), None),
        ({"b": 9.0}, replace(ENABLED, count=2), None),
        ({}, ENABLED, None),
    ],
)
def test_longest_silence_is_a_loss(silent, settings, lost):
    assert find_lost_member(make_document(*ALONE, ("b",), settings=settings), silent) == lost


@pytest.mark.parametrize(
    ("silent", "age", "settings", "is_safe"),
    [
        (5.0, 0.0, ENABLED, True),
        (4.9, 0.0, ENABLED, False),
        (5.0, 0.1, ENABLED, False),  # the lease of 4 s and a quarter might have ended after the reports
        (8.0, 3.0, ENABLED, True),
    ],
)
def test_lease_has_ended_before_the_reports(silent, age, settings, is_safe):
    document = make_document(*ALONE, ("b",), settings=settings)
    if is_safe:
        check_silence(document, silent, age, settings.timeout)
    else:
        with pytest.raises(UsageError, match="expected at least"):
            check_silence(document, silent, age, settings.timeout)


@pytest.mark.parametrize("settings", [replace(ENABLED, enabled=False), replace(ENABLED, count=2)])
def test_settings_forbid_a_failover(settings):
    check_permission(make_document(*ALONE, ("b",)))
    with pytest.raises(UsageError, match="failovers of at most"):
        check_permission(make_document(*ALONE, ("b",), settings=settings))


def test_restored_member_has_no_vbuckets():
    document = fail_over_member(make_document(("a", "b"), *ALONE), "a", {"b": report(0, 1)})
    with pytest.raises(UsageError, match="expected members"):
        document.with_map("beer", [("a",)] * 4)
    after = restore_member(document, "a")
    assert after.newest_map > document.newest_map  # the maps list the node again
    assert after.members == ("a", "b", "c", "d")
    assert not after.has_vbuckets("a")
    with pytest.raises(UsageError, match="was not failed over"):
        restore_member(after, "a")


@pytest.mark.parametrize(
    ("lease", "settings"),
    [(4.0, {"timeout": 4.9}), (4.0, {"timeout": 3601.0}), (4.0, {"max_count": 0}), (8.0, {"timeout": 9.0})],
)
def test_settings_have_limits(lease, settings):
    with pytest.raises(UsageError, match="expected"):
        replace(ENABLED, **settings).check(lease)
    replace(ENABLED, enabled=False, **settings).check(lease)
