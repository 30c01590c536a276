"""`penstock pipeline`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli.app import AsJson, Panel, PasswordFile, Url, Username, app, examples
from penstock.cli.interrupt import interruptible
from penstock.cli.show import as_object, json_line
from penstock.cli.tables import read_rows, table_of
from penstock.client.address import DEFAULT_URL

if TYPE_CHECKING:
    from penstock.spark.pipeline.run import Progress

commands = typer.Typer(
    help="Follow a bucket into Spark tables, and look at them.", no_args_is_help=False, rich_markup_mode="rich"
)
app.add_typer(commands, name="pipeline", rich_help_panel=Panel.SPARK)


@commands.callback(invoke_without_command=True)
def pipeline(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@commands.command(
    epilog=examples(
        "penstock pipeline run --to ./lake --available-now",
        "penstock pipeline run --to ./lake --trigger 5 --max-changes 100000",
        "penstock pipeline run --to ./lake --protocol upr",
    )
)
def run(
    *,
    to: Annotated[str, typer.Option("--to", metavar="LAKE", help="The directory of the tables; made if not there.")],
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Stop once what the bucket has now is in both tables.")
    ] = False,
    max_changes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Changes of one micro-batch at most.")
    ] = None,
    trigger: Annotated[
        float, typer.Option(min=0, max=86400, metavar="SECONDS", help="How often a micro-batch begins.")
    ] = 1.0,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tasks of a micro-batch at most.", show_default="as many as processors"),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The dialect to ask in: upr-draft, upr or, unless said, dcp. TAP cannot resume, so not tap.",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Follow a bucket into two Delta tables: its changelog, and the current state of its documents.

    A new lake starts at the beginning of the bucket. A later run goes on where
    the last one ended, however that was: nothing is lost, nothing comes twice.
    Without --available-now it follows until SIGINT (Ctrl-C) or SIGTERM.
    """
    from penstock.spark.pipeline.run import Settings
    from penstock.spark.pipeline.run import run as run_pipeline

    settings = Settings(
        url, to, available_now, max_changes, trigger, partitions, protocol, username=username, password_file=password
    )
    settings.check()
    lines = _ProgressLines(as_json)

    def follow(check: Callable[[], None]) -> Progress:
        def report(progress: Progress) -> None:
            lines.show(progress)
            check()

        return run_pipeline(settings, report=report)

    if not as_json:
        print("Starting Spark.", flush=True)
    lines.end(interruptible(follow))


class _ProgressLines:
    """Prints where a run stands, a line each time that has changed."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._last: Progress | None = None
        self._last_at = time.monotonic()

    def show(self, progress: Progress) -> None:
        if progress == self._last or not progress.batches:
            return
        now = time.monotonic()
        rows = progress.rows - (self._last.rows if self._last else 0)
        rate = rows / max(now - self._last_at, 0.001)
        self._last, self._last_at = progress, now
        if self._as_json:
            print(json_line({**asdict(progress), "rows_per_second": round(rate, 1)}), flush=True)
        else:
            lag = "unknown" if progress.lag is None else f"{progress.lag:,} seqnos"
            print(f"{progress.rows:>12,} rows written {rate:>9,.0f} rows/s   lag {lag}", flush=True)

    def end(self, progress: Progress) -> None:
        self.show(progress)
        if not self._as_json:
            print(f"{progress.rows:,} rows written; the changelog has {progress.changelog_rows:,}.")


@commands.command(
    epilog=examples(
        "penstock pipeline show ./lake current --limit 5",
        "penstock pipeline show ./lake changelog --json",
    )
)
def show(
    lake: Annotated[str, typer.Argument(metavar="LAKE", help="The directory that `pipeline run --to` names.")],
    table: Annotated[
        Literal["changelog", "current"], typer.Argument(metavar="changelog|current", help="Which of its tables.")
    ],
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Rows to show.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show rows of a lake's table: the first keys of current, or the newest rows of the changelog.

    With --json a row is an object with all columns that are not null.
    cas and vbuuid are strings, bytes are text as in penstock tail --json.
    """
    from penstock.spark.lake import Lake

    if as_json:
        for row in read_rows(Lake(lake), table, limit):
            print(json_line(as_object(row)))
        return
    from rich.console import Console

    # Where nobody's window is the limit, values are shown at some length.
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table_of(Lake(lake), table, limit))
