"""A workload that changes a bucket's documents at a steady rate, for `penstock workload` and `penstock demo`."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from penstock.cli.base.json_lines import encode_compact_json
from penstock.cli.bucket.samples import make_sample
from penstock.errors import ConnectionClosed, Error, NotSupported, UnknownCommand, UnsupportedServer, UsageError
from penstock.wire.codec.constants import Dialect
from penstock.wire.values.json_value import read_members

if TYPE_CHECKING:
    from penstock.client.bucket import Bucket

ChangeKind = Literal["update", "delete", "insert"]

logger = logging.getLogger("penstock.cli")

_TICK_SECONDS = 0.05
"""Seconds between two batches of changes."""

_MAX_BATCH = 2048
_REVISION = '"revision"'


class ChangeMix(NamedTuple):
    """The ratio of updates, deletes and inserts."""

    update: int = 8
    delete: int = 1
    insert: int = 1

    @classmethod
    def parse(cls, text: str) -> ChangeMix:
        """Return the mix in a text `update:delete:insert`. Raises UsageError if the text is invalid or all are 0."""
        match = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9}):([0-9]{1,9})", text)
        mix = cls(*map(int, match.groups())) if match else cls(0, 0, 0)
        if not sum(mix):
            raise UsageError(f"mix is {text!r}, expected update:delete:insert, such as 8:1:1")
        return mix

    def generate_kinds(self) -> Iterator[ChangeKind]:
        """Yield kinds without end, evenly interleaved (smooth weighted round-robin)."""
        weights: dict[ChangeKind, int] = {"update": self.update, "delete": self.delete, "insert": self.insert}
        credit = dict(weights)
        while True:
            kind = max(credit, key=credit.__getitem__)
            yield kind
            for other, weight in weights.items():
                credit[other] += weight
            credit[kind] -= sum(self)


@dataclass
class WorkloadTally:
    """The number of changes that a workload has made.

    Attributes:
        seconds: the time that the changes took.
    """

    updates: int = 0
    deletes: int = 0
    inserts: int = 0
    seconds: float = 0.0

    @property
    def changes(self) -> int:
        """The number of changes of all kinds."""
        return self.updates + self.deletes + self.inserts

    @property
    def rate(self) -> float:
        """Changes per second."""
        return self.changes / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return (
            f"{self.changes} changes ({self.updates} updates, {self.deletes} deletes, {self.inserts} inserts)"
            f" in {self.seconds:.1f} s, {self.rate:,.0f}/s"
        )


async def read_live_keys(bucket: Bucket) -> list[bytes]:
    """Return the keys of a bucket's current documents, read from its changes.

    If the server does not have the dialect of the connection string, the keys are read by TAP. If it has no change
    streams at all, a warning is logged and the list is empty.
    """
    for protocol in dict.fromkeys((bucket.address.options.protocol, Dialect.TAP)):
        try:
            return await _read_streamed_keys(bucket, protocol)
        except (UnsupportedServer, UnknownCommand, NotSupported):
            continue
    logger.warning("%s has no change streams: keys of its documents are unknown, only new ones change", bucket.address)
    return []


async def _read_streamed_keys(bucket: Bucket, protocol: Dialect) -> list[bytes]:
    from penstock.wire.columns.schema import Event

    keys: dict[bytes, None] = {}
    async with aclosing(bucket.batches("beginning", "now", protocol=protocol, collections=["_default"])) as batches:
        async for batch in batches:
            for event, key in zip(batch["event"].to_pylist(), batch["key"].to_pylist(), strict=True):
                if event == Event.MUTATION:
                    keys[key] = None
                else:
                    keys.pop(key, None)
    return list(keys)


class Workload:
    """Updates, deletes and inserts documents of a bucket.

    Every document is changed once, in random order, before any document is changed again. An update increments the
    field `revision` of a JSON object; any other document is replaced by a sample document.

    Attributes:
        tally: the changes made so far.
    """

    def __init__(
        self, bucket: Bucket, keys: Iterable[bytes], *, mix: ChangeMix, rate: float, seed: int | None = None
    ) -> None:
        self.tally = WorkloadTally()
        self._bucket = bucket
        self._random = random.Random(seed)
        self._kinds = mix.generate_kinds()
        self._can_insert = bool(mix.insert)
        self._rate = rate
        self._remaining: list[bytes] = []
        self._changed = list(keys)
        self._known = set(self._changed)
        self._numbers = itertools.count(len(self._changed))
        if not self._changed and not self._can_insert:
            raise Error(f"{bucket.address} has no documents to change; load some, or let the mix insert")

    async def run(
        self,
        stop: asyncio.Event,
        *,
        changes: int | None = None,
        seconds: float | None = None,
        report: Callable[[WorkloadTally], None] = lambda tally: None,
    ) -> WorkloadTally:
        """Change documents until `stop` is set, a limit is reached, or all documents are deleted.

        The n-th change is due n / rate seconds after the start, also if earlier changes were late. Errors of Bucket
        are raised.

        Args:
            stop: ends the workload after the current batch.
            changes: the largest number of changes; None: no limit.
            seconds: the longest time; None: no limit.
            report: called with the tally after each batch.

        Returns:
            The final tally.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        while not stop.is_set():
            elapsed = loop.time() - started
            count = self._count_due(elapsed if seconds is None else min(elapsed, seconds), changes) - self.tally.changes
            if count > 0:
                going_on = await self._change_documents(min(count, _MAX_BATCH))
                self.tally.seconds = round(loop.time() - started, 3)
                report(self.tally)
                if not going_on:
                    break
            if self.tally.changes == changes or (seconds is not None and elapsed >= seconds):
                break
            if count <= _MAX_BATCH and self._rate:
                await _wait_for_stop(stop, _TICK_SECONDS)
        self.tally.seconds = round(loop.time() - started, 3)
        return self.tally

    def _count_due(self, elapsed: float, changes: int | None) -> int:
        due = int(elapsed * self._rate) if self._rate else self.tally.changes + _MAX_BATCH
        return due if changes is None else min(due, changes)

    async def _change_documents(self, count: int) -> bool:
        """Make `count` changes at once.

        Returns:
            Whether there is anything left to change.
        """
        kinds = Counter(itertools.islice(self._kinds, count))
        updated = list(self._take_keys(kinds["update"]))
        deleted = list(self._take_keys(kinds["delete"]))
        missing = count - kinds["insert"] - len(updated) - len(deleted)
        inserted = dict(self._make_document() for _ in range(kinds["insert"] + (missing if self._can_insert else 0)))
        await self._update_documents(updated)
        await self._delete_documents(deleted)
        await self._bucket.upsert_many(inserted.items())
        self.tally.inserts += len(inserted)
        self._changed += [*updated, *inserted]
        self._known.difference_update(deleted)
        return bool(self._can_insert or self._remaining or self._changed)

    def _take_keys(self, count: int) -> Iterator[bytes]:
        for _ in range(count):
            if not self._remaining:
                self._remaining, self._changed = self._changed, []
                self._random.shuffle(self._remaining)
            if not self._remaining:
                return
            yield self._remaining.pop()

    def _make_document(self) -> tuple[bytes, bytes]:
        while True:
            text, document = make_sample(self._random, next(self._numbers))
            key = text.encode()
            if key not in self._known:
                self._known.add(key)
                return key, encode_compact_json(document)

    async def _update_documents(self, keys: list[bytes]) -> None:
        found = await self._bucket.get_many(keys)
        values = [self._increment_revision(document.value if document else b"") for document in found]
        self.tally.updates += len(await self._bucket.upsert_many(zip(keys, values, strict=True)))

    async def _delete_documents(self, keys: list[bytes]) -> None:
        try:
            self.tally.deletes += await self._bucket.remove_many(keys)
        except ConnectionClosed:
            # Some of the requests may have been executed. After the second call, all documents are deleted.
            await self._bucket.remove_many(keys)
            self.tally.deletes += len(keys)

    def _increment_revision(self, value: bytes) -> bytes:
        """Return a document with the next revision. The other fields stay as they are written."""
        members = read_members(value)
        revision = {each.name: each.value for each in members or ()}.get("revision", 0)
        if members is None or not isinstance(revision, int):
            return encode_compact_json(make_sample(self._random, 0)[1])
        written = [f"{each.written_name}:{each.written}" for each in members if each.name != "revision"]
        return f"{{{','.join([*written, f'{_REVISION}:{revision + 1}'])}}}".encode()


async def _wait_for_stop(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
