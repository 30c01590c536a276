"""Write docs/cli.md from the commands themselves; with --check only say whether it would change."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any

import typer.main
from generated import publish, table

from penstock.cli.base.app import FIRST_STEPS, app
from penstock.cli.base.exit_codes import ExitCode
from penstock.cli.entry import register_commands
from penstock.cli.outputs.output_schemas import OUTPUTS

register_commands()

OPENING = """\
# The command line

<!-- Made by tools/generate_cli.py from the commands themselves; edit those. -->

`penstock COMMAND --help` shows the text of this page. Results go to standard output; errors and progress go to standard
error. An error is one sentence; `penstock --debug COMMAND …` adds the traceback.

EXIT_CODES

With `--json`, a command prints JSON for programs: one object, or one object per line. `penstock schema COMMAND` prints
its JSON Schema, and `penstock schema` lists the commands. Later versions may add fields, so programs must ignore
unknown ones.

Long commands show their progress on standard error: on a terminal with its rate and the time left, otherwise as a line
every ten seconds. `--json` and `--quiet` hide it. `NO_COLOR` and `TERM=dumb` are obeyed.

The log goes to standard error too. `penstock --log-level debug|info|warning|error --log-format console|json COMMAND …`
sets its level and format; [Logs](howto/monitor.md#logs) describes them.

Shells complete commands, options, choices and files after `eval "$(penstock completion bash)"` in `~/.bashrc`, the same
with `zsh` in `~/.zshrc`, or `penstock completion fish > ~/.config/fish/completions/penstock.fish`.

A command tries to connect to a node for 30 seconds, with growing pauses; `?retrySeconds=N` at the end of the connection
string changes that time. A server without a cluster map, such as memcached with its engine alone, needs
`?vbucketCount=N` there, unless its statistics show all vbuckets.

A command that the bucket has served waits for the bucket as long: the node may have restarted. A command whose first
connection finds no bucket fails at once.

If a producer breaks the order of its change streams, or uses an opaque of no stream, the command logs a warning. It
continues the streams from their positions on a new connection. After three such failures in a row without a new change
it ends with exit code 1.
"""

EXIT_CODES = [(code.value, code.meaning) for code in ExitCode]


def commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (full name, command) of all commands below a group, each group's in order."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command


def page() -> str:
    found = list(commands(typer.main.get_command(app), "penstock"))
    parts = [
        OPENING.replace("EXIT_CODES", table(("exit code", "means"), EXIT_CODES).rstrip()),
        "First steps:",
        code("\n".join(FIRST_STEPS)),
    ]
    parts.append(table(("command", "effect"), [(link(name), summary(command)) for name, command in found]))
    parts += [section(name, command) for name, command in found]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def link(name: str) -> str:
    return f"[{name}](#{name.replace(' ', '-')})"


def summary(command: Any) -> str:
    return str(command.help).split("\n\n", maxsplit=1)[0].replace("\n", " ")


def section(name: str, command: Any) -> str:
    arguments = [title(p, command).strip("`") for p in command.params if p.param_type_name == "argument"]
    _, _, lines = command.epilog.partition("\n")
    rows = [(cell(title(parameter, command)), cell(meaning(parameter))) for parameter in command.params]
    return "\n\n".join(
        [
            f"## {name}",
            command.help,
            code(" ".join([name, "[OPTIONS]", *arguments])),
            table(("option", "meaning"), rows).rstrip(),
            *describe_json(name.partition(" ")[2]),
            code("\n".join(line.removeprefix("$ ").replace("\\[", "[") for line in lines.splitlines())),
        ]
    )


def describe_json(command: str) -> list[str]:
    """Return a sentence about the JSON of a command; none if it prints no JSON."""
    output = OUTPUTS.get(command)
    if output is None:
        return []
    start = "each line is" if output.is_lines else "the output is"
    kinds = ", or ".join(summarize_kind(kind) for kind in output.kinds)
    return [f"With `--json`, {start} {kinds} (`penstock schema {command}`)."]


def summarize_kind(kind: Any) -> str:
    """Return the first sentence about a type of output, for the middle of a sentence."""
    if not typing.is_typeddict(kind):
        return "an object of texts by name"
    sentence = inspect.cleandoc(kind.__doc__).partition("\n")[0].split(". ")[0].rstrip(".")
    return sentence[:1].lower() + sentence[1:]


def code(text: str) -> str:
    return f"```console\n{text}\n```"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def title(parameter: Any, command: Any) -> str:
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
        return f"`{name}`" if parameter.required else f"`[{name}]`"
    shown = [*parameter.opts, *([] if parameter.is_flag else [parameter.metavar or choices(parameter, command)])]
    return f"`{' '.join(shown)}`"


def choices(parameter: Any, command: Any) -> str:
    """Return the choices of a parameter without a metavar."""
    kind = typing.get_type_hints(inspect.unwrap(command.callback))[parameter.name]
    if types.NoneType in typing.get_args(kind):  # it may be left out
        kind = typing.get_args(kind)[0]
    return "|".join(typing.get_args(kind)) or kind.__name__.upper()


def meaning(parameter: Any) -> str:
    text = [parameter.help]
    if parameter.required:
        text.append("Required.")
    elif isinstance(parameter.show_default, str):
        text.append(f"Default: {parameter.show_default}.")
    elif parameter.default not in (None, False, ""):
        text.append(f"Default: `{parameter.default}`.")
    if parameter.envvar:
        text.append(f"Environment: `{parameter.envvar}`.")
    return " ".join(text)


if __name__ == "__main__":
    publish({"cli.md": page()})
