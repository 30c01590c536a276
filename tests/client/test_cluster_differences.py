"""The differences between a cluster's file and its nodes."""

import pytest

from penstock.client.cluster.cluster_differences import compare_bucket, compare_places, compare_user
from penstock.client.cluster.cluster_file import BucketEntry, UserEntry
from penstock.client.replication.map_layout import MapLayout, MapNode
from penstock.errors import UsageError

NODES = tuple(MapNode((name, 11210), {"kv": 11210}) for name in "abc")
NONE: list[set[int]] = [set(), set(), set()]


@pytest.mark.parametrize(
    ("present", "expected", "is_equal"),
    [
        (["data_reader[beer:*:*]"], ["data_reader[beer]"], True),
        (["data_reader[beer:*]", "admin"], ["admin", "data_reader[beer]"], True),
        (["data_reader[*]"], ["data_reader[*]"], True),
        (["data_reader[beer:s:*]"], ["data_reader[beer:s]"], True),
        (["data_reader[beer:s:*]"], ["data_reader[beer]"], False),
        (["data_reader[*]"], ["data_reader[beer]"], False),
        ([], ["admin"], False),
        (["admin"], [], False),
    ],
)
def test_roles_are_compared_in_their_shortest_form(present, expected, is_equal):
    user = UserEntry(name="ann", password_file="secret", roles=tuple(expected))
    assert (compare_user(user, "a", {"ann": present}) is None) == is_equal
    assert "missing" in str(compare_user(user, "a", {"bob": present}))


def test_number_of_vbuckets_cannot_change():
    bucket = BucketEntry(name="beer", vbuckets=16)
    assert compare_bucket(bucket, "a", {"beer": 16}) is None
    assert str(compare_bucket(bucket, "a", {"ale": 16})) == "bucket beer at a: missing, expected 16 vbuckets"
    with pytest.raises(UsageError, match="bucket beer at a: 8 vbuckets, expected 16"):
        compare_bucket(bucket, "a", {"beer": 8})


PLACES = [
    (1, ((0, 1), (1, 2), (2, 0)), NONE, []),
    (0, ((0,), (1,), (2,)), NONE, []),
    (1, ((0, 1), (1, -1), (2, 0)), NONE, ["1 replicas to place or to remove, expected 1 of each vbucket, evenly"]),
    (1, ((0, 1), (0, 2), (0, 1)), NONE, ["2 vbuckets to move, expected an even spread"]),
    (1, ((0, 1), (-1, -1), (2, 0)), NONE, []),
    (
        1,
        ((0, 1), (1, 2), (2, 0)),
        [set(), {0, 2}, set()],
        ["at b:11210: vbuckets 0, 2 of other nodes"],
    ),
]


@pytest.mark.parametrize(("replicas", "chains", "strays", "expected"), PLACES)
def test_places_that_differ_are_named(replicas, chains, strays, expected):
    bucket = BucketEntry(name="beer", vbuckets=4, replicas=replicas)
    found = [str(each) for each in compare_places(bucket, MapLayout(NODES, chains), strays)]
    assert len(found) == len(expected)
    assert all(part in text for part, text in zip(expected, found, strict=True))
