"""Couchbase's Python SDK at alternate addresses."""

import pytest

from tests.client.alternate_addresses import run_alternate_cluster
from tests.compat.installed import require_package

require_package("couchbase")

KEYS = [f"key{number}" for number in range(50)]


@pytest.fixture(scope="module")
def nodes():
    with run_alternate_cluster("localhost") as cluster:
        yield cluster


@pytest.mark.parametrize("network", ["external", "auto"])
def test_sdk_outside_uses_the_alternate_addresses(nodes, connect_cluster, network):
    before = nodes.accepted
    url = f"couchbase://localhost:{nodes.kv[0].port}?network={network}"
    documents = connect_cluster(url).bucket("beer").default_collection()
    for key in KEYS:
        documents.upsert(key, {"key": key})
    assert all(documents.get(key).content_as[dict] == {"key": key} for key in KEYS)
    assert all(now > then for now, then in zip(nodes.accepted, before, strict=True))
