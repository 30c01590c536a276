"""Events of OpenLineage about the run of one source, as plain data. Source: openlineage.io/spec, OpenLineage 2-0-2."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from penstock.client.connect.address import Address
from penstock.client.feeds.collection_selection import CollectionSelection
from penstock.spark.lake.current.typed_table import DIRECTORY
from penstock.spark.lake.current.typed_table import KIND as TABLE
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.schemas import CHANGELOG_SCHEMA, CURRENT_COLUMNS
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.state.run_progress import SourceProgress
from penstock.version import __version__
from penstock.wire.columns.collection_names import DEFAULT_NAME
from penstock.wire.columns.schema import CHANGE_SCHEMA

PRODUCER = f"urn:penstock:{__version__}"
_SPEC = "https://openlineage.io/spec"
_EVENT_SCHEMA = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS = {
    "SchemaDatasetFacet": "1-2-0",
    "OutputStatisticsOutputDatasetFacet": "1-0-2",
    "ErrorMessageRunFacet": "1-0-1",
    "JobTypeJobFacet": "2-0-4",
}
"""The facets that events have, and their versions."""


class RunEventType(StrEnum):
    """The transitions of a run."""

    START = "START"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"


@dataclass(frozen=True, slots=True)
class LineageJob:
    """The job of one source: its names, and the datasets that it reads and writes.

    Attributes:
        namespace: the namespace of the job.
        name: its name, unique there.
        is_batch: True if the run ends by itself.
        inputs: the input datasets.
        outputs: the output datasets by the names of tables and dependents.
        tables: the place of inferred tables, which the progress of a run names.
    """

    namespace: str
    name: str
    is_batch: bool
    inputs: tuple[Mapping[str, Any], ...]
    outputs: Mapping[str, Mapping[str, Any]]
    tables: str

    def make_event(
        self, run_id: str, event_type: RunEventType, progress: SourceProgress | None = None, error: str | None = None
    ) -> dict[str, Any]:
        """Return an event.

        Args:
            run_id: the id of the run.
            event_type: the transition.
            progress: the newest progress, for the statistics of the outputs.
            error: the error that ended the run.
        """
        facets = {}
        if error is not None:
            facets["errorMessage"] = _make_facet("ErrorMessageRunFacet", message=error, programmingLanguage="PYTHON")
        job_type = _make_facet(
            "JobTypeJobFacet",
            processingType="BATCH" if self.is_batch else "STREAMING",
            integration="PENSTOCK",
            jobType="PIPELINE",
        )
        return {
            "eventType": str(event_type),
            "eventTime": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "run": {"runId": run_id, "facets": facets},
            "job": {"namespace": self.namespace, "name": self.name, "facets": {"jobType": job_type}},
            "inputs": list(self.inputs),
            "outputs": [*_add_statistics({**self.outputs, **self._list_inferred(progress)}, progress)],
            "producer": PRODUCER,
            "schemaURL": _EVENT_SCHEMA,
        }

    def _list_inferred(self, progress: SourceProgress | None) -> dict[str, Mapping[str, Any]]:
        """Return the datasets of tables that the run has, and the file does not declare."""
        names = [each.name for each in progress.dependents if each.kind == TABLE] if progress is not None else []
        return {
            name: _make_dataset(*_split_place(f"{self.tables}/{name}")) for name in names if name not in self.outputs
        }


def describe_job(
    definition: PipelineDefinition,
    source: SourceDefinition,
    lake: LakeDirectory,
    *,
    namespace: str,
    job: str | None,
    is_batch: bool,
) -> LineageJob:
    """Return the job of a source.

    Args:
        definition: the pipeline.
        source: the source.
        lake: its lake.
        namespace: the namespace of the job.
        job: the name of the pipeline; None for the last part of the lake's place.
        is_batch: True if the run ends by itself.
    """
    options = source.parse_options()
    names = [job or definition.lake.rstrip("/").rpartition("/")[2], *([source.name] if source.name else [])]
    outputs = {"changelog": _make_dataset(*_split_place(str(lake.changelog_table.path)), CHANGELOG_SCHEMA)}
    if definition.tables.current:
        outputs["current"] = _make_dataset(*_split_place(str(lake.current_table.path)), CURRENT_COLUMNS)
    for each in definition.list_dependents(source):
        outputs[each.name] = _make_dataset(*(each.find_dataset() or _split_place(each.locate(lake))))
    inputs = tuple(_list_inputs(options.place, options.selection))
    return LineageJob(namespace, ".".join(names), is_batch, inputs, outputs, str(lake.path / DIRECTORY))


def generate_run_id() -> str:
    """Return a UUID of version 7: ids of later runs are greater."""
    fields = (time.time_ns() // 10**6) << 80 | int.from_bytes(os.urandom(10))
    return str(uuid.UUID(int=fields & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62))


def _list_inputs(address: Address, selection: CollectionSelection | None) -> Iterable[dict[str, Any]]:
    selection = selection or CollectionSelection()
    scope = selection.scope or DEFAULT_NAME
    parts = [name if "." in name else f"{scope}.{name}" for name in selection.collections]
    namespace = str(address).rpartition("/")[0]
    for part in parts or ([selection.scope] if selection.scope else [""]):
        yield _make_dataset(namespace, f"{address.bucket}.{part}".rstrip("."), CHANGE_SCHEMA)


def _split_place(place: str) -> tuple[str, str]:
    """Return namespace and name of a dataset, as OpenLineage names files, buckets of object stores, and servers."""
    if "://" not in place:
        return "file", place
    parts = urlsplit(place)
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/") or "/"


def _make_dataset(namespace: str, name: str, schema: pa.Schema | None = None) -> dict[str, Any]:
    facets = {}
    if schema is not None:
        fields = [{"name": each.name, "type": str(each.type)} for each in schema]
        facets["schema"] = _make_facet("SchemaDatasetFacet", fields=fields)
    return {"namespace": namespace, "name": name, "facets": facets}


def _add_statistics(
    outputs: Mapping[str, Mapping[str, Any]], progress: SourceProgress | None
) -> Iterable[Mapping[str, Any]]:
    """Yield the outputs with their rows: those of a table, and those sent to other systems by this run so far."""
    counts: dict[str, dict[str, int]] = {}
    if progress is not None:
        counts = {
            each.name: {"rowCount": each.applied_rows if each.rows is None else each.rows}
            for each in progress.dependents
        }
        counts["changelog"] = {"rowCount": progress.rows, "size": progress.bytes}
    for name, dataset in outputs.items():
        facets = {}
        if name in counts:
            facets["outputStatistics"] = _make_facet("OutputStatisticsOutputDatasetFacet", **counts[name])
        yield {**dataset, "outputFacets": facets}


def _make_facet(name: str, **content: Any) -> dict[str, Any]:
    place = f"{_SPEC}/facets/{_FACETS[name]}/{name}.json#/$defs/{name}"
    return {"_producer": PRODUCER, "_schemaURL": place, **content}
