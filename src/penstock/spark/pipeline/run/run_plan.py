"""The plan of a run: sources, tables and dependents, found without Spark and without writing anything."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from penstock.client.bucket import Bucket
from penstock.client.connect.address import Address
from penstock.client.streams.dialect_check import check_dialect
from penstock.errors import Error, UsageError
from penstock.spark.lake.reading.lake_positions import read_position
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.run.lake_checks import check_bucket, find_refusal
from penstock.spark.pipeline.state.lag import compute_lag
from penstock.spark.pipeline.state.lake_status import LakeStatus
from penstock.spark.pipeline.state.source_lakes import SourceLake, find_source_lakes
from penstock.spark.pipeline.state.source_status import read_source_status

__all__ = ["PlannedPart", "PlannedSource", "check_buckets", "plan_run"]

T = TypeVar("T")

ANSWER_SECONDS = 10.0
"""Seconds to wait for a bucket that does not answer."""

_SETTINGS = ("starting_offsets", "max_changes_per_trigger", "max_bytes_per_trigger", "max_partitions", "protocol")
"""Options that a plan shows beside the filters."""


class BucketState(NamedTuple):
    """The answer of a bucket.

    Attributes:
        uuid: its uuid; empty if the server does not report it.
        high_seqnos: the high seqno of each vbucket.
    """

    uuid: str
    high_seqnos: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A table or a dependent in a plan.

    Attributes:
        name: its name.
        kind: its format or its kind.
        place: a directory, a file or an address.
        description: a description in a few words.
        is_new: True if it does not exist yet.
    """

    name: str
    kind: str
    place: str
    description: str = ""
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """The plan for one source.

    Attributes:
        name: the source's name, None for the only source.
        bucket: the bucket's address.
        filters: options that decide which rows the tables have.
        settings: other options that are given, by their names in the file.
        parts: tables and dependents.
        status: the status of the lake.
        lag: seqnos of the bucket that the tables lack, None if the bucket does not answer.
        unreachable: the reason why the bucket does not answer, otherwise None.
        refusal: the error with which a run would end before it reads the bucket, otherwise None.
        bucket_uuid: the uuid of the bucket; empty if it is unknown.
        former_name: the name that the tables still have, if the source was renamed since the last run.
    """

    name: str | None
    bucket: str
    filters: dict[str, str]
    settings: dict[str, str]
    parts: tuple[PlannedPart, ...]
    status: LakeStatus
    lag: int | None = None
    unreachable: str | None = None
    refusal: Error | None = None
    bucket_uuid: str = ""
    former_name: str | None = None


def plan_run(definition: PipelineDefinition) -> list[PlannedSource]:
    """Return the plan for each source. Raises UsageError for a lake that cannot be used."""
    answers = asyncio.run(_request_all_states([source.parse_options().address for source in definition.sources]))
    places = find_source_lakes(definition).declared
    return [_plan_source(definition, place, answer) for place, answer in zip(places, answers, strict=True)]


def _plan_source(definition: PipelineDefinition, place: SourceLake, answer: BucketState | str) -> PlannedSource:
    source = place.source
    lake = LakeDirectory(place.path)  # the tables that are there, in any format
    status = read_source_status(definition, place)
    filters = source.list_content_options()
    uuid = answer.uuid if isinstance(answer, BucketState) else ""
    settings = {name: source.reader_options[name] for name in _SETTINGS if name in source.reader_options}
    return PlannedSource(
        source.name,
        str(source.parse_options().address),
        filters,
        settings | {"trigger_seconds": f"{source.trigger_seconds:g}"},
        tuple(_plan_parts(definition, source, lake, status)),
        status,
        _compute_lag(source, lake, answer.high_seqnos) if isinstance(answer, BucketState) else None,
        answer if isinstance(answer, str) else None,
        find_refusal(definition, place, uuid=uuid, is_running=status.state == "running"),
        uuid,
        place.former_name,
    )


def _compute_lag(source: SourceDefinition, lake: LakeDirectory, high_seqnos: Mapping[int, int]) -> int:
    end = read_position(lake)
    return compute_lag(end.offset if end is not None else None, high_seqnos, source.parse_options().vbuckets)


