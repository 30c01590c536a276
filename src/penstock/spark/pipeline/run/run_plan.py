"""The plan of a run: sources, tables, dependents, and the findings of its checks. It writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.client.blocking import LoopThread
from penstock.errors import Error, UsageError
from penstock.spark.dependents.bucket_state import BucketAnswers
from penstock.spark.lake.changelog.found_collections import read_collections
from penstock.spark.lake.current.typed_table import DIRECTORY
from penstock.spark.lake.current.typed_table import KIND as TABLE
from penstock.spark.lake.reading.lake_positions import read_position
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.checks.check_list import list_checks
from penstock.spark.pipeline.checks.run_check import Check, CheckContext, CheckFinding, Need, walk_checks
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.state.kept_tables import list_kept
from penstock.spark.pipeline.state.lag import compute_lag
from penstock.spark.pipeline.state.lake_status import LakeStatus
from penstock.spark.pipeline.state.source_lakes import SourceLake, assign_lakes, find_source_lakes
from penstock.spark.pipeline.state.source_status import read_source_status
from penstock.spark.runtime.sql_analyzer import SqlAnalyzer, open_analyzer
from penstock.spark.storage.object_path import is_remote_path, parse_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANSWER_SECONDS = 10.0
"""Seconds for which a command that only looks tries to reach a bucket."""

_SETTINGS = ("starting_offsets", "max_changes_per_trigger", "max_bytes_per_trigger", "max_partitions", "protocol")
"""Options that a plan shows beside the filters."""


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A table or a dependent in a plan.

    Attributes:
        name: its name.
        kind: its format or its kind.
        place: a directory, a file or an address.
        description: a description in a few words.
        is_new: True if it does not exist yet.
        changes: differences between an existing table and its declaration; `penstock pipeline retype` removes them.
    """

    name: str
    kind: str
    place: str
    description: str = ""
    is_new: bool = True
    changes: tuple[str, ...] = ()


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
        lag: seqnos of the bucket that the tables lack, None if the bucket did not answer or was not asked.
        unreachable: the reason why the bucket did not answer, otherwise None.
        refusal: the error with which a run would end before it reads the bucket, otherwise None.
        warnings: errors of other systems, which a run reports and tries again.
        unchecked: the checks that were not made, with the reason.
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
    warnings: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    bucket_uuid: str = ""
    former_name: str | None = None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of a run.

    Attributes:
        sources: the plan for each source.
        refusal: the error with which the run would end: the first in the order of its checks. None if it would start.
    """

    sources: tuple[PlannedSource, ...]
    refusal: Error | None


def plan_run(definition: PipelineDefinition, *, execute: bool = False, spark: SparkSession | None = None) -> RunPlan:
    """Return the plan of a run, by the checks that the run makes. It connects to the buckets and to other systems.

    Args:
        definition: the pipeline.
        execute: also run the programs that the file names: transforms, commands and providers of secrets.
        spark: the session whose analyzer checks SQL; None to start a Java process for that.

    Returns:
        The plan.

    Raises:
        UsageError: a lake cannot be read.
    """
    places = find_source_lakes(definition).declared
    allowed = Need.NETWORK | Need.LOCK | Need.SQL | (Need.PROGRAMS if execute else Need.NOTHING)
    with _open_context(allowed) as context:
        context.analyzer = None if spark is None else SqlAnalyzer.of_session(spark)
        findings = [*_walk_with_analyzer(list_checks(definition, places), context)]
    refusal = next((each.refusal for each in findings if each.refusal is not None), None)
    try:
        return RunPlan(tuple(_plan_source(definition, place, context, findings) for place in places), refusal)
    except UsageError:  # tables that cannot be read have no status; the refusal is the reason
        if refusal is not None:
            raise refusal from None
        raise


def validate_definition(definition: PipelineDefinition, *, connect: bool, execute: bool) -> list[str]:
    """Make the checks of a run, as far as they are allowed. Raises the first error.

    Args:
        definition: the pipeline.
        connect: connect to the buckets and to other systems too.
        execute: run the programs that the file names too.

    Returns:
        Lines about the answers of other systems.
    """
    allowed = Need.SQL | (Need.NETWORK if connect else Need.NOTHING) | (Need.PROGRAMS if execute else Need.NOTHING)
    if is_remote_path(definition.lake) and not connect:
        places = assign_lakes(parse_place(definition.lake), definition.sources, ()).declared
    else:
        places = find_source_lakes(definition).declared
    checks = [each for each in list_checks(definition, places) if Need.LOCK not in each.needs]
    lines = []
    with _open_context(allowed) as context:
        for finding in _walk_with_analyzer(checks, context):
            if finding.error is not None:
                raise finding.error
            lines += [finding.line] if finding.line is not None else []
    return lines


@contextmanager
def _open_context(allowed: Need) -> Iterator[CheckContext]:
    with LoopThread("penstock-checks") as loop:
        yield CheckContext(BucketAnswers(loop, ANSWER_SECONDS), allowed)


def _walk_with_analyzer(checks: Sequence[Check], context: CheckContext) -> Iterator[CheckFinding]:
    """Walk checks. Spark's analyzer starts only for SQL that a run would reach, because it takes some seconds.

    Yields:
        A finding for each check.
    """
    findings = [*walk_checks([each for each in checks if Need.SQL not in each.needs], context)]
    yield from findings
    written_in_sql = [each for each in checks if Need.SQL in each.needs]
    if written_in_sql and all(each.refusal is None for each in findings):
        with open_analyzer() if context.analyzer is None else nullcontext(context.analyzer) as context.analyzer:
            yield from walk_checks(written_in_sql, context)


def _plan_source(
    definition: PipelineDefinition, place: SourceLake, context: CheckContext, findings: Sequence[CheckFinding]
) -> PlannedSource:
    source, options = place.source, place.source.parse_options()
    lake = LakeDirectory(place.path)  # the tables that are there, in any format
    status = read_source_status(definition, place)
    settings = {name: source.reader_options[name] for name in _SETTINGS if name in source.reader_options}
    mine = [each for each in findings if each.check.source is source]
    answer = context.buckets.find_answer(options.place)
    refusal = next((each.refusal for each in mine if each.refusal is not None), None)
    unreachable = str(answer) if isinstance(answer, Error) else None
    unchecked = [f"{each.check.subject}: {each.missing.describe()}" for each in mine if each.missing]
    if unreachable is not None:
        unchecked.append("collections and vbuckets of the bucket, and whether it is the bucket of the tables")
    state = None if isinstance(answer, Error) else answer
    return PlannedSource(
        source.name,
        str(options.place),
        source.list_content_options(),
        settings | {"trigger_seconds": f"{source.trigger_seconds:g}"},
        tuple(_plan_parts(definition, source, lake, status)),
        status,
        None if state is None else _compute_lag(source, lake, state.high_seqnos),
        unreachable,
        refusal,
        tuple(str(each.error) for each in mine if each.error is not each.refusal and str(each.error) != unreachable),
        tuple(unchecked),
        "" if state is None else state.identity.uuid,
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
    if definition.infers_tables(source):
        place, is_new = str(lake.path / DIRECTORY), not read_collections(lake).position
        parts.append(PlannedPart("tables", TABLE, place, "one for each collection with JSON objects", is_new))
    samples = {each.name: each.describe_sample() for each in status.dependents}
    kept: list[PlannedPart] = []
    for each in list_kept(definition, source, lake):
        is_new, changes = each.name not in known, tuple(each.list_changes(lake))
        text = "; ".join(filter(None, [each.describe(), samples.get(each.name)]))
        kept.append(PlannedPart(each.name, each.kind, each.locate(lake), text, is_new, changes))
    typed = [each for each in kept if each.kind == TABLE]
    if tables.current:
        place = str(lake.current_table.path)
        typed.append(PlannedPart("current", tables.format, place, "all documents as bytes", "current" not in known))
    return [*parts, *typed, *(each for each in kept if each.kind != TABLE)]
