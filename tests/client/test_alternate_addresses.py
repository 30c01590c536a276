"""Alternate addresses: the choice of a network, the connections of a client, and the pages of the node."""

import json

import pytest

from penstock import connect
from penstock.client.connect.address import Network
from penstock.client.connect.cluster_map import parse_cluster_map
from penstock.errors import RemoteProtocolError, ServiceMissing
from tests.client.alternate_addresses import ALTERNATE_PATH, run_alternate_cluster
from tests.client.peer import in_loop
from tests.node.balanced_nodes import open_node

NODES = [
    {
        "services": {"kv": 11210, "kvSSL": 11207},
        "hostname": host,
        "alternateAddresses": {"external": {"hostname": f"{host}.example", **ports}},
    }
    for host, ports in (("a", {"ports": {"kv": 31, "kvSSL": 32}}), ("b", {}))
]
OWN, OWN_TLS = (("a", 11210), ("b", 11210)), (("a", 11207), ("b", 11207))
OUTER, OUTER_TLS = (("a.example", 31), ("b.example", 11210)), (("a.example", 32), ("b.example", 11207))


def read_map(nodes, dialled, **options):
    content = {
        "nodesExt": nodes,
        "vBucketServerMap": {"serverList": ["a:11210", "b:11210"], "vBucketMap": [[0], [1]]},
    }
    found = parse_cluster_map(json.dumps(content).encode(), dialled, **options)
    assert found is not None
    return found.endpoints


@pytest.mark.parametrize(
    ("dialled", "network", "places"),
    [
        (("a", 11210), Network.AUTO, (OWN, OWN_TLS)),
        (("a.example", 31), Network.AUTO, (OUTER, OUTER_TLS)),
        (("b.example", 11210), Network.AUTO, (OUTER, OUTER_TLS)),
        (("b.example", 4711), Network.AUTO, (OUTER, OUTER_TLS)),  # another forwarded port of the host
        (("c", 11210), Network.AUTO, (OWN, OWN_TLS)),
        (("a.example", 31), Network.DEFAULT, (OWN, OWN_TLS)),
        (("a", 11210), Network.EXTERNAL, (OUTER, OUTER_TLS)),
    ],
)
def test_network_is_chosen_by_the_dialled_host(dialled, network, places):
    assert (read_map(NODES, dialled, network=network), read_map(NODES, dialled, network=network, tls=True)) == places


def test_port_chooses_the_network_of_a_shared_host():
    nodes = [
        {
            "services": {"kv": kv},
            "hostname": "localhost",
            "alternateAddresses": {"external": {"hostname": "localhost", "ports": {"kv": kv + 20000}}},
        }
        for kv in (1, 2)
    ]
    content = {
        "nodesExt": nodes,
        "vBucketServerMap": {"serverList": ["localhost:1", "localhost:2"], "vBucketMap": [[0], [1]]},
    }
    text = json.dumps(content).encode()
    found = [parse_cluster_map(text, ("localhost", port)) for port in (1, 20001, 7)]
    assert [each and [port for _, port in each.endpoints] for each in found] == [[1, 2], [20001, 20002], [1, 2]]


def test_missing_alternate_address_is_an_error():
    nodes = [NODES[0], {"services": {"kv": 11210}, "hostname": "b"}]
    with pytest.raises(ServiceMissing, match=r"no data port at an alternate address of b:11210 \(network=external\)"):
        read_map(nodes, ("a", 11210), network=Network.EXTERNAL)
    with pytest.raises(ServiceMissing, match="no data port with TLS at an alternate address of b:11210"):
        read_map(nodes, ("a.example", 31), tls=True)


@pytest.mark.parametrize("host", ["", "no host", "[::1]", "x" * 300])
def test_impossible_alternate_address_is_refused(host):
    nodes = [NODES[0], {**NODES[1], "alternateAddresses": {"external": {"hostname": host}}}]
    with pytest.raises(RemoteProtocolError, match="alternate address"):
        read_map(nodes, ("a.example", 31))


@pytest.fixture(scope="module")
def cluster():
    with run_alternate_cluster() as cluster:
        yield cluster


async def write_and_read(url):
    keys = [f"k{number}" for number in range(50)]
    async with connect(url) as bucket:
        await bucket.upsert_many([(key, b"v") for key in keys])
        found = {change.key async for change in bucket.changes(stop="now")}
        assert found >= {key.encode() for key in keys}


@pytest.mark.parametrize("network", ["auto", "external"])
@in_loop
async def test_client_outside_reaches_all_nodes_through_their_alternate_addresses(cluster, network):
    before = cluster.accepted
    await write_and_read(f"couchbase://127.0.0.1:{cluster.kv[0].port}/beer?network={network}")
    assert all(now > then for now, then in zip(cluster.accepted, before, strict=True))


@in_loop
async def test_client_inside_uses_the_own_addresses(cluster):
    before = cluster.accepted
    await write_and_read(cluster.webs[0].node.url("beer"))
    await write_and_read(f"{cluster.webs[1].node.url('beer')}?network=default")
    assert cluster.accepted == before


def test_orchestrated_map_keeps_the_alternate_addresses(cluster):
    for web in cluster.webs:
        nodes = web.get_json("/pools/default/b/beer")["nodesExt"]
        assert [node["alternateAddresses"]["external"] for node in nodes] == [
            {"hostname": "127.0.0.1", "ports": {"kv": kv.port, "mgmt": mgmt.port}}
            for kv, mgmt in zip(cluster.kv, cluster.mgmt, strict=True)
        ]


def test_alternate_address_is_changed_and_removed():
    with open_node() as web:
        assert web.ask("PUT", ALTERNATE_PATH, {"hostname": "::2"}).status == 200
        (node,) = web.get_json("/pools/default/nodeServices")["nodesExt"]
        assert node["alternateAddresses"] == {"external": {"hostname": "::2"}}
        assert web.ask("DELETE", ALTERNATE_PATH).status == 200
        assert "alternateAddresses" not in web.get_json("/pools/default/nodeServices")["nodesExt"][0]


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({}, "hostname"),
        ({"hostname": "no host"}, "hostname"),
        ({"hostname": "a", "kv": "0"}, "kv"),
        ({"hostname": "a", "kvSSL": "x"}, "kvSSL"),
        ({"hostname": "a", "n1ql": "8093"}, "n1ql"),
    ],
)
def test_wrong_forms_are_refused(cluster, form, field):
    answer = cluster.webs[0].ask("PUT", ALTERNATE_PATH, form)
    assert answer.status == 400
    assert field in answer.json["errors"]
