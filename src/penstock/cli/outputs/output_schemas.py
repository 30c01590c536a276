"""The JSON Schema of the output of each command."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, is_typeddict

from penstock.cli.outputs import bucket_outputs as bucket
from penstock.cli.outputs import cluster_outputs as cluster
from penstock.cli.outputs import maintenance_outputs as maintenance
from penstock.cli.outputs import node_outputs as node
from penstock.cli.outputs import pipeline_outputs as pipeline
from penstock.client.cluster.cluster_differences import ClusterDifference
from penstock.client.cluster.vbucket_rows import VbucketRow

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class CommandOutput(NamedTuple):
    """The JSON that a command prints.

    Attributes:
        kinds: the types of its lines. A type of several fields is a TypedDict, or the dataclass that is printed.
        is_lines: whether it prints any number of lines, each an object; otherwise exactly one object.
    """

    kinds: tuple[Any, ...]
    is_lines: bool = False


def _one(*kinds: Any) -> CommandOutput:
    return CommandOutput(kinds)


def _lines(*kinds: Any) -> CommandOutput:
    return CommandOutput(kinds, is_lines=True)


OUTPUTS: Mapping[str, CommandOutput] = {
    "serve": _one(node.ServedNode),
    "dashboard": _one(node.ServedDashboard),
    "user add": _one(node.ListedUser),
    "user list": _lines(node.ListedUser),
    "user remove": _one(node.RemovedUser),
    "tls init": _one(node.CertificateFiles),
    "stats": _one(dict[str, str]),
    "streams list": _lines(node.ListedConnection),
    "streams close": _one(node.ClosedConnection),
    "compact": _one(node.CompactedBucket),
    "check": _lines(node.CheckedBucket, node.RepairedBucket, node.RestoredRecord),
    "replicate": _lines(cluster.ReplicationState),
    "move": _lines(cluster.MovedVbucketLine),
    "failover": _one(cluster.FailoverSummary),
    "cluster apply": _lines(ClusterDifference, cluster.ClusterMoveLine),
    "cluster rebalance": _lines(ClusterDifference, cluster.ClusterMoveLine),
    "cluster remove": _lines(cluster.ClusterMoveLine),
    "cluster failover": _lines(cluster.ClusterFailoverLine, cluster.ClusterMoveLine),
    "cluster run": _lines(cluster.ClusterReplicasLine),
    "cluster status": _lines(VbucketRow),
    "xdcr": _lines(cluster.XdcrState),
    "load": _one(bucket.LoadSummary),
    "tail": _lines(bucket.ChangeLine),
    "tail report": _lines(bucket.TailReport, bucket.TailOmissions),
    "dump": _one(bucket.DumpSummary),
    "restore": _one(bucket.RestoreSummary),
    "decode": _lines(bucket.DecodedFrame),
    "workload": _one(bucket.WorkloadSummary),
    "doctor": _one(node.Diagnosis),
    "top": _one(node.TopSample),
    "positions list": _lines(bucket.PositionsSummary),
    "positions show": _one(bucket.StoredPositionsJson),
    "positions members": _lines(bucket.GroupMemberLine),
    "positions move": _one(bucket.PositionsSummary),
    "positions copy": _one(bucket.PositionsSummary),
    "positions reset": _one(bucket.ResetPositions, bucket.PositionsSummary),
    "positions import": _one(bucket.PositionsSummary),
    "pipeline run": _lines(pipeline.RunLine),
    "pipeline init": _one(pipeline.NewPipelineFile),
    "pipeline validate": _one(pipeline.ValidFile),
    "pipeline plan": _lines(pipeline.PlanLine, pipeline.RemovedSource),
    "pipeline status": _lines(pipeline.LakeState),
    "pipeline stop": _lines(pipeline.StoppedLake),
    "pipeline reset": _lines(pipeline.ResetPath),
    "pipeline show": _lines(pipeline.TableRow, dict[str, Any]),
    "pipeline compact": _lines(maintenance.MaintenanceLine),
    "pipeline vacuum": _lines(maintenance.MaintenanceLine),
    "pipeline retain": _lines(maintenance.RetentionLine),
    "pipeline retype": _lines(maintenance.RetypedLine),
    "pipeline erase": _lines(maintenance.ErasureLine),
    "pipeline resnapshot": _one(pipeline.ResnapshotSummary, maintenance.CollectionSnapshotLine),
    "pipeline find": _lines(pipeline.FoundEntry),
    "pipeline search": _lines(pipeline.FoundEntry),
}
"""Command -> its JSON. `tail report` is an object that tail prints on standard error."""


def make_schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of one object that a command prints."""
    from msgspec.json import schema_components

    kinds = OUTPUTS[command].kinds
    references, components = schema_components(kinds)
    for kind in _list_types():
        if kind.__name__ in components:
            _describe(components[kind.__name__], kind)
    schema = dict(references[0]) if len(kinds) == 1 else {"anyOf": list(references)}
    return {"$schema": DIALECT, "title": f"penstock {command}", **schema, "$defs": components}


def _list_types() -> list[Any]:
    """Return the declared types."""
    modules = (node, cluster, bucket, pipeline, maintenance)
    return [*_DATACLASSES, *(each for module in modules for each in vars(module).values() if is_typeddict(each))]


def _describe(schema: dict[str, Any], kind: Any) -> None:
    """Put the docstring of a type, and that of the type which it extends, into its schema."""
    schema["description"] = inspect.cleandoc(kind.__doc__).partition("\n")[0]
    for each in (kind, *([_EXTENDED[kind]] if kind in _EXTENDED else [])):
        attributes = inspect.cleandoc(each.__doc__).partition("Attributes:\n")[2]
        for name, meaning in _ATTRIBUTE.findall(attributes):
            schema["properties"][name]["description"] = meaning


_DATACLASSES = (ClusterDifference, VbucketRow)
"""Dataclasses that are printed as they are."""

_ATTRIBUTE = re.compile(r"^ +(\w+): (.*)$", re.MULTILINE)

_EXTENDED = {
    cluster.ClusterMoveLine: cluster.MovedVbucketLine,
    cluster.ClusterFailoverLine: cluster.FailoverSummary,
    pipeline.StoppedLake: pipeline.LakeState,
    pipeline.TableRow: bucket.ChangeLine,
}
"""Type -> the type that it extends: a TypedDict does not know it before Python 3.12."""
