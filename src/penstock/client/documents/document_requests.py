"""Requests for documents: each goes to the node of its vbucket, and is retried after temporary failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.client.connect.address import Address
from penstock.client.connect.node_link import make_refusal_error
from penstock.client.documents.collection_ids import CollectionIds
from penstock.client.documents.durability_levels import DurabilityName, pack_durability
from penstock.client.documents.mutation_tokens import NewestTokens
from penstock.client.documents.write_observer import WriteObserver
from penstock.client.feeds.collection_selection import qualify_name
from penstock.client.topology.nodes import CollectionsRenounced, Nodes
from penstock.errors import RETRIABLE_STATUSES, NotSupported, StatusError, UsageError
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import Request
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.collection_names import DEFAULT_NAME
from penstock.wire.messages.kv import Flush
from penstock.wire.values.collection_key import DEFAULT_PREFIX

T = TypeVar("T")


class DocumentRequests:
    """Sends requests for the documents of a bucket.

    Attributes:
        tokens: the mutation tokens of the newest writes.
        observer: waits until writes are on replicas or on disk.
    """

    def __init__(self, nodes: Nodes, address: Address) -> None:
        self.tokens = NewestTokens()
        self._nodes = nodes
        self._address = address
        self.observer = WriteObserver(nodes, address)
        self._collection_ids = CollectionIds(nodes, address)

    @property
    def vbuckets(self) -> int:
        """The number of vbuckets; 0 before the first connection."""
        return self._nodes.map.vbuckets

    async def send(
        self,
        collection: str,
        items: Sequence[T],
        make_request: Callable[[bytes, T], Request],
        *,
        accept: tuple[int, ...] = (),
        retry: bool = True,
    ) -> list[Frame]:
        """Send a request for each item, and again if the id of the collection has changed.

        Args:
            collection: `name` or `scope.name`; empty: the default collection.
            items: keys or documents.
            make_request: makes a request from the encoded collection id and an item.
            accept: statuses other than SUCCESS that raise no error.
            retry: as in `send_requests`.

        Returns:
            The replies in the order of the items.
        """
        if not self.vbuckets:
            raise UsageError("the bucket is not connected; use it as `async with connect(...) as bucket`")
        name, ids = qualify_name(collection or DEFAULT_NAME), self._collection_ids
        prefix = await ids.find_key_prefix(name)
        requests = [make_request(prefix, item) for item in items]
        if prefix in (b"", DEFAULT_PREFIX):
            try:
                return await self.send_requests(requests, accept, retry=retry, prefix_bytes=len(prefix))
            except CollectionsRenounced:
                return await self.send_requests([make_request(b"", item) for item in items], accept, retry=retry)
        known = (*accept, Status.UNKNOWN_COLLECTION)
        frames = await self.send_requests(requests, known, retry=retry, prefix_bytes=len(prefix))
        unknown = [at for at, frame in enumerate(frames) if frame.specific == Status.UNKNOWN_COLLECTION]
        if not unknown:
            return frames
        if ids.forget(name) == prefix and (other := await ids.find_key_prefix(name)) != prefix:
            requests = [make_request(other, items[at]) for at in unknown]
            replies = await self.send_requests(requests, accept, retry=retry, prefix_bytes=len(other))
            for at, frame in zip(unknown, replies, strict=True):
                frames[at] = frame
            return frames
        raise make_refusal_error(requests[unknown[0]], frames[unknown[0]], len(prefix))

    async def send_requests(
        self, requests: Sequence[Request], accept: tuple[int, ...] = (), *, retry: bool = True, prefix_bytes: int = 0
    ) -> list[Frame]:
        """Send requests, each to the node of its vbucket.

        Args:
            requests: the requests.
            accept: statuses other than SUCCESS that raise no error.
            retry: send requests again after a lost connection. Requests that a node has refused for now are
                always sent again, because it did not execute them.
            prefix_bytes: length of the collection id before each key, which messages omit.

        Returns:
            The replies in the order of the requests.

        Raises:
            refused: the StatusError of a status that is neither SUCCESS nor in `accept`.
        """
        found: list[Frame | None] = [None] * len(requests)

        async def attempt() -> list[Frame]:
            left = [at for at, frame in enumerate(found) if frame is None]
            sent = requests if len(left) == len(requests) else [requests[at] for at in left]
            parts = await (
                self._nodes.group_by_node(sent)
                if retry
                else self._nodes.run_with_retry(lambda: self._nodes.group_by_node(sent))
            )
            self._nodes.check_keys(prefixed=prefix_bytes > 0)
            frames = await self._nodes.send_parts(parts, sent)
            self.tokens.remember(sent, frames)
            bad = [at for at, frame in enumerate(frames) if frame.specific and frame.specific not in accept]
            if sent is requests and not bad:
                return frames
            for at, frame in zip(left, frames, strict=True):
                found[at] = frame
            # Temporary refusals are retried, so any other error is raised first.
            bad.sort(key=lambda at: frames[at].specific in RETRIABLE_STATUSES)
            for at in bad:
                found[left[at]] = None
            if bad:
                refused = make_refusal_error(sent[bad[0]], frames[bad[0]], prefix_bytes)
                if any(frames[at].specific == Status.NOT_MY_VBUCKET for at in bad):
                    self._nodes.invalidate_map()
                raise refused
            return [frame for frame in found if frame is not None]

        if retry:
            return await self._nodes.run_with_retry(attempt)
        return await self._nodes.run_with_retry(attempt, only=(StatusError,))

    @property
    def operation_timeout(self) -> float:
        """Seconds that an operation waits for its reply."""
        return self._address.options.operation_timeout

    def pack_durability(self, level: DurabilityName | None) -> bytes:
        """Return the framing extras of a write with a durability level, empty without one.

        Raises:
            UsageError: the level is unknown, or the bucket is not connected.
            NotSupported: the nodes have no durable writes.
        """
        if level is None:
            return b""
        framing = pack_durability(level, self.operation_timeout)
        if self.vbuckets and not self._nodes.has_durable_writes:
            raise NotSupported(f"{self._address} has no durable writes; write without, then use wait_for")
        return framing

    async def flush(self) -> None:
        """Let every node remove all documents."""
        for _, link in await self._nodes.run_with_retry(self._nodes.connect_all):
            await link.request(Flush(), self._address.options.operation_timeout)
