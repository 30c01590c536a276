"""The state of a bucket before a run, as sources and sinks ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, TypeVar

from penstock.client.blocking import LoopThread
from penstock.client.bucket import Bucket
from penstock.client.bucket_identity import BucketIdentity, read_identity
from penstock.client.connect.address import Address
from penstock.client.feeds.collection_selection import (
    DEFAULT_COLLECTIONS,
    CollectionFilter,
    CollectionSelection,
    parse_manifest,
)
from penstock.client.streams.dialect_check import check_dialect
from penstock.errors import AccessDenied, Error, KeyNotFound, UnsupportedServer, UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BucketState:
    """The answer of a bucket.

    Attributes:
        vbuckets: its number of vbuckets.
        identity: for the comparison with the bucket at another address.
        high_seqnos: vbucket -> its high seqno.
    """

    vbuckets: int
    identity: BucketIdentity
    high_seqnos: Mapping[int, int] = field(default_factory=dict, hash=False)


class BucketAnswers:
    """Asks buckets before a run, each source once. Its methods may be called by several threads.

    Args:
        loop: the event loop of the connections.
        patience: greatest number of seconds to wait for a bucket; None: as long as its options say.
    """

    def __init__(self, loop: LoopThread, patience: float | None = None) -> None:
        self._loop = loop
        self._patience = patience
        self._states: dict[Address, Future[BucketState]] = {}
        self._lock = Lock()

    def ask_source(self, address: Address) -> BucketState:
        """Return the state of a bucket that is read. Raises the errors of `check_dialect`."""
        with self._lock:
            known = self._states.get(address)
            answer = self._states[address] = known or Future()
        if known is None:
            try:
                answer.set_result(self._run(_read_source_state(self._limit(address)), address))
            except BaseException as error:  # noqa: BLE001 - raised for each caller that waits for the answer
                answer.set_exception(error)
        return answer.result()

    def find_answer(self, place: Address) -> BucketState | Error | None:
        """Return the state of a bucket that was asked, or the error; None if it was not asked.

        Args:
            place: its address without a login.
        """
        answers = [answer for address, answer in self._states.items() if replace(address, credentials=None) == place]
        if not answers:
            return None
        error = answers[0].exception()
        return answers[0].result() if error is None else error if isinstance(error, Error) else None

    def open_stream(self, address: Address, vbucket: int) -> None:
        """Open a change stream at its end. A node refuses it for a scope or collection that does not exist."""
        self._run(_open_empty_stream(self._limit(address), vbucket), address)

    def check_collection(self, address: Address, scope: str, collection: str) -> None:
        """Check that a bucket has a collection. Raises NoSuchCollection if it lacks the collection."""
        self._run(_check_names(self._limit(address), CollectionSelection(scope, (collection,))), address)

    def ask_target(self, address: Address, scope: str | None, collection: str | None, rule: str | None) -> BucketState:
        """Return the state of a bucket that is written, and check that it can take the changes.

        Raises UsageError if the bucket lacks the scope or the collection, or has another conflict resolution.

        Args:
            address: the bucket.
            scope: the scope of all documents; None: each document has its own.
            collection: the collection of all documents; None: each document has its own.
            rule: the conflict resolution of the writer; None if it does not compare versions.

        Returns:
            The state.
        """
        return self._run(_check_target(address, scope, collection, rule), address)

    def _limit(self, address: Address) -> Address:
        if self._patience is None:
            return address
        seconds = min(self._patience, address.options.retry_seconds)
        return address.with_retries(seconds)

    def _run(self, work: Coroutine[Any, Any, T], address: Address) -> T:
        """Return the result of requests to a bucket.

        Raises:
            Error: the bucket did not answer within the patience.
        """
        # Twice, because the error of the last attempt is a better reason than the limit.
        seconds = None if self._patience is None else 2 * self._patience
        try:
            return self._loop.run(asyncio.wait_for(work, seconds))
        except TimeoutError:
            raise Error(f"{address} did not answer within {seconds:g} s") from None


async def _read_source_state(address: Address) -> BucketState:
    """Return the state of a bucket that is read. Raises the errors of `check_dialect`."""
    await check_dialect(address, address.options.protocol)
    async with Bucket(address) as bucket:
        seqnos = await bucket.high_seqnos()
        return BucketState(bucket.vbuckets, await read_identity(bucket), seqnos)


async def _open_empty_stream(address: Address, vbucket: int) -> None:
    """Open a change stream at its end. A node refuses it for a scope or collection that does not exist."""
    async with Bucket(address) as bucket:
        async for _ in bucket.batches("now", "now", [vbucket]):
            pass


async def _check_names(address: Address, selection: CollectionSelection) -> None:
    """Check that a bucket has the selected scope and collections, as `CollectionSelection.check_names` does."""
    async with Bucket(address) as bucket:
        manifests = await bucket.node_reports.manifests()
        known = max(map(parse_manifest, manifests), key=lambda each: each.uid, default=None)
        selection.check_names(known or DEFAULT_COLLECTIONS)


async def _check_target(address: Address, scope: str | None, collection: str | None, rule: str | None) -> BucketState:
    """Return the state of a bucket that is written, see `ask_target`.

    Raises:
        UsageError: its conflict resolution differs.
    """
    # One attempt: a node that is away is no reason to wait, because changes are sent again.
    async with Bucket(address.with_retries(0.0)) as bucket:
        if scope is not None or collection is not None:
            manifests = await bucket.node_reports.manifests()
            known = max(map(parse_manifest, manifests), key=lambda each: each.uid, default=None)
            names = () if collection is None else (collection,)
            CollectionFilter(CollectionSelection(scope or "", names)).resolve_names(known)
        found = rule if rule is None else await _find_conflict_resolution(bucket)
        if found not in (None, rule):
            raise UsageError(
                f"conflict_resolution is {rule!r}, and that of {address} is {found!r}: their versions cannot be"
                " compared; expected the same"
            )
        return BucketState(bucket.vbuckets, await read_identity(bucket))


async def _find_conflict_resolution(bucket: Bucket) -> str | None:
    """Return the conflict resolution of a bucket, None if its server does not report it."""
    try:
        return (await bucket.stats("config")).get("ep_conflict_resolution_type")
    except (AccessDenied, KeyNotFound, UnsupportedServer):
        return None
