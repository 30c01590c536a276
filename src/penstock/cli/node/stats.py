"""`penstock stats`: print the statistics of a bucket."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Url, Username, app, format_examples, resolve_address
from penstock.cli.base.show import format_json_line, format_one_line, print_text
from penstock.client.connect.address import DEFAULT_URL, Address
from penstock.errors import InvalidArguments, KeyNotFound, NotSupported, UsageError

_WIDTH = 100_000


@app.command(
    rich_help_panel=Panel.NODE,
    epilog=format_examples(
        "penstock stats", "penstock stats vbucket-seqno", "penstock stats failovers 7 --json", "penstock stats key k 7"
    ),
)
def stats(
    group: Annotated[
        str,
        typer.Argument(
            metavar="GROUP",
            help="Statistics group, for example vbucket-seqno, failovers, dcp or tap. Default: general statistics.",
        ),
    ] = "",
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGUMENT...", help="Arguments of the group: a vbucket for failovers, key and vbucket for key."
        ),
    ] = None,
    *,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the statistics of a bucket."""
    found = asyncio.run(_read_stats(" ".join((group, *(arguments or ()))), resolve_address(url, username, password)))
    if as_json:
        print_text(format_json_line(found))
    else:
        width = max(map(len, found), default=0)
        lines = (f"{name:{width}}  {text}" for name, text in found.items())
        print_text(
            "\n".join(format_one_line(line.encode(), _WIDTH) for line in lines)
        )  # names may contain the name of a consumer


async def _read_stats(group: str, address: Address) -> dict[str, str]:
    from penstock.client.bucket import Bucket

    async with Bucket(address) as bucket:
        try:
            return await bucket.stats(group)
        except (KeyNotFound, InvalidArguments, NotSupported) as error:
            raise UsageError(f"{bucket.address} has no statistics {group!r}: {error}") from error
