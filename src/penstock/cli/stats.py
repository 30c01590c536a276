"""`penstock stats`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from penstock.cli.app import AsJson, Panel, PasswordFile, Url, Username, address_of, app, examples
from penstock.cli.show import json_line, one_line
from penstock.client.address import DEFAULT_URL, Address
from penstock.errors import InvalidArguments, KeyNotFound, UsageError

_WIDTH = 100_000


@app.command(
    rich_help_panel=Panel.NODE,
    epilog=examples("penstock stats", "penstock stats vbucket-seqno", "penstock stats failovers 7 --json"),
)
def stats(
    group: Annotated[
        str,
        typer.Argument(
            metavar="GROUP", help="Such as vbucket-seqno, failovers, dcp or tap; without, what sums up the bucket."
        ),
    ] = "",
    vbucket: Annotated[
        int | None, typer.Argument(min=0, max=65535, metavar="VBUCKET", help="Only this one, in those groups.")
    ] = None,
    *,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what the node says of a bucket."""
    wanted = group if vbucket is None else f"{group} {vbucket}"
    found = asyncio.run(_stats(wanted, address_of(url, username, password)))
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
        except (KeyNotFound, InvalidArguments) as error:
            raise UsageError(f"{bucket.address} has no statistics {group!r}: {error}") from error
