"""A bucket whose documents change their schema, with a model of its documents."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from penstock.node import Node
from tests.node.watch import run as in_node
from tests.spark.buckets import Documents
from tests.spark.test_protocols import fail_over

VBUCKETS = 16
BUCKET = "default"
SCOPE = "sales"

Model = dict[str, dict[str, bytes]]


class DriftingBucket:
    """A node's bucket with collections of one scope.

    Attributes:
        documents: collection -> key -> value of the documents that exist.
        dropped: the collections that no longer exist.
    """

    def __init__(self, node: Node, client: Documents) -> None:
        self._node = node
        self._client = client
        self.documents: Model = {}
        self.dropped: set[str] = set()
        self._marked: tuple[Model, dict[int, int]] = ({}, {})

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        """Start a node with the bucket."""
        with Node.running([BUCKET], vbuckets=VBUCKETS) as node, Documents.of(node.url(BUCKET)) as client:
            found = cls(node, client)
            found._change_manifest("with_scope", SCOPE)
            yield found

    @property
    def url(self) -> str:
        """The address of the bucket."""
        return self._node.url(BUCKET)

    def _change_manifest(self, change: str, *names: str) -> None:
        served = self._node.buckets[BUCKET]
        in_node(self._node, lambda: served.change_manifest(getattr(served.store.manifests.current, change)(*names)))

    def create_collection(self, name: str) -> None:
        """Create a collection."""
        self._change_manifest("with_collection", SCOPE, name)
        self.documents[name] = {}

    def drop_collection(self, name: str) -> None:
        """Drop a collection with its documents."""
        self._change_manifest("without_collection", SCOPE, name)
        self.dropped.add(name)
        self.documents[name] = {}

    def store(self, collection: str, values: Mapping[str, Any]) -> None:
        """Store documents; bytes are values that are no JSON documents."""
        texts = {
            key: value if isinstance(value, bytes) else json.dumps(value).encode() for key, value in values.items()
        }
        self._client.loop.run(self._client.bucket.upsert_many(texts.items(), collection=f"{SCOPE}.{collection}"))
        self.documents[collection] |= texts

    def remove(self, collection: str, keys: list[str]) -> None:
        """Remove documents."""
        self._client.loop.run(self._client.bucket.remove_many(keys, collection=f"{SCOPE}.{collection}"))
        for key in keys:
            del self.documents[collection][key]

    def mark(self) -> None:
        """Mark the state to which `roll_back` returns."""
        vbuckets = self._node.buckets[BUCKET].store.vbuckets
        seqnos = {number: vbucket.changes.high_seqno for number, vbucket in enumerate(vbuckets)}
        self._marked = copy.deepcopy(self.documents), seqnos

    def roll_back(self) -> None:
        """Fail over to copies of all vbuckets that have the marked state."""
        documents, seqnos = self._marked
        for number, seqno in seqnos.items():
            fail_over(self._node, number, seqno)
        self.documents = copy.deepcopy(documents)

    def read(self) -> Model:
        """Return the documents that the bucket has, one by one."""
        found: Model = {}
        for name, values in self.documents.items():
            keys = sorted(values)
            read = (
                self._client.loop.run(self._client.bucket.get_many(keys, collection=f"{SCOPE}.{name}")) if keys else []
            )
            found[name] = {key: each.value for key, each in zip(keys, read, strict=True) if each is not None}
        return found
