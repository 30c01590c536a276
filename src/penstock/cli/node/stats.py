"""`penstock stats`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Url, Username, address_of, app, examples
from penstock.cli.base.show import json_line, one_line
from penstock.client.connect.address import DEFAULT_URL, Address
from penstock.errors import InvalidArguments, KeyNotFound, NotSupported, UsageError

_WIDTH = 100_000


@app.command(
    rich_help_panel=Panel.NODE,
    epilog=examples(
        "penstock stats", "penstock stats vbucket-seqno", "penstock stats failovers 7 --json", "penstock stats key k 7"
    ),
)
def stats(
    group: Annotated[
        str,
        typer.Argument(
            metavar="GROUP", help="Such as vbucket-seqno, failovers, dcp or tap; without, what sums up the bucket."
        ),
    ] = "",
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENT...", help="Of the group: a vbucket for failovers, key and vbucket for key."),
    ] = None,
    *,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what the node says of a bucket."""
    found = asyncio.run(_stats(" ".join((group, *(arguments or ()))), address_of(url, username, password)))
    if as_json:
        print(json_line(found))
    else:
        width = max(map(len, found), default=0)
        lines = (f"{name:{width}}  {text}" for name, text in found.items())
        print("\n".join(one_line(line.encode(), _WIDTH) for line in lines))  # consumers have a say in names


async def _stats(group: str, address: Address) -> dict[str, str]:
    from penstock.client.bucket import Bucket

    async with Bucket(address) as bucket:
        try:
            return await bucket.stats(group)
        except (KeyNotFound, InvalidArguments, NotSupported) as error:
            raise UsageError(f"{bucket.address} has no statistics {group!r}: {error}") from error
