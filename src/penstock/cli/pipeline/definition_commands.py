"""`penstock pipeline validate` and `plan`: what a file says, and what a run of it would do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.base.app import AsJson, examples
from penstock.cli.base.show import json_line
from penstock.cli.pipeline.arguments import PipelineFile
from penstock.cli.pipeline.group import commands

if TYPE_CHECKING:
    from penstock.spark.pipeline.run.run_plan import PlannedSource


@commands.command(
    epilog=examples("penstock pipeline validate pipeline.toml", "penstock pipeline validate pipeline.toml --connect")
)
def validate(
    file: PipelineFile,
    *,
    connect: Annotated[bool, typer.Option("--connect", help="Ask the buckets, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a pipeline's file: every table and key of it, and the files that it names.

    SQL is checked when a run starts. Nothing is written, and Spark is not needed.
    Exit code 2 for what is wrong in the file or missing in a bucket, 1 for a
    bucket that cannot be asked.
    """
    from penstock.spark.pipeline.definition.definition import read_definition
    from penstock.spark.pipeline.run.run_plan import check_buckets

    definition = read_definition(file)
    lines = check_buckets(definition) if connect else []
    if as_json:
        names = [source.name for source in definition.sources]
        print(json_line({"file": file, "valid": True, "lake": definition.lake, "sources": names, "buckets": lines}))
        return
    for line in lines:
        print(line)
    sources = ", ".join(str(source.name) for source in definition.sources)
    kept = len(definition.dependents)
    print(f"{file} is in order: sources {sources}; {kept} kept behind them; the lake is {definition.lake}")


@commands.command(
    epilog=examples("penstock pipeline plan pipeline.toml", "penstock pipeline plan pipeline.toml --json")
)
def plan(file: PipelineFile, *, as_json: AsJson = False) -> None:
    """Show what a run would do, without doing it: sources, filters, tables, what is there, how far that is behind.

    With --json a line is one source.
    """
    from penstock.spark.pipeline.definition.definition import read_definition
    from penstock.spark.pipeline.run.run_plan import plan as planned

    for source in planned(read_definition(file)):
        print(json_line(_as_object(source)) if as_json else _text(source), flush=True)


def _as_object(source: PlannedSource) -> dict[str, Any]:
    said = asdict(source)
    said["lake"] = source.status.to_json()
    del said["status"]
    return said


def _text(source: PlannedSource) -> str:
    lines = [f"{source.name or 'source'}  {source.bucket}"]
    rows = [(name, value) for name, value in {**source.filters, **source.settings}.items()]
    if source.unreachable is not None:
        rows.append(("behind", f"unknown: {source.unreachable}"))
    else:
        rows.append(("behind", f"{source.behind:,} seqnos"))
    rows.append(("state", _state(source)))
    lines += [f"  {name:<24} {text}" for name, text in rows]
    for part in source.parts:
        begins = "new" if part.begins else "goes on"
        lines.append(f"  {part.name:<24} {part.kind:<10} {begins:<8} {part.place}   {part.says}".rstrip())
    return "\n".join(lines)


def _state(source: PlannedSource) -> str:
    status = source.status
    if status.state == "running":
        return f"running, process {status.pid}: a run would be refused"
    return "new" if status.changelog is None else f"{status.changelog.rows or 0:,} rows in the changelog"
