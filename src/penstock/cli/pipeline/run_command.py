"""`penstock pipeline run`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.base.app import AsJson, PasswordFile, Url, Username, examples
from penstock.cli.base.interrupt import interruptible
from penstock.cli.base.option_parameters import takes_options
from penstock.cli.pipeline.group import commands
from penstock.cli.pipeline.progress_display import Display, end
from penstock.client.connect.address import DEFAULT_URL, ConnectionOptions, MissingVbuckets
from penstock.errors import UsageError
from penstock.options import POSITIVE, TEXT, nonempty, number, option, options_of, shared

if TYPE_CHECKING:
    from penstock.spark.pipeline.definition.definition import PipelineDefinition
    from penstock.spark.pipeline.state.run_progress import SourceProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFlags:
    """What makes a pipeline of one bucket without a file; all but `to` are keys of a source in such a file."""

    to: str | None = option(
        nonempty(metavar="LAKE"), "the directory of the tables, instead of FILE; made if not there", default=None
    )
    max_changes_per_trigger: int | None = option(
        POSITIVE, "changes of one micro-batch at most", default=None, flag="--max-changes"
    )
    trigger_seconds: float = option(number(0, 86400), "how often a micro-batch begins", default=1.0, flag="--trigger")
    max_partitions: int | None = option(
        POSITIVE, "tasks of a micro-batch at most", default=None, shown="as many as processors", flag="--partitions"
    )
    protocol: str | None = option(
        TEXT, "the dialect to ask in: upr-draft, upr or, unless said, dcp. TAP cannot resume, so not tap", default=None
    )
    missing_vbuckets: MissingVbuckets | None = shared(ConnectionOptions, shown="fail")


File = Annotated[str | None, typer.Argument(metavar="[FILE]", help="The pipeline's TOML file.")]
AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="Stop once what the bucket has now is in all tables.")
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
@takes_options("source", SourceFlags)
def run(
    context: typer.Context,
    file: File = None,
    *,
    source: dict[str, Any],
    available_now: AvailableNow = False,
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

    lake = source.pop("to", None)
    if (file is None) == (lake is None):
        raise UsageError("expected a pipeline's FILE or --to LAKE, and not both of them")
    if file is not None:
        _refuse_options(context)
        definition = read_definition(file)
    else:
        definition = of_one(lake, url=url, username=username, password_file=password, **source)
    end(_follow(definition, metrics, master, as_json=as_json, available_now=available_now), as_json=as_json)


def _refuse_options(context: typer.Context) -> None:
    """Raises UsageError for an option that the file decides about."""
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.opts[0] in _SOURCE_FLAGS and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{parameter.opts[0]} beside a pipeline's file, which says that itself")


_SOURCE_FLAGS = {*(each.flag for each in options_of(SourceFlags).values()), "--url", "--username", "--password-file"}


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