def _plan_parts(
    definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory, status: LakeStatus
) -> list[PlannedPart]:
    known = {each.name for each in status.dependents if each.version >= 0}
    tables = definition.tables
    parts = [PlannedPart("changelog", tables.format, str(lake.changelog_table.path), is_new=status.changelog is None)]
    if tables.current:
        parts.append(PlannedPart("current", tables.format, str(lake.current_table.path), is_new="current" not in known))
    for each in definition.list_dependents(source):
        parts.append(PlannedPart(each.name, each.kind, each.locate(lake), each.describe(), each.name not in known))
    return parts


async def _request_all_states(addresses: Sequence[Address]) -> list[BucketState | str]:
    """Return the state of each bucket, or a sentence with the reason that it did not answer."""
    # All at once: buckets that do not answer delay the plan by one timeout, not by one each.
    return [*await asyncio.gather(*map(_request_state, addresses))]


async def _request_state(address: Address) -> BucketState | str:
    bucket = Bucket(address)
    try:
        await _await_answer(check_dialect(address, address.options.protocol), address)
        seqnos = await _await_answer(bucket.high_seqnos(), address)
        return BucketState((await bucket.cluster()).uuid, seqnos)
    except Error as error:
        return str(error)
    finally:
        await bucket.close()


def check_buckets(definition: PipelineDefinition) -> list[str]:
    """Check that the buckets of sources and sinks exist and have the requested parts, and return a line about each.

    Raises UsageError for parts that a bucket does not have, LakeRefused for tables of another bucket, and Error for a
    bucket that does not answer.

    Args:
        definition: the pipeline.

    Returns:
        A line for each bucket, sources first.
    """

    async def ask() -> list[str]:
        lines = [
            await _check_source(each.source, definition.open_lake(each.path))
            for each in find_source_lakes(definition).declared
            if not each.source.paused  # its bucket may be away
        ]
        targets = [address for each in definition.dependents if (address := each.find_bucket_address()) is not None]
        return lines + [await _check_target(address) for address in targets]

    return asyncio.run(ask())


async def _check_source(source: SourceDefinition, lake: LakeDirectory) -> str:
    """Return a line about a source's bucket.

    Raises:
        UsageError: the bucket does not have the requested vbuckets.
    """
    options = source.parse_options()
    bucket = Bucket(options.address)
    try:
        await _await_answer(check_dialect(options.address, options.dialect), options.address)
        seqnos = await _await_answer(bucket.high_seqnos(), options.address)
        if beyond := [vbucket for vbucket in options.vbuckets or () if vbucket >= bucket.vbuckets]:
            raise UsageError(f"vbuckets has {beyond[0]}, but {options.address} has vbuckets 0 to {bucket.vbuckets - 1}")
        await _await_answer(_open_empty_stream(bucket), options.address)
        check_bucket(source, lake, (await bucket.cluster()).uuid)
        return f"{options.address}: {bucket.vbuckets} vbuckets, {sum(seqnos.values()):,} seqnos"
    finally:
        await bucket.close()


async def _open_empty_stream(bucket: Bucket) -> None:
    """Open a change stream at its end: a node refuses it for a scope or collection that does not exist."""
    async for _ in bucket.batches("now", "now", [0]):
        pass


async def _check_target(address: Address) -> str:
    """Return a line about a sink's bucket."""
    bucket = Bucket(address)
    try:
        await _await_answer(bucket.connect(), address)
        return f"{address}: {bucket.vbuckets} vbuckets, target of writes"
    finally:
        await bucket.close()


async def _await_answer(answer: Coroutine[Any, Any, T], address: Address) -> T:
    """Return an answer.

    Raises:
        Error: there was no answer within ANSWER_SECONDS.
    """
    try:
        return await asyncio.wait_for(answer, ANSWER_SECONDS)
    except TimeoutError:
        raise Error(f"{address} did not answer within {ANSWER_SECONDS:g} s") from None
