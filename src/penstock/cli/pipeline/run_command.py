"""`penstock pipeline run`: follow buckets into tables."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.base.app import AsJson, PasswordFile, Url, Username, format_examples
from penstock.cli.base.interrupt import run_interruptibly
from penstock.cli.base.option_parameters import add_options
from penstock.cli.base.show import print_text
from penstock.cli.base.work_display import Quiet, can_redraw
from penstock.cli.pipeline.group import commands
from penstock.cli.pipeline.progress_display import ProgressDisplay, print_result
from penstock.client.connect.address import DEFAULT_URL, ConnectionOptions, MissingVbuckets, RecreatedBucket
from penstock.client.signals.web_listener import DashboardFlags, MetricsFlags, WebListener, read_listener
from penstock.errors import UsageError
from penstock.options import list_options, nonempty, option, shared_option
from penstock.spark.pipeline.definition.run_options import Trigger
from penstock.spark.source.micro_batch_options import MicroBatchOptions
from penstock.wire.codec.constants import Dialect

if TYPE_CHECKING:
    from penstock.spark.pipeline.definition.definition import PipelineDefinition
    from penstock.spark.pipeline.state.run_progress import SourceProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFlags:
    """The options that define a pipeline of one bucket without a file. All but `to` are keys of a source in a file."""

    to: str | None = option(
        nonempty(metavar="LAKE"), "directory of the tables, instead of FILE; created if it does not exist", default=None
    )
    max_changes_per_trigger: int | None = shared_option(MicroBatchOptions)
    trigger_seconds: float | None = shared_option(Trigger)
    max_partitions: int | None = shared_option(MicroBatchOptions)
    protocol: Dialect | None = shared_option(
        ConnectionOptions, doc="the dialect: upr-draft, upr or dcp; tap cannot resume, so no pipeline reads it"
    )
    missing_vbuckets: MissingVbuckets | None = shared_option(ConnectionOptions)
    recreated_bucket: RecreatedBucket | None = shared_option(
        ConnectionOptions,
        doc="action if the bucket has another uuid than that of the tables: fail, or roll the tables back to zero",
        shown="fail",
    )


File = Annotated[str | None, typer.Argument(metavar="[FILE]", help="The pipeline's TOML file.")]
AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="Stop when all tables have the changes that the bucket has now.")
]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Spark master to run tasks on, for example spark://HOST:7077.",
        show_default="this machine",
    ),
]


@commands.command(
    epilog=format_examples(
        "penstock pipeline run pipeline.toml",
        "penstock pipeline run --to ./lake --available-now",
        "penstock pipeline run --to ./lake --trigger 5 --max-changes 100000 --metrics 9100",
        "penstock pipeline run pipeline.toml --dashboard 0",
        "penstock pipeline run pipeline.toml --metrics 10.0.0.1:9464 --metrics-login metrics.json",
        "penstock pipeline run pipeline.toml --master spark://10.0.0.1:7077",
    )
)
@add_options("source", SourceFlags)
@add_options("metrics", MetricsFlags)
@add_options("page", DashboardFlags)
def run(
    context: typer.Context,
    file: File = None,
    *,
    source: dict[str, Any],
    available_now: AvailableNow = False,
    master: Master = None,
    metrics: dict[str, Any],
    page: dict[str, Any],
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Follow buckets into tables: a changelog, the current documents, and the tables that FILE declares.

    New tables start at the beginning of the bucket. Later runs resume where the
    last run ended, also after a crash: no change is lost or written twice.
    Without --available-now, the run follows the bucket until SIGINT (Ctrl-C),
    SIGTERM or penstock pipeline stop, and merges pending changes before it ends.
    The exit code is also 1 if an index or a sink failed.
    """
    from penstock.spark.pipeline.definition.definition import define_bucket_pipeline, read_definition

    lake = source.pop("to", None)
    if (file is None) == (lake is None):
        raise UsageError("expected either a pipeline's FILE or --to LAKE")
    if file is not None:
        _refuse_options(context)
        definition = read_definition(file)
    else:
        definition = define_bucket_pipeline(lake, url=url, username=username, password_file=password, **source)
    listeners = _read_listeners(definition, MetricsFlags(**metrics), DashboardFlags(**page))
    print_result(
        _run_pipeline(
            definition,
            listeners,
            master,
            as_json=as_json,
            available_now=available_now,
            is_quiet=quiet,
        ),
        as_json=as_json,
    )


def _refuse_options(context: typer.Context) -> None:
    """Raise UsageError for an option that cannot be combined with a file."""
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.opts[0] in _SOURCE_FLAGS and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{parameter.opts[0]} cannot be combined with FILE: set it in the file")


_TITLES = {"metrics": "Prometheus metrics", "dashboard": "Dashboard"}
_SOURCE_FLAGS = {*(each.flag for each in list_options(SourceFlags).values()), "--url", "--username", "--password-file"}


def _read_listeners(
    definition: PipelineDefinition, flags: MetricsFlags, page: DashboardFlags
) -> tuple[WebListener | None, WebListener | None]:
    """Return the addresses of the metrics and of the page: those of the options, otherwise those of the file."""
    metrics = read_listener(flags.metrics, flags.metrics_login)
    if metrics is None and definition.metrics is not None:
        metrics = definition.metrics.make_listener()
    dashboard = read_listener(page.dashboard, page.dashboard_login, flag="--dashboard", purpose="the dashboard")
    if dashboard is None and definition.dashboard is not None:
        dashboard = definition.dashboard.make_listener()
    return metrics, dashboard


def _run_pipeline(
    definition: PipelineDefinition,
    listeners: tuple[WebListener | None, WebListener | None],
    master: str | None,
    *,
    as_json: bool,
    available_now: bool,
    is_quiet: bool,
) -> tuple[SourceProgress, ...]:
    from penstock.spark.pipeline.run.pipeline_run import run_pipeline
    from penstock.spark.pipeline.run.run_metrics import serve_run

    with (
        ProgressDisplay(as_json=as_json, on_terminal=can_redraw(sys.stdout), is_quiet=is_quiet) as display,
        serve_run(definition, *listeners) as figures,
    ):

        def follow(check: Callable[[], None]) -> tuple[SourceProgress, ...]:
            def report(progress: SourceProgress) -> None:
                figures.update(progress)
                display.show(progress)
                check()

            return run_pipeline(
                definition, available_now=available_now, master=master, report=report, pages=figures.urls
            )

        for name, url in figures.urls.items():
            display.print_line(f"{_TITLES[name]}: {url}")
        if as_json and "dashboard" in figures.urls:
            # Standard output has the progress alone, one form of object in each line.
            print_text(f"{_TITLES['dashboard']}: {figures.urls['dashboard']}", on_stderr=True)
        display.print_line("Starting Spark.")
        return run_interruptibly(follow)
