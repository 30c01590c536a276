"""`penstock schema`: the JSON Schema of a command's output."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from penstock.cli.base.app import Panel, app, format_examples
from penstock.cli.base.show import print_text
from penstock.errors import UsageError


def _complete_command(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the words that may follow the given ones."""
    from penstock.cli.outputs.output_schemas import OUTPUTS

    given = ctx.params.get("command") or ()
    commands = [name.split() for name in OUTPUTS]
    matching = (words for words in commands if len(words) > len(given) and words[: len(given)] == [*given])
    return [*dict.fromkeys(words[len(given)] for words in matching)]


@app.command(
    rich_help_panel=Panel.TERMINAL,
    epilog=format_examples(
        "penstock schema", "penstock schema tail", "penstock schema pipeline status > status.schema.json"
    ),
)
def schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND...",
            help="A command, such as pipeline status. Default: list the commands.",
            show_default=False,
            autocompletion=_complete_command,
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of a command's --json output.

    The schema describes one object: the whole output, or each line where the list
    of commands shows `lines`. Later versions may add fields: programs must ignore
    unknown ones. `tail report` is an object that tail prints on standard error.
    """
    from penstock.cli.outputs.output_schemas import OUTPUTS, make_schema

    if not command:
        width = max(map(len, OUTPUTS))
        for name, output in OUTPUTS.items():
            print_text(f"{name:{width}}  {'lines' if output.is_lines else 'object'}")
        return
    name = " ".join(command)
    if name not in OUTPUTS:
        raise UsageError(f"{name!r} prints no JSON, expected a command of the list that `penstock schema` prints")
    print_text(json.dumps(make_schema(name), indent=2))
