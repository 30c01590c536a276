"""The plan of a run: what it would do, found without Spark and without writing anything."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.client.bucket import Bucket
from penstock.client.connect.address import Address
from penstock.client.streams.dialect_check import check_dialect
from penstock.errors import Error, UsageError
from penstock.spark.lake.reading.lake_positions import position
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import PipelineDefinition, Source
from penstock.spark.pipeline.state.lag import behind
from penstock.spark.pipeline.state.lake_status import LakeStatus, status_of

__all__ = ["PlannedPart", "PlannedSource", "check_buckets", "plan"]

T = TypeVar("T")

SECONDS = 10.0
"""How long a bucket that does not answer is waited for."""

_SETTINGS = ("starting_offsets", "max_changes_per_trigger", "max_bytes_per_trigger", "max_partitions", "protocol")
"""Options that a plan shows beside the filters."""


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A table or a dependent in a plan. place: a directory, a file or an address. begins: it does not exist yet."""

    name: str
    kind: str
    place: str
    says: str = ""
    begins: bool = True


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """What would be done for one source.

    bucket: its address. filters: what does not come at all or comes as deleted. settings: options that were given, by
    their names in the file. status: of the lake as it is. behind: seqnos of the bucket that the tables lack; None where
    the bucket cannot be asked, and `unreachable` says why.
    """

    name: str | None
    bucket: str
    filters: dict[str, str]
    settings: dict[str, str]
    parts: tuple[PlannedPart, ...]
    status: LakeStatus
    behind: int | None = None
    unreachable: str | None = None


def plan(definition: PipelineDefinition) -> list[PlannedSource]:
    """Return what would run. Raises UsageError for a lake that cannot be used."""
    asked = asyncio.run(_ask([source.options().address for source in definition.sources]))
    return [_planned(definition, source, answer) for source, answer in zip(definition.sources, asked, strict=True)]


def _planned(definition: PipelineDefinition, source: Source, answer: dict[int, int] | str) -> PlannedSource:
    lake = LakeDirectory(definition.lake_of(source))
    status = status_of(lake, source.name)
    filters = source.content()
    settings = {name: source.given[name] for name in _SETTINGS if name in source.given}
    return PlannedSource(
        source.name,
        str(source.options().address),
        filters,
        settings | {"trigger_seconds": f"{source.trigger_seconds:g}"},
        tuple(_parts(definition, source, lake, status)),
        status,
        _lag(source, lake, answer) if isinstance(answer, dict) else None,
        answer if isinstance(answer, str) else None,
    )


def _lag(source: Source, lake: LakeDirectory, high_seqnos: Mapping[int, int]) -> int:
    stand = position(lake)
    return behind(stand.offset if stand is not None else None, high_seqnos, source.options().vbuckets)


def _parts(
    definition: PipelineDefinition, source: Source, lake: LakeDirectory, status: LakeStatus
) -> list[PlannedPart]:
    there = {each.name for each in status.kept if each.version >= 0}
    tables = definition.tables
    parts = [
        PlannedPart(
            "changelog", tables.changelog_format, str(lake.changelog_table.path), begins=status.changelog is None
        )
    ]
    if tables.current:
        parts.append(PlannedPart("current", "delta", str(lake.current_table.path), begins="current" not in there))
    for each in definition.dependents_of(source):
        parts.append(PlannedPart(each.name, each.kind, each.place(lake), each.describe(), each.name not in there))
    return parts


async def _ask(addresses: Sequence[Address]) -> list[dict[int, int] | str]:
    """Return each bucket's high seqnos, or a sentence with the reason that it did not answer."""
    return [*await asyncio.gather(*map(_high_seqnos, addresses))]


async def _high_seqnos(address: Address) -> dict[int, int] | str:
    bucket = Bucket(address)
    try:
        await _within(check_dialect(address, address.options.protocol), address)
        return await _within(bucket.high_seqnos(), address)
    except Error as error:
        return str(error)
    finally:
        await bucket.close()


def check_buckets(definition: PipelineDefinition) -> list[str]:
    """Ask the buckets of sources and sinks whether they are there with what is wanted; return a line about each.

    Raises UsageError for what a bucket does not have, Error where it cannot be asked.
    """

    async def ask() -> list[str]:
        lines = [await _checked(source) for source in definition.sources]
        targets = [address for each in definition.dependents if (address := each.bucket_address()) is not None]
        return lines + [await _reached(address) for address in targets]

    return asyncio.run(ask())


async def _checked(source: Source) -> str:
    options = source.options()
    bucket = Bucket(options.address)
    try:
        await _within(check_dialect(options.address, options.dialect), options.address)
        seqnos = await _within(bucket.high_seqnos(), options.address)
        if beyond := [vbucket for vbucket in options.vbuckets or () if vbucket >= bucket.vbuckets]:
            raise UsageError(f"vbuckets has {beyond[0]}, but {options.address} has {bucket.vbuckets}, from 0 on")
        await _within(_open_nothing(bucket), options.address)
        return f"{options.address}: {bucket.vbuckets} vbuckets, {sum(seqnos.values()):,} seqnos"
    finally:
        await bucket.close()


async def _open_nothing(bucket: Bucket) -> None:
    """Open a change stream that is at its end, which a node refuses for a scope or collections that it lacks."""
    async for _ in bucket.batches("now", "now", [0]):
        pass


async def _reached(address: Address) -> str:
    bucket = Bucket(address)
    try:
        await _within(bucket.connect(), address)
        return f"{address}: {bucket.vbuckets} vbuckets, to be written to"
    finally:
        await bucket.close()


async def _within(answer: Coroutine[Any, Any, T], address: Address) -> T:
    try:
        return await asyncio.wait_for(answer, SECONDS)
    except TimeoutError:
        raise Error(f"{address} did not answer within {SECONDS:g} s") from None
