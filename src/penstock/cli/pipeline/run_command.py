"""`penstock pipeline run`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.base.app import AsJson, Missing, PasswordFile, Url, Username, examples
from penstock.cli.base.interrupt import interruptible
from penstock.cli.pipeline.group import commands
from penstock.cli.pipeline.progress_display import Display, end
from penstock.client.connect.address import DEFAULT_URL
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.spark.pipeline.definition.definition import PipelineDefinition
    from penstock.spark.pipeline.state.run_progress import SourceProgress

_OPTIONS = ("to", "max_changes", "trigger", "partitions", "protocol", "missing_vbuckets", "url", "username", "password")
"""Parameters that make a pipeline themselves, and mean nothing beside a file."""


File = Annotated[str | None, typer.Argument(metavar="[FILE]", help="The pipeline's TOML file.")]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="LAKE", help="The directory of the tables, instead of FILE; made if not there."),
]
AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="Stop once what the bucket has now is in all tables.")
]
MaxChanges = Annotated[int | None, typer.Option(min=1, metavar="N", help="Changes of one micro-batch at most.")]
Trigger = Annotated[float, typer.Option(min=0, max=86400, metavar="SECONDS", help="How often a micro-batch begins.")]
Partitions = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Tasks of a micro-batch at most.", show_default="as many as processors"),
]
Protocol = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The dialect to ask in: upr-draft, upr or, unless said, dcp. TAP cannot resume, so not tap.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The cluster to run tasks on, as spark-submit takes it: spark://HOST:7077.",
        show_default="this machine",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, metavar="PORT", help="Serve figures to Prometheus there, on 127.0.0.1."),
]


@commands.command(
    epilog=examples(
        "penstock pipeline run pipeline.toml",
        "penstock pipeline run --to ./lake --available-now",
        "penstock pipeline run --to ./lake --trigger 5 --max-changes 100000 --metrics 9100",
        "penstock pipeline run pipeline.toml --master spark://10.0.0.1:7077",
    )
)
def run(
    context: typer.Context,
    file: File = None,
    *,
    to: To = None,
    available_now: AvailableNow = False,
    max_changes: MaxChanges = None,
    trigger: Trigger = 1.0,
    partitions: Partitions = None,
    protocol: Protocol = None,
    missing_vbuckets: Missing = None,
    master: Master = None,
    metrics: MetricsPort = None,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Follow buckets into tables: a changelog, the current state of the documents, and what FILE declares.

    New tables start at the beginning of the bucket. A later run goes on where
    the last one ended, however that was: nothing is lost, nothing comes twice.
    Without --available-now it follows until SIGINT (Ctrl-C), SIGTERM or
    penstock pipeline stop; what is pending is merged before it ends.
    The exit code is 1 also if something that is told of changes is behind.
    """
    from penstock.spark.pipeline.definition.definition import of_one, read_definition

    if (file is None) == (to is None):
        raise UsageError("expected a pipeline's FILE or --to LAKE, and not both of them")
    if file is not None:
        _refuse_options(context)
        definition = read_definition(file)
    else:
        assert to is not None
        bucket = {"url": url, "username": username, "password_file": password, "protocol": protocol}
        limits = {"max_changes_per_trigger": max_changes, "max_partitions": partitions, "trigger_seconds": trigger}
        definition = of_one(to, **bucket, **limits, missing_vbuckets=missing_vbuckets)
    end(_follow(definition, metrics, master, as_json=as_json, available_now=available_now), as_json=as_json)


def _refuse_options(context: typer.Context) -> None:
    """Raises UsageError for an option that the file decides about."""
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name in _OPTIONS and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{parameter.opts[0]} beside a pipeline's file, which says that itself")


def _follow(
    definition: PipelineDefinition, metrics: int | None, master: str | None, *, as_json: bool, available_now: bool
) -> tuple[SourceProgress, ...]:
    from penstock.spark.pipeline.run.pipeline_run import run as run_pipeline
    from penstock.spark.pipeline.run.run_metrics import serving

    port = metrics if metrics is not None else definition.metrics.port if definition.metrics else None
    with Display(as_json=as_json, on_terminal=sys.stdout.isatty()) as display, serving(port) as figures:

        def follow(check: Callable[[], None]) -> tuple[SourceProgress, ...]:
            def report(progress: SourceProgress) -> None:
                figures.take(progress)
                display.show(progress)
                check()

            return run_pipeline(definition, available_now=available_now, master=master, report=report)

        if figures.port is not None:
            display.say(f"Figures for Prometheus: http://127.0.0.1:{figures.port}/metrics")
        display.say("Starting Spark.")
        return interruptible(follow)
