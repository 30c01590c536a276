"""`penstock pipeline find`, `search` and others: one command for each kind of dependent that answers queries.

The registry of dependents defines the name, help and operands of each command. It is loaded when a command is looked
up, and not before, because it imports Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.cli.base.app import AsJson, format_examples
from penstock.cli.base.option_parameters import set_parameters
from penstock.cli.base.show import format_json_line, print_text
from penstock.cli.base.text_tables import make_table, print_table
from penstock.cli.pipeline.arguments import FileOrLake, IndexSource, select_index_lake
from penstock.client.dumps.json_objects import make_json_object

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.dependents.registry import DependentKind, Operand, Question

IndexName = Annotated[str, typer.Argument(metavar="INDEX", help="Name of the index in the pipeline's file.")]
Limit = Annotated[int, typer.Option(min=0, metavar="N", help="Maximum number of rows.")]


class QuestionGroup(TyperGroup):
    """The group `penstock pipeline`: its own commands, followed by a command for each query of a dependent."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, those of queries last."""
        own = super().list_commands(ctx)
        try:
            return [*own, *(question.command for _, question in _list_questions())]
        except ModuleNotFoundError:  # without the extra "spark" no kind can be loaded: help lists the other commands
            return own

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with a name, or None."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        return next((_make_command(*each) for each in _list_questions() if each[1].command == cmd_name), None)


def _list_questions() -> list[tuple[type[DependentKind], Question]]:
    from penstock.spark.dependents.registry import list_kinds

    return [(kind, kind.question) for kind in list_kinds() if kind.question is not None]


def _make_command(kind: type[DependentKind], question: Question) -> Any:
    """Return the command that runs a query."""

    def ask(*, where: str, index: str, limit: int, source: str | None, as_json: bool, **operands: str | None) -> None:
        found = question.answer(select_index_lake(where, source, kind, index), index, operands, limit)
        _print_rows(index, question.columns, found, limit, as_json=as_json)

    parameters = [
        Parameter("where", Parameter.KEYWORD_ONLY, annotation=FileOrLake),
        Parameter("index", Parameter.KEYWORD_ONLY, annotation=IndexName),
        *map(_make_parameter, question.operands),
        Parameter("limit", Parameter.KEYWORD_ONLY, annotation=Limit, default=10),
        Parameter("source", Parameter.KEYWORD_ONLY, annotation=IndexSource, default=None),
        Parameter("as_json", Parameter.KEYWORD_ONLY, annotation=AsJson, default=False),
    ]
    set_parameters(ask, parameters)
    application = typer.Typer(add_completion=False, rich_markup_mode="rich")
    application.command(question.command, help=question.help, epilog=format_examples(*question.examples))(ask)
    return typer.main.get_command(application)


def _make_parameter(operand: Operand) -> Parameter:
    if operand.option is None:
        word: Any = Annotated[str, typer.Argument(metavar=operand.metavar, help=operand.help)]
        return Parameter(operand.name, Parameter.KEYWORD_ONLY, annotation=word)
    word = Annotated[str | None, typer.Option(operand.option, metavar=operand.metavar, help=operand.help)]
    return Parameter(operand.name, Parameter.KEYWORD_ONLY, annotation=word, default=None)


def _print_rows(index: str, columns: Sequence[str], found: pa.Table, limit: int, *, as_json: bool) -> None:
    from penstock.wire.columns.collection_names import DEFAULT_NAME

    rows = [_format_value(row) for row in found.to_pylist()]
    if as_json:
        for row in rows:
            print_text(format_json_line(make_json_object(row)))
        return
    shown = [row | {"score": f"{row['score']:.2f}"} if "score" in row else row for row in rows]
    paths = [".".join(row[name] or DEFAULT_NAME for name in ("scope", "collection")) for row in rows]
    if any(path != f"{DEFAULT_NAME}.{DEFAULT_NAME}" for path in paths):
        columns = (*columns, "collection")
        shown = [row | {"collection": path} for row, path in zip(shown, paths, strict=True)]
    more = "; limited by --limit" if len(rows) == limit else ""
    print_table(make_table(index, columns, shown, f"{len(rows):,} found{more}"))


def _format_value(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose value is text if it is a time, as in ISO 8601, or a decimal, with all digits."""
    value = row.get("value")
    if isinstance(value, date):  # also with a time
        return row | {"value": value.isoformat()}
    return row | {"value": f"{value:f}"} if isinstance(value, Decimal) else row
