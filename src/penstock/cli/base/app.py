"""The application that the commands register with, and what it says when it is given none."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Literal

import typer

from penstock.cli.base.option_parameters import annotation_of
from penstock.client.connect.address import DEFAULT_URL, Address, ConnectionOptions, MissingVbuckets, parse_address
from penstock.client.connect.credentials import USERNAME_VARIABLE, credentials_from, password_file
from penstock.options import options_of
from penstock.version import __version__

__all__ = [
    "AsJson",
    "Missing",
    "Panel",
    "PasswordFile",
    "Url",
    "Username",
    "address_of",
    "app",
    "examples",
    "with_missing",
]


class Panel(StrEnum):
    """The groups in which commands are listed."""

    NODE = "A node to try things on"
    DATA = "Documents and their changes"
    SPARK = "Spark"


_LIKE_MARKUP = re.compile(r"\[(?=[a-z#/@])")


def examples(*lines: str) -> str:
    """Return command lines as the end of a command's help, in which brackets would be rich's."""
    return "Example:\n" + "\n".join("$ " + _LIKE_MARKUP.sub(r"\\[", line) for line in lines)


Url = Annotated[
    str,
    typer.Option("--url", envvar="PENSTOCK_URL", metavar="URL", help="The bucket: couchbase://host:port/bucket."),
]
Username = Annotated[
    str | None,
    typer.Option(
        "--username", envvar=USERNAME_VARIABLE, metavar="NAME", help="Who logs in; PENSTOCK_PASSWORD has the password."
    ),
]
PasswordFile = Annotated[
    str | None, typer.Option("--password-file", metavar="FILE", help="Its only line is the password, instead.")
]
Missing = annotation_of(options_of(ConnectionOptions)["missing_vbuckets"], shown="of the connection string, else fail")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def address_of(url: str, username: str | None, file: str | None) -> Address:
    """Return where a command's bucket is, and who logs in there. file: with the password. Raises UsageError."""
    password = None if file is None else password_file(file)
    return parse_address(url, credentials_from(username, password, os.environ))


def with_missing(address: Address, missing: Literal["fail", "skip"] | None) -> Address:
    """Return the address with the option missingVbuckets set, if it is given."""
    if missing is None:
        return address
    return replace(address, options=replace(address.options, missing_vbuckets=MissingVbuckets(missing)))


FIRST_STEPS = (
    "penstock serve --bucket beer &",
    f"export PENSTOCK_URL={DEFAULT_URL.removesuffix('default')}beer",
    "penstock workload --docs beer.jsonl --count 10000",
    "penstock load beer.jsonl --key id --value doc",
    "penstock tail --from beginning --until now",
    "penstock pipeline run --to ./lake --available-now",
    "penstock pipeline show ./lake current --limit 5",
    "penstock demo   # all of this at once, and a comparison at the end",
)

app = typer.Typer(
    name="penstock",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="First steps:\n" + "\n".join(f"$ {line}" for line in FIRST_STEPS) + "\n\n"
    "penstock COMMAND --help has the options of each command, and an example.",
)
def penstock(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Carry the changes of a vbucketed key-value bucket to terminals, programs and Spark tables."""
    if context.invoked_subcommand is None:
        print(context.get_help())
