"""`penstock completion`: the script with which a shell completes command lines."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined] # no other public module has it

from penstock.cli.base.app import COMPLETION_VARIABLE, Panel, app, format_examples


@app.command(
    rich_help_panel=Panel.TERMINAL,
    epilog=format_examples(
        'eval "$(penstock completion bash)"   # in ~/.bashrc',
        'eval "$(penstock completion zsh)"   # in ~/.zshrc, after compinit',
        "penstock completion fish > ~/.config/fish/completions/penstock.fish",
    ),
)
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.")]) -> None:
    """Print the script with which a shell completes commands, options, choices and files.

    The script runs penstock for each completion, and no completion uses the
    network.
    """
    print(get_completion_script(prog_name="penstock", complete_var=COMPLETION_VARIABLE, shell=shell))
