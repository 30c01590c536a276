"""`penstock pipeline find`, `search` and others: the questions that kinds of dependents answer, one command each.

The registry has the words of each command. It is read when a command is looked up, not before: it loads Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.cli.base.app import AsJson, examples
from penstock.cli.base.show import as_object, json_line
from penstock.cli.base.text_tables import show_table, table_with
from penstock.cli.pipeline.arguments import OneSource, Where, lake_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.dependents.registry import Operand, Question

__all__ = ["QuestionGroup"]

IndexName = Annotated[str, typer.Argument(metavar="INDEX", help="Its name in the pipeline's file.")]
Limit = Annotated[int, typer.Option(min=0, metavar="N", help="How many to show.")]


class QuestionGroup(TyperGroup):
    """The group `penstock pipeline`: its own commands, and behind these a command for each question."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        try:
            return [*own, *(question.command for question in _questions())]
        except ModuleNotFoundError:  # without the extra "spark" no kind can be loaded: help lists the rest
            return own

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        return next((_command(each) for each in _questions() if each.command == cmd_name), None)


def _questions() -> list[Question]:
    from penstock.spark.dependents.registry import kinds

    return [kind.question for kind in kinds() if kind.question is not None]


def _command(question: Question) -> Any:
    """Return the command that asks a question."""

    def ask(*, where: str, index: str, limit: int, source: str | None, as_json: bool, **operands: str | None) -> None:
        found = question.answer(lake_of(where, source), index, operands, limit)
        _show(index, question.columns, found, limit, as_json=as_json)

    parameters = [
        Parameter("where", Parameter.KEYWORD_ONLY, annotation=Where),
        Parameter("index", Parameter.KEYWORD_ONLY, annotation=IndexName),
        *map(_parameter, question.operands),
        Parameter("limit", Parameter.KEYWORD_ONLY, annotation=Limit, default=10),
        Parameter("source", Parameter.KEYWORD_ONLY, annotation=OneSource, default=None),
        Parameter("as_json", Parameter.KEYWORD_ONLY, annotation=AsJson, default=False),
    ]
    # Typer reads the signature and the annotations of a function.
    ask.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    ask.__annotations__ = {each.name: each.annotation for each in parameters}
    application = typer.Typer(add_completion=False, rich_markup_mode="rich")
    application.command(question.command, help=question.help, epilog=examples(*question.examples))(ask)
    return typer.main.get_command(application)


def _parameter(operand: Operand) -> Parameter:
    if operand.option is None:
        word: Any = Annotated[str, typer.Argument(metavar=operand.metavar, help=operand.help)]
        return Parameter(operand.name, Parameter.KEYWORD_ONLY, annotation=word)
    word = Annotated[str | None, typer.Option(operand.option, metavar=operand.metavar, help=operand.help)]
    return Parameter(operand.name, Parameter.KEYWORD_ONLY, annotation=word, default=None)


def _show(index: str, columns: Sequence[str], found: pa.Table, limit: int, *, as_json: bool) -> None:
    from penstock.wire.columns.collection_names import DEFAULT_NAME

    rows = [_printable(row) for row in found.to_pylist()]
    if as_json:
        for row in rows:
            print(json_line(as_object(row)))
        return
    shown = [row | {"score": f"{row['score']:.2f}"} if "score" in row else row for row in rows]
    paths = [".".join(row[name] or DEFAULT_NAME for name in ("scope", "collection")) for row in rows]
    if any(path != f"{DEFAULT_NAME}.{DEFAULT_NAME}" for path in paths):
        columns = (*columns, "collection")
        shown = [row | {"collection": path} for row, path in zip(shown, paths, strict=True)]
    more = "; there may be more, see --limit" if len(rows) == limit else ""
    show_table(table_with(index, columns, shown, f"{len(rows):,} found{more}"))


def _printable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a time as text."""
    value = row.get("value")
    return row | {"value": value.isoformat()} if isinstance(value, datetime) else row
