"""Couchbase's Python SDK on asyncio, with many concurrent requests."""

import asyncio

from tests.compat.installed import require_package

require_package("couchbase")

from acouchbase.cluster import AsyncCluster
from couchbase.auth import PasswordAuthenticator
from couchbase.options import ClusterOptions

DOCUMENTS = 10_000
TASKS = 32


def test_32_tasks_store_ten_thousand_documents(node):
    asyncio.run(write_and_read_documents(node))


async def write_and_read_documents(node):
    authenticator = PasswordAuthenticator(node.user, node.password)
    cluster = await AsyncCluster.connect(node.url, ClusterOptions(authenticator))
    try:
        bucket = cluster.bucket("beer")
        await bucket.on_connect()
        collection = bucket.default_collection()
        numbers = iter(range(DOCUMENTS))

        async def run_task():
            for number in numbers:
                document = {"number": number, "text": "x" * (number % 500)}
                stored = await collection.upsert(f"async-{number}", document)
                found = await collection.get(f"async-{number}")
                assert (found.cas, found.content_as[dict]) == (stored.cas, document)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(TASKS):
                tasks.create_task(run_task())
        assert next(numbers, None) is None
        exists = await asyncio.gather(*(collection.exists(f"async-{number}") for number in range(0, DOCUMENTS, 100)))
        assert all(result.exists for result in exists)
    finally:
        await cluster.close()
