"""Change a bucket's documents at a steady rate: the workload behind `penstock workload` and `penstock demo`."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from penstock.cli.base.json_lines import compact
from penstock.cli.bucket.samples import sample_document
from penstock.errors import ConnectionClosed, Error, NotSupported, UnknownCommand, UnsupportedServer, UsageError
from penstock.wire.codec.constants import Dialect

if TYPE_CHECKING:
    from penstock.client.bucket import Bucket

__all__ = ["Mix", "Tally", "Workload", "live_keys"]

Kind = Literal["update", "delete", "insert"]

logger = logging.getLogger("penstock.cli")

_TICK = 0.05
"""Seconds between two bunches of changes."""
_MOST_AT_ONCE = 2048


class Mix(NamedTuple):
    """How many changes of each kind there are in every `sum(mix)` of them."""

    update: int = 8
    delete: int = 1
    insert: int = 1

    @classmethod
    def parse(cls, text: str) -> Mix:
        """Read `update:delete:insert`. Raises UsageError."""
        match = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9}):([0-9]{1,9})", text)
        mix = cls(*map(int, match.groups())) if match else cls(0, 0, 0)
        if not sum(mix):
            raise UsageError(f"mix is {text!r}, expected update:delete:insert, such as 8:1:1")
        return mix

    def kinds(self) -> Iterator[Kind]:
        """Give kinds for ever, evenly interleaved (smooth weighted round-robin)."""
        weights: dict[Kind, int] = {"update": self.update, "delete": self.delete, "insert": self.insert}
        credit = dict(weights)
        while True:
            kind = max(credit, key=credit.__getitem__)
            yield kind
            for other, weight in weights.items():
                credit[other] += weight
            credit[kind] -= sum(self)


@dataclass
class Tally:
    """What a workload has done, in `seconds`."""

    updates: int = 0
    deletes: int = 0
    inserts: int = 0
    seconds: float = 0.0

    @property
    def changes(self) -> int:
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


async def live_keys(bucket: Bucket) -> list[bytes]:
    """Return the keys of the documents that a bucket has now, read from its changes.

    A server without the dialect of the connection string is asked by TAP. A server without change streams has no list
    of its keys: then this returns none, with a warning.
    """
    for protocol in dict.fromkeys((bucket.address.options.protocol, Dialect.TAP)):
        try:
            return await _streamed_keys(bucket, protocol)
        except (UnsupportedServer, UnknownCommand, NotSupported):
            continue
    logger.warning("%s has no change streams: keys of its documents are unknown, only new ones change", bucket.address)
    return []


async def _streamed_keys(bucket: Bucket, protocol: Dialect) -> list[bytes]:
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
    """Updates, deletes and inserts on a bucket.

    keys: the documents there are. Each is changed once, in random order, before any is changed again. An update is a
    JSON object's own `revision` counted up; what holds something else gets a sample document.
    rate: changes per second, 0 for as many as the node takes. seed: of all choices.
    Raises Error if there is nothing to change.
    """

    def __init__(
        self, bucket: Bucket, keys: Iterable[bytes], *, mix: Mix, rate: float, seed: int | None = None
    ) -> None:
        self.tally = Tally()
        self._bucket = bucket
        self._chance = random.Random(seed)
        self._kinds = mix.kinds()
        self._can_insert = bool(mix.insert)
        self._rate = rate
        self._turn: list[bytes] = []
        self._rest = list(keys)
        self._known = set(self._rest)
        self._numbers = itertools.count(len(self._rest))
        if not self._rest and not self._can_insert:
            raise Error(f"{bucket.address} has no documents to change; load some, or let the mix insert")

    async def run(
        self,
        stop: asyncio.Event,
        *,
        changes: int | None = None,
        seconds: float | None = None,
        report: Callable[[Tally], None] = lambda tally: None,
    ) -> Tally:
        """Change documents until `stop` is set or a limit is reached, or all documents are deleted.

        The n-th change is due n / rate after the start, however long the ones before it took. report: called after
        each bunch. Raises what `Bucket` does.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        while not stop.is_set():
            elapsed = loop.time() - started
            count = self._due(elapsed if seconds is None else min(elapsed, seconds), changes) - self.tally.changes
            if count > 0:
                going_on = await self._change(min(count, _MOST_AT_ONCE))
                self.tally.seconds = round(loop.time() - started, 3)
                report(self.tally)
                if not going_on:
                    break
            if self.tally.changes == changes or (seconds is not None and elapsed >= seconds):
                break
            if count <= _MOST_AT_ONCE and self._rate:
                await _wait(stop, _TICK)
        self.tally.seconds = round(loop.time() - started, 3)
        return self.tally

    def _due(self, elapsed: float, changes: int | None) -> int:
        due = int(elapsed * self._rate) if self._rate else self.tally.changes + _MOST_AT_ONCE
        return due if changes is None else min(due, changes)

    async def _change(self, count: int) -> bool:
        """Make `count` changes, all at once; return whether there is anything left to change."""
        kinds = Counter(itertools.islice(self._kinds, count))
        updated = list(self._take(kinds["update"]))
        deleted = list(self._take(kinds["delete"]))
        missing = count - kinds["insert"] - len(updated) - len(deleted)
        inserted = dict(self._new() for _ in range(kinds["insert"] + (missing if self._can_insert else 0)))
        await self._update(updated)
        await self._delete(deleted)
        await self._bucket.upsert_many(inserted.items())
        self.tally.inserts += len(inserted)
        self._rest += [*updated, *inserted]
        self._known.difference_update(deleted)
        return bool(self._can_insert or self._turn or self._rest)

    def _take(self, count: int) -> Iterator[bytes]:
        for _ in range(count):
            if not self._turn:
                self._turn, self._rest = self._rest, []
                self._chance.shuffle(self._turn)
            if not self._turn:
                return
            yield self._turn.pop()

    def _new(self) -> tuple[bytes, bytes]:
        while True:
            text, document = sample_document(self._chance, next(self._numbers))
            key = text.encode()
            if key not in self._known:
                self._known.add(key)
                return key, compact(document)

    async def _update(self, keys: list[bytes]) -> None:
        found = await self._bucket.get_many(keys)
        values = [self._revised(document.value if document else b"") for document in found]
        self.tally.updates += len(await self._bucket.upsert_many(zip(keys, values, strict=True)))

    async def _delete(self, keys: list[bytes]) -> None:
        try:
            self.tally.deletes += await self._bucket.remove_many(keys)
        except ConnectionClosed:
            # Which of them were carried out before is not known; afterwards all of them are gone.
            await self._bucket.remove_many(keys)
            self.tally.deletes += len(keys)

    def _revised(self, value: bytes) -> bytes:
        try:
            document = json.loads(value)
            document["revision"] = int(document.get("revision", 0)) + 1
            return compact(document)
        except (ValueError, TypeError, AttributeError, RecursionError):
            return compact(sample_document(self._chance, 0)[1])


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
