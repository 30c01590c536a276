"""The Typer application with which the commands register, and the options that many commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.cli.base.exit_codes import SIGNAL_BASE, SignalReceived
from penstock.cli.base.logs import LogFormat, LogLevel, configure_log
from penstock.cli.base.option_parameters import make_annotation
from penstock.cli.base.show import print_text
from penstock.client.connect.address import DEFAULT_URL, Address, ConnectionOptions, parse_address
from penstock.client.login.credentials import Credentials, resolve_credentials
from penstock.client.login.secret_sources import choose_secret
from penstock.node.session.node_options import NodeOptions
from penstock.options import format_option, list_options
from penstock.spark.source.bucket_options import BucketOptions
from penstock.version import describe_version

COMPLETION_VARIABLE = "_PENSTOCK_COMPLETE"
"""The environment variable by which the script of a shell asks for completions."""


class Panel(StrEnum):
    """The groups in which `penstock --help` lists the commands."""

    NODE = "A node to try things on"
    DATA = "Documents and their changes"
    CLUSTER = "Several nodes"
    SPARK = "Spark"
    TERMINAL = "Shells and programs"


_LIKE_MARKUP = re.compile(r"\[(?=[a-z#/@])")


def format_examples(*lines: str) -> str:
    """Return command lines as the last part of a command's help, with brackets escaped: rich reads them as markup."""
    return "Example:\n" + "\n".join("$ " + _LIKE_MARKUP.sub(r"\\[", line) for line in lines)


_ACCESS_OPTIONS = list_options(BucketOptions)
Url = make_annotation(_ACCESS_OPTIONS["url"], required=True, shown=True)
OptionalUrl = make_annotation(_ACCESS_OPTIONS["url"])
Username = make_annotation(_ACCESS_OPTIONS["username"])
PasswordFile = make_annotation(_ACCESS_OPTIONS["password_file"])
UsersPath = make_annotation(list_options(NodeOptions)["users"], required=True)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def resolve_address(url: str, username: str | None, file: str | None) -> Address:
    """Return the address of a command's bucket, with the credentials of its options and of the environment.

    Args:
        url: the connection string.
        username: the user name; None: PENSTOCK_USERNAME, if it is set.
        file: the file with the password; None: the password of the environment, see `resolve_credentials`.

    Raises:
        UsageError: the connection string is invalid, the password cannot be read, or half of the credentials is
            missing.
    """
    return parse_address(url, resolve_command_login(username, file))


def resolve_command_login(username: str | None, file: str | None) -> Credentials | None:
    """Return the credentials of a command's options and of the environment, None without any.

    Args:
        username: as for `resolve_address`.
        file: as for `resolve_address`.

    Raises:
        UsageError: the password cannot be read, or half of the credentials is missing.
    """
    return resolve_credentials(username, choose_secret({"--password-file": file}), os.environ)


def override_options(address: Address, given: Mapping[str, object]) -> Address:
    """Return the address with other connection options.

    Args:
        address: the address to change.
        given: field name of ConnectionOptions -> value, or its text.

    Raises:
        UsageError: a value is invalid.
    """
    declared = list_options(ConnectionOptions)
    values = {
        name: declared[name].option_type.read(declared[name].external_name, format_option(value))
        for name, value in given.items()
    }
    return replace(address, options=replace(address.options, **values))


FIRST_STEPS = (
    "penstock serve --bucket beer &",
    f"export PENSTOCK_URL={DEFAULT_URL.removesuffix('default')}beer",
    "penstock workload --docs beer.jsonl --count 10000",
    "penstock load beer.jsonl --key id --value doc",
    "penstock tail --from beginning --until now",
    "penstock pipeline run --to ./lake --available-now",
    "penstock pipeline show ./lake current --limit 5",
    "penstock demo   # runs all of these steps and compares the results",
)


class _CommandGroup(TyperGroup):
    """All commands. A signal ends a command with the exit code that shells report for it."""

    def invoke(self, ctx: Any) -> Any:
        """Return the result of a command."""
        try:
            return super().invoke(ctx)
        except SignalReceived as stopped:  # Typer would end with the code of Ctrl-C
            raise typer.Exit(SIGNAL_BASE + stopped.number) from None


app = typer.Typer(
    name="penstock",
    cls=_CommandGroup,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print_text(describe_version())
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="First steps:\n" + "\n".join(f"$ {line}" for line in FIRST_STEPS) + "\n\n"
    "Run penstock COMMAND --help for the options of a command and an example.\n\n"
    "Exit codes: 0 success, 1 failure, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.",
)
def penstock(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            envvar="PENSTOCK_LOG_LEVEL", help="Least important events on standard error.", show_default="warning"
        ),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            envvar="PENSTOCK_LOG_FORMAT",
            help="Lines with time, level and logger, or as JSON objects.",
            show_default="messages alone",
        ),
    ] = None,
) -> None:
    """Carry the changes of a vbucketed key-value bucket to terminals, programs and Spark tables."""
    configure_log(log_level, log_format)
    if context.invoked_subcommand is None:
        print(context.get_help())
