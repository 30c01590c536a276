"""The command group `penstock pipeline`."""

from __future__ import annotations

import typer

from penstock.cli.base.app import Panel, app
from penstock.cli.pipeline.question_commands import QuestionGroup

commands = typer.Typer(
    help="Follow buckets into Spark tables, and manage the tables.",
    no_args_is_help=False,
    rich_markup_mode="rich",
    cls=QuestionGroup,
)
app.add_typer(commands, name="pipeline", rich_help_panel=Panel.SPARK)


@commands.callback(invoke_without_command=True)
def _print_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
