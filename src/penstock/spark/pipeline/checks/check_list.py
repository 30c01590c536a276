"""The list of checks before a run, as a value: making it neither reads a table nor connects to a host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from penstock.errors import NoSuchCollection, UsageError
from penstock.spark.dependents.bucket_state import BucketState
from penstock.spark.dependents.registry import DependentKind
from penstock.spark.lake.reading.lake_positions import read_planned_end
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.checks.lake_checks import check_bucket, check_lake, check_lock
from penstock.spark.pipeline.checks.run_check import Check, CheckContext, Need, need_login
from penstock.spark.pipeline.checks.sql_checks import check_filter, check_query
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.state.source_lakes import SourceLake
from penstock.spark.pipeline.transform.transform_rows import check_transform
from penstock.spark.source.offsets import check_vbucket_count
from penstock.spark.source.read_positions import LATEST, check_offset_bucket, resolve_position
from penstock.spark.source.source_options import INFERRED, SourceOptions
from penstock.spark.storage.object_path import is_remote_path


def list_checks(definition: PipelineDefinition, places: Sequence[SourceLake]) -> list[Check]:
    """Return the checks of a pipeline in the order of a run: first those that need least.

    A run makes all of them but that of the lock, which it takes. `plan` and `validate` make the same ones, as far as
    they may.

    Args:
        definition: the pipeline.
        places: its sources with their lakes.

    Returns:
        The checks.
    """
    found = [check for place in places for check in _list_source_checks(definition, place)]
    return sorted(found, key=lambda check: check.needs.value.bit_length())


def _list_source_checks(definition: PipelineDefinition, place: SourceLake) -> Iterator[Check]:
    """Yield the checks of one source. Of a paused one, a run uses neither tables nor bucket."""
    source = place.source
    if place.refusal is not None or source.paused:
        yield Check(f"{_name(source)}the place of the tables", source, partial(_refuse_place, place))
        return
    lake, options = definition.open_lake(place.path), source.parse_options()
    lake_needs = Need.NETWORK if _is_remote(definition) else Need.NOTHING
    yield Check(f"{_name(source)}the tables", source, partial(_ask_lake, definition, source, lake), lake_needs)
    yield Check(f"{_name(source)}the lock of the tables", source, partial(_ask_lock, place), lake_needs | Need.LOCK)
    if source.transform is not None:
        yield Check(f"{_name(source)}transform", source, partial(_ask_transform, source), Need.PROGRAMS)
    login = need_login(options.login_runs_program)
    yield Check(f"{_name(source)}the bucket", source, partial(_ask_source, source, options, lake), login)
    if source.where is not None:
        yield Check(f"{_name(source)}where", source, partial(_ask_filter, source, lake), Need.SQL)
    elif source.value_schema == INFERRED:
        yield Check(f"{_name(source)}value_schema", source, partial(_ask_fields, source, lake), login)
    for each in definition.list_dependents(source):
        yield from _list_dependent_checks(source, options, lake, each)


def _list_dependent_checks(
    source: SourceDefinition, options: SourceOptions, lake: LakeDirectory, dependent: DependentKind
) -> Iterator[Check]:
    if (collection := dependent.find_collection()) is not None:
        login = need_login(options.login_runs_program)
        find = partial(_ask_collection, dependent, collection, options, lake)
        yield Check(f"{_name(dependent)}the collection", source, find, login)
    if not dependent.is_local:
        login = need_login(options.login_runs_program or dependent.login_runs_program)
        ask = partial(_ask_target, dependent, options)
        yield Check(f"{_name(dependent)}the target", source, ask, login, is_vital=False)
    if dependent.sql_query is not None:
        yield Check(f"{_name(dependent)}sql", source, partial(_ask_query, dependent, dependent.sql_query), Need.SQL)


def _name(declared: SourceDefinition | DependentKind) -> str:
    """Return the table of the file that declares something, for sentences; empty without a file."""
    if isinstance(declared, DependentKind):
        return f"[[{declared.title}]] {declared.name} "
    return "" if declared.name is None else f"[source.{declared.name}] "


def _is_remote(definition: PipelineDefinition) -> bool:
    catalog = definition.tables.catalog
    return is_remote_path(definition.lake) or (catalog is not None and catalog.startswith("http"))


def _refuse_place(place: SourceLake, context: CheckContext) -> None:
    if place.refusal is not None:
        raise place.refusal


def _ask_lake(
    definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory, context: CheckContext
) -> None:
    check_lake(definition, source, lake)


def _ask_lock(place: SourceLake, context: CheckContext) -> None:
    check_lock(place)


def _ask_transform(source: SourceDefinition, context: CheckContext) -> None:
    """Import the transform, and call it with a batch without rows.

    Raises:
        UsageError: it cannot be used.
    """
    try:
        transform = source.find_transform()
        if transform is not None:
            check_transform(transform)
    except UsageError as error:
        raise UsageError(f"{_name(source)}{error}") from None


def _ask_source(source: SourceDefinition, options: SourceOptions, lake: LakeDirectory, context: CheckContext) -> str:
    """Check that the bucket has the selected parts, and is that of the tables.

    Returns:
        A line about the bucket.

    Raises:
        UsageError: the bucket does not have a selected vbucket.
    """
    state, end = context.buckets.ask_source(options.address), read_planned_end(lake)
    if beyond := [vbucket for vbucket in options.vbuckets or () if vbucket >= state.vbuckets]:
        raise UsageError(f"vbuckets has {beyond[0]}, but {options.place} has vbuckets 0 to {state.vbuckets - 1}")
    check_bucket(source, lake, state.identity.uuid)
    if end is not None:
        check_vbucket_count(end, state.vbuckets)
    elif options.starting_offsets != LATEST:
        start = resolve_position(options.starting_offsets, {}, state.vbuckets)
        check_offset_bucket(start, options.place, state.identity.uuid, state.vbuckets)
    if end is None or end.collection_ids is None:  # later, a run continues without a collection that was dropped
        _ask_stream(options, state, context)
    return f"{options.place}: {state.vbuckets} vbuckets, {sum(state.high_seqnos.values()):,} seqnos"


def _ask_stream(options: SourceOptions, state: BucketState, context: CheckContext) -> None:
    served = sorted({*state.high_seqnos} & {*(options.vbuckets or state.high_seqnos)})
    if served:
        context.buckets.open_stream(options.address, served[0])


def _ask_filter(source: SourceDefinition, lake: LakeDirectory, context: CheckContext) -> None:
    """Find the fields of the values, and check the filter with them.

    Raises:
        UsageError: the filter is no condition on them, or there are no values to infer them from.
    """
    fields = context.find_fields(source, lake)
    assert source.where is not None
    assert context.analyzer is not None
    try:
        check_filter(source.where, fields, context.analyzer)
    except UsageError as error:
        raise UsageError(f"{_name(source)}{error}") from None


def _ask_fields(source: SourceDefinition, lake: LakeDirectory, context: CheckContext) -> None:
    context.find_fields(source, lake)


def _ask_collection(
    dependent: DependentKind,
    collection: tuple[str, str],
    options: SourceOptions,
    lake: LakeDirectory,
    context: CheckContext,
) -> None:
    """Check that the bucket has a collection. Later, a run continues without a collection that was dropped.

    Raises:
        UsageError: the bucket lacks it.
    """
    if dependent.open(lake).position() is not None:
        return
    try:
        context.buckets.check_collection(options.address, *collection)
    except NoSuchCollection as error:
        raise UsageError(f"{_name(dependent)}collection is {'.'.join(collection)!r}, but {error}") from None


def _ask_target(dependent: DependentKind, options: SourceOptions, context: CheckContext) -> str | None:
    return dependent.check_target(options.address, context.buckets)


def _ask_query(dependent: DependentKind, query: str, context: CheckContext) -> None:
    """Check a query and its result.

    Raises:
        UsageError: the dependent cannot use it.
    """
    assert context.analyzer is not None
    try:
        check_query(dependent, query, context.analyzer)
    except UsageError as error:
        raise UsageError(f"{_name(dependent)}{error}") from None
