"""The JSON of the commands of `penstock pipeline`."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from penstock.cli.outputs.bucket_outputs import ChangeLine


class RollbackLine(TypedDict):
    """A rollback in the changelog, as a run reports it.

    Attributes:
        at: seconds since the epoch.
        vbuckets: the vbuckets that were rolled back.
    """

    at: float
    vbuckets: list[int]


class DependentLine(TypedDict):
    """The progress of the current table or of one dependent.

    Attributes:
        kind: current, or the kind of the dependent.
        version: version of the changelog that was applied; -1 for none.
        pending: rows of the changelog that were not applied yet.
        rows: rows of its table, such as the documents of current; null without a table in the lake.
        applied_rows: rows of the changelog that this run has applied.
        merges: number of times that this run has applied rows.
        merge_seconds: seconds that this run has spent on it.
        error: reason why the last attempt failed; null if it succeeded.
        failures: failed attempts in a row.
        rest: rows of a typed table with values that no column has, without keys of documents: its first 20 fields, and
            the others together as *. null for all others, and before the first commit.
    """

    kind: str
    version: int
    pending: int
    rows: int | None
    applied_rows: int
    merges: int
    merge_seconds: float
    error: str | None
    failures: int
    rest: TableRest | None


class RangeLag(TypedDict):
    """The lag of some vbuckets together.

    Attributes:
        first: the first vbucket.
        last: the last vbucket.
        seqnos: seqnos that the changelog lacks.
    """

    first: int
    last: int
    seqnos: int


class NewestBatch(TypedDict):
    """The newest micro-batch of a query.

    Attributes:
        batch: its number.
        seconds: its duration.
        rows: rows of the newest commit of the changelog.
    """

    batch: int
    seconds: float
    rows: int


class RunLine(TypedDict):
    """The progress of one source of a run. A line is printed when it changes.

    Attributes:
        source: name of the source; null without a file.
        rows: rows that this run has written.
        bytes: size of their files.
        changelog_rows: all rows of the changelog.
        lag: seqnos that the changelog lacks; null if the node does not answer.
        batches: micro-batches so far.
        version: version of the changelog.
        rows_per_second: rate since the line before.
        bytes_per_second: likewise, bytes.
        rollbacks: vbuckets that were rolled back, counted each time.
        last_rollback: the newest rollback in the changelog.
        schema_changes: fields of values that the schema lacks.
        missing_vbuckets: vbuckets that no node serves.
        lag_ranges: the lag by ranges of vbuckets.
        last_batch: the newest micro-batch; null before the first one.
        merged: version of the changelog that is merged into current; -1 for none.
        dependents: name -> progress, of current and of the dependents.
    """

    source: str | None
    rows: int
    bytes: int
    changelog_rows: int
    lag: int | None
    batches: int
    version: int
    rows_per_second: float
    bytes_per_second: float
    rollbacks: int
    last_rollback: RollbackLine | None
    schema_changes: list[str]
    missing_vbuckets: list[int]
    lag_ranges: list[RangeLag]
    last_batch: NewestBatch | None
    merged: int
    dependents: dict[str, DependentLine]


class DraftTableLine(TypedDict):
    """A typed table in a new file.

    Attributes:
        collection: the collection, as name or scope.name.
        name: name of the table.
        sampled: number of documents that the types follow from.
        documents: number of documents of the collection; null if the nodes do not report it.
        fields: number of fields in its schema.
        doubts: sentences about fields whose types may need a change.
    """

    collection: str
    name: str
    sampled: int
    documents: int | None
    fields: int
    doubts: list[str]


class NewPipelineFile(TypedDict):
    """A pipeline's file that was written.

    Attributes:
        file: the file.
        tables: its typed tables.
        denied: collections that the user sees, and may not read.
    """

    file: str
    tables: list[DraftTableLine]
    denied: list[str]


class ValidFile(TypedDict):
    """A pipeline's file without errors.

    Attributes:
        file: the file.
        valid: true; an invalid file is an error.
        lake: directory of the tables.
        format: format of the tables.
        sources: names of the sources.
        buckets: with --connect, a sentence about each bucket.
    """

    file: str
    valid: bool
    lake: str
    format: str
    sources: list[str]
    buckets: list[str]


class TableBytes(TypedDict):
    """The size of a table.

    Attributes:
        rows: number of rows; null if unknown.
        bytes: bytes on disk.
        files: number of files.
    """

    rows: int | None
    bytes: int
    files: int


class FieldMisfit(TypedDict):
    """A field with values in _rest.

    Attributes:
        field: names with points between them, and [] for the elements of an array. Empty for whole documents, * for
            further unknown fields together.
        reason: other type, not held exactly, text of another form, repeated name, no JSON object, or unknown field.
        found: the JSON types of the first values: text, number, boolean, object, array, null, or "no object".
        expected: the type of the column; null for an unknown field and a whole document.
        values: number of values.
        keys: keys of some documents with such a value, with escapes for unprintable characters.
    """

    field: str
    reason: str
    found: str
    expected: str | None
    values: int
    keys: list[str]


class TableRest(TypedDict):
    """The rows of a typed table with values that no column has.

    Attributes:
        rows: number of these rows.
        examined: number of rows whose _rest was examined; fewer only if another program wrote files of the table.
        misfits: the misfits in these: values that do not fit their column before unknown fields, the most frequent
            first.
    """

    rows: int
    examined: int
    misfits: list[FieldMisfit]


class DependentState(TypedDict):
    """The current table or one dependent.

    Attributes:
        name: its name.
        kind: current, or the kind of the dependent.
        version: version of the changelog that was applied; -1 for none.
        pending: rows of the changelog that were not applied yet.
        error: reason why the last attempt failed; null if it succeeded.
        size: its size; null if it lies elsewhere.
        rest: rows of a typed table with values that no column has; null for all others.
        sample: number of documents from which the columns were inferred; null for declared columns.
    """

    name: str
    kind: str
    version: int
    pending: int
    error: str | None
    size: TableBytes | None
    rest: TableRest | None
    sample: int | None


class DatedRollback(TypedDict):
    """A rollback in the changelog.

    Attributes:
        at: time in ISO 8601.
        vbuckets: the vbuckets that were rolled back.
    """

    at: str
    vbuckets: list[int]


class UndeclaredDependent(TypedDict):
    """A dependent that has files, and is no longer declared.

    Attributes:
        name: its name.
        kind: its kind.
    """

    name: str
    kind: str


class LakeState(TypedDict):
    """The tables of one source, and their newest run.

    Attributes:
        lake: directory of the tables.
        source: name of the source; null without a file.
        state: new: no run yet; stopping: only its Java process still runs.
        pid: process of the run.
        since: start of the run in ISO 8601.
        until: last report of the run in ISO 8601.
        error: the error that ended the run.
        lag: seqnos that the changelog lacks, as the run reported last.
        rows_per_second: rate that the run reported last.
        bytes_per_second: likewise, bytes.
        lag_ranges: the lag by ranges of vbuckets, as the run reported it last.
        last_batch: the newest micro-batch; null before the first one.
        missing_vbuckets: vbuckets that no node serves, as the run reported them last.
        version: version of the changelog.
        format: format of the tables.
        changelog: size of the changelog; null before the first batch.
        dependents: the current table and the dependents.
        last_rollback: the newest rollback.
        schema_changes: fields of values that the schema lacks.
        left_out: why collections have no inferred table, null if all have one.
        removed: dependents that have files, and are no longer declared.
        paused: whether the file pauses the source.
        declared: false for a source that the file no longer declares.
        pages: addresses of the pages metrics and dashboard, by name, without tokens; empty after the run.
    """

    lake: str
    source: str | None
    state: Literal["new", "running", "stopping", "ended", "killed"]
    pid: int | None
    since: str | None
    until: str | None
    error: str | None
    lag: int | None
    rows_per_second: float
    bytes_per_second: float
    lag_ranges: list[RangeLag]
    last_batch: NewestBatch | None
    missing_vbuckets: list[int]
    version: int
    format: str
    changelog: TableBytes | None
    dependents: list[DependentState]
    last_rollback: DatedRollback | None
    schema_changes: list[str]
    left_out: str | None
    removed: list[UndeclaredDependent]
    paused: bool
    declared: bool
    pages: dict[str, str]


class StoppedLake(LakeState):
    """The tables of one source after penstock pipeline stop.

    Attributes:
        was_running: whether a run wrote the tables before.
    """

    was_running: bool


class PartLine(TypedDict):
    """A table or a dependent in a plan.

    Attributes:
        name: its name.
        kind: its format or its kind.
        place: a directory, a file or an address.
        description: a description in a few words.
        is_new: whether it does not exist yet.
        changes: differences between an existing table and its declaration, which penstock pipeline retype removes.
    """

    name: str
    kind: str
    place: str
    description: str
    is_new: bool
    changes: list[str]


class PageLine(TypedDict):
    """A page that a run will serve.

    Attributes:
        name: its table in the file.
        host: the address to listen on.
        port: the port; 0: any free port.
        path: its path.
        access: login, the token in the address that the run prints, or open for no login.
    """

    name: Literal["metrics", "dashboard"]
    host: str
    port: int
    path: str
    access: Literal["login", "token", "open"]


class PlanLine(TypedDict):
    """The plan for one source.

    Attributes:
        name: name of the source.
        bucket: connection string of the bucket.
        filters: options that decide which rows the tables have.
        settings: other options that are given.
        parts: tables and dependents.
        lag: seqnos that the tables lack; null if the bucket does not answer or was not asked.
        unreachable: reason why the bucket does not answer; otherwise null.
        refusal: error with which a run would end; otherwise null.
        warnings: errors of other systems, which a run reports and tries again.
        unchecked: the checks that were not made, with the reason.
        bucket_uuid: uuid of the bucket; empty if it is unknown.
        former_name: name that the tables have, if the source was renamed since the last run.
        lake: the state of the tables.
        pages: pages that the run will serve; the same for each source, because a run has one process.
    """

    name: str | None
    bucket: str
    filters: dict[str, str]
    settings: dict[str, str]
    parts: list[PartLine]
    lag: int | None
    unreachable: str | None
    refusal: str | None
    warnings: list[str]
    unchecked: list[str]
    bucket_uuid: str
    former_name: str | None
    lake: LakeState
    pages: list[PageLine]


class RemovedSource(TypedDict):
    """A source that the file no longer declares, and whose tables exist.

    Attributes:
        name: its name; null for tables that a run without a file made.
        lake: the state of the tables.
    """

    name: str | None
    lake: LakeState


class ResetPath(TypedDict):
    """A file or directory of a reset.

    Attributes:
        path: its path.
        removed: whether it was removed: with --yes.
    """

    path: str
    removed: bool


class TableRow(ChangeLine, total=False):
    """A row of a table. Columns without a value are left out.

    Attributes:
        key_bytes_base64: the key of a document of current that is not UTF-8.
        vbucket_range: partition of the row.
    """

    key_bytes_base64: str
    vbucket_range: int


class ResnapshotSummary(TypedDict):
    """The result of a resnapshot.

    Attributes:
        vbuckets: the vbuckets to read again.
        done: whether a run has read them.
    """

    vbuckets: list[int]
    done: bool


class FoundEntry(TypedDict):
    """A document that an index has found. Columns without a value are left out.

    Attributes:
        key: the key.
        key_bytes_base64: the key if it is not UTF-8.
        vbucket: number of the vbucket.
        collection_id: id of the collection.
        scope: name of the scope.
        collection: name of the collection.
        seqno: seqno of the version.
        history: number of rollbacks of the vbucket before the version.
        value: find: the indexed value; a time is text in ISO 8601.
        score: search: higher is better.
        snippet: search: part of the text, with the found words in brackets.
    """

    key: NotRequired[str]
    key_bytes_base64: NotRequired[str]
    vbucket: int
    collection_id: NotRequired[int]
    scope: NotRequired[str]
    collection: NotRequired[str]
    seqno: int
    history: int
    value: NotRequired[str | float | bool]
    score: NotRequired[float]
    snippet: NotRequired[str]
