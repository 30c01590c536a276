"""How requests for documents travel: each to the node that has its vbucket, and again where that may mend it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.client.connect.address import Address
from penstock.client.connect.link import refusal
from penstock.client.documents.collection_ids import CollectionIds
from penstock.client.documents.mutation_tokens import NewestTokens
from penstock.client.feeds.selection import qualified
from penstock.client.topology.nodes import Nodes
from penstock.errors import NotMyVbucket, UsageError
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import Request
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.collection_names import DEFAULT_NAME
from penstock.wire.messages.kv import Flush
from penstock.wire.values.collection_key import DEFAULT_PREFIX

__all__ = ["DocumentRequests"]

T = TypeVar("T")


class DocumentRequests:
    """Sends requests for the documents of a bucket.

    Attributes:
        tokens: where the newest writes are in their vbuckets' histories.
    """

    def __init__(self, nodes: Nodes, address: Address) -> None:
        self.tokens = NewestTokens()
        self._nodes = nodes
        self._address = address
        self._collection_ids = CollectionIds(nodes, address)

    @property
    def vbuckets(self) -> int:
        return self._nodes.map.vbuckets

    async def send(
        self,
        collection: str,
        items: Sequence[T],
        make: Callable[[bytes, T], Request],
        *,
        accept: tuple[int, ...] = (),
        again: bool = True,
    ) -> list[Frame]:
        """Send a request for each item, and once more where the collection's id has become another one.

        make: makes a request, given what its key begins with. again: as of `call`.
        """
        if not self.vbuckets:
            raise UsageError("the bucket is not connected; use it as `async with connect(...) as bucket`")
        name, ids = qualified(collection or DEFAULT_NAME), self._collection_ids
        prefix = await ids.prefix(name)
        requests = [make(prefix, item) for item in items]
        if prefix in (b"", DEFAULT_PREFIX):
            return await self.call(requests, accept, again=again, prefix_bytes=len(prefix))
        known = (*accept, Status.UNKNOWN_COLLECTION)
        frames = await self.call(requests, known, again=again, prefix_bytes=len(prefix))
        unknown = [at for at, frame in enumerate(frames) if frame.specific == Status.UNKNOWN_COLLECTION]
        if not unknown:
            return frames
        if ids.forget(name) == prefix and (other := await ids.prefix(name)) != prefix:
            requests = [make(other, items[at]) for at in unknown]
            replies = await self.call(requests, accept, again=again, prefix_bytes=len(other))
            for at, frame in zip(unknown, replies, strict=True):
                frames[at] = frame
            return frames
        raise refusal(requests[unknown[0]], frames[unknown[0]], len(prefix))

    async def call(
        self, requests: Sequence[Request], accept: tuple[int, ...] = (), *, again: bool = True, prefix_bytes: int = 0
    ) -> list[Frame]:
        """Send requests, each to the node that has its vbucket, and return their replies in the same order.

        again: also after a connection has ended, or for a status that another try may mend. What a node does not have
        is sent again anyhow, but only that. prefix_bytes: of the keys, what is no part of them in messages.
        Raises the StatusError of a status that is neither SUCCESS nor in `accept`.
        """
        found: list[Frame | None] = [None] * len(requests)

        async def attempt() -> list[Frame]:
            left = [at for at, frame in enumerate(found) if frame is None]
            sent = requests if len(left) == len(requests) else [requests[at] for at in left]
            parts = await (self._nodes.parts(sent) if again else self._nodes.retrying(lambda: self._nodes.parts(sent)))
            frames = await self._nodes.exchange(parts, sent)
            self.tokens.remember(sent, frames)
            bad = [at for at, frame in enumerate(frames) if frame.specific and frame.specific not in accept]
            if sent is requests and not bad:
                return frames
            for at, frame in zip(left, frames, strict=True):
                found[at] = frame
            # Of several errors the one that is sure to be mended is raised last.
            bad.sort(key=lambda at: frames[at].specific == Status.NOT_MY_VBUCKET)
            for at in bad:
                found[left[at]] = None
            if bad:
                refused = refusal(sent[bad[0]], frames[bad[0]], prefix_bytes)
                if isinstance(refused, NotMyVbucket):
                    self._nodes.map_is_old()
                raise refused
            return [frame for frame in found if frame is not None]

        if again:
            return await self._nodes.retrying(attempt)
        return await self._nodes.retrying(attempt, only=(NotMyVbucket,))

    async def flush(self) -> None:
        """Request that every node removes all documents."""
        for _, link in await self._nodes.retrying(self._nodes.every):
            await link.request(Flush(), self._address.options.operation_timeout)
