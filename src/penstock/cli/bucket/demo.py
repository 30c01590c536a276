"""`penstock demo`: documents, changes, a pipeline and its tables in one run, with a check that nothing was lost."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.base.app import Panel, app, format_examples
from penstock.cli.base.exit_codes import ExitCode
from penstock.cli.base.interrupt import run_interruptibly
from penstock.cli.base.option_parameters import add_options
from penstock.cli.bucket.demo_plan import DemoPlan
from penstock.cli.bucket.demo_run import DemoRun
from penstock.cli.bucket.demo_tour import TourRun
from penstock.errors import Error


@app.command(
    rich_help_panel=Panel.SPARK,
    epilog=format_examples(
        "penstock demo",
        "penstock demo --file beer.jsonl --key id --value doc --lake ./lake",
        "penstock demo --tour",
    ),
)
@add_options("chosen", DemoPlan)
def demo(
    *,
    tour: Annotated[bool, typer.Option("--tour", help="Lose the bucket on the way, and explain each step.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --tour: do not wait for Enter.")] = False,
    chosen: dict[str, Any],
) -> None:
    """Run a complete demonstration.

    Starts a node, loads documents, changes them, follows the bucket with Spark
    into tables, compares them with the bucket key by key, and queries one.

    With --tour the node is killed instead of changes, and the tables heal. Each
    step is explained, and waits for Enter on a terminal.

    The exit code is 0 only if the tables equal the bucket.
    """
    from rich.console import Console

    def make_run(*arguments: Any) -> DemoRun:
        if not tour:
            return DemoRun(*arguments)
        run = TourRun(*arguments)
        run.waits = sys.stdin.isatty() and not yes
        return run

    plan = DemoPlan(**chosen)
    with _open_directory(plan.lake) as place:
        console = Console(highlight=False, soft_wrap=True)
        if not run_interruptibly(lambda check: make_run(plan, place, console, check).run()):
            raise typer.Exit(ExitCode.FAILURE)
        if plan.lake is not None:
            console.print(f"The tables are in {plan.lake}: penstock pipeline status {plan.lake}", markup=False)


@contextmanager
def _open_directory(lake: str | None) -> Iterator[Path]:
    if lake is not None:
        if Path(lake).exists():
            raise Error(f"{lake} exists; --lake expects a new directory")
        yield Path(lake)
        return
    place = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        yield place / "lake"
    finally:
        shutil.rmtree(place, ignore_errors=True)
