"""Two buckets of a replication: their newest versions, and a replication up to now."""

import asyncio
import urllib.parse
import urllib.request

import pyarrow as pa

from penstock import BucketReplication, XdcrOptions, read_changes
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.patience import PATIENCE

VERSION = ("event", "value", "cas", "rev_seqno", "flags", "expiry", "delete_time", "datatype", "xattrs")


def read_versions(url):
    """Return (scope, collection, key) -> the newest version of each document and tombstone, with its metadata."""
    changes = pa.Table.from_batches(read_changes(url, stop="now", xattrs=True), CHANGE_SCHEMA)
    found = {}
    for row in changes.to_pylist():
        if row["key"] is not None:
            place = (row["scope"] or "_default", row["collection"] or "_default", row["key"])
            found[place] = tuple(row[name] for name in VERSION)
    return found


def read_values(url):
    """Return key -> value of each document, in any collection."""
    return {key: version[1] for (_, _, key), version in read_versions(url).items() if version[0] == "mutation"}


def replicate(source, target, **options):
    """Replicate until the source's current end; return the progress."""

    async def run():
        async with asyncio.timeout(PATIENCE):
            return await BucketReplication(source, target, XdcrOptions(until="now", **options)).run()

    return asyncio.run(run())


def create_bucket(node, name, **form):
    """Create a bucket over HTTP, for options that Node.running does not have."""
    content = urllib.parse.urlencode({"name": name, "ramQuotaMB": 100, **form}).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/pools/default/buckets", content) as reply:
        assert reply.status == 202


def create_collections(node, bucket, *names):
    """Create scopes and collections over HTTP."""
    base = f"http://127.0.0.1:{node.http_port}/pools/default/buckets/{bucket}/scopes"
    for scope in sorted({name.partition(".")[0] for name in names}):
        with urllib.request.urlopen(base, urllib.parse.urlencode({"name": scope}).encode()) as reply:
            assert reply.status == 200
    for name in names:
        scope, _, collection = name.partition(".")
        content = urllib.parse.urlencode({"name": collection}).encode()
        with urllib.request.urlopen(f"{base}/{scope}/collections", content) as reply:
            assert reply.status == 200
