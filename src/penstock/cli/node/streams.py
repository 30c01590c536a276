"""`penstock streams`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer
from msgspec import Struct, ValidationError, convert

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Url, Username, address_of, app, examples
from penstock.cli.base.show import json_line, one_line
from penstock.client.connect.address import DEFAULT_URL, Address
from penstock.client.topology.missing import ranges_of
from penstock.errors import Error, KeyNotFound, RemoteProtocolError
from penstock.wire.values.peer_json import read_peer_json

commands = typer.Typer(
    help="See who follows a bucket, and end a connection that does.", no_args_is_help=False, rich_markup_mode="rich"
)
app.add_typer(commands, name="streams", rich_help_panel=Panel.NODE)

_HEADS = ("name", "protocol", "from", "agent", "vbuckets", "without", "sent", "remaining")
_NUMBERS = frozenset(("sent", "remaining"))
_NAME_WIDTH = 200
"""Characters; a name has at most as many bytes."""


@commands.callback(invoke_without_command=True)
def streams(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@commands.command("list", epilog=examples("penstock streams list", "penstock streams list --json"))
def list_streams(
    *,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the change-stream connections of a bucket.

    One without a name of its own has a number, as anon_7. With --json a line is
    one connection, with each of its streams.
    """
    found = asyncio.run(_reports(address_of(url, username, password)))
    if as_json:
        for report in found:
            print(json_line(report))
        return
    rows = [_HEADS, *(_row(report) for report in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(_HEADS, row, widths, strict=True)
        print("  ".join(f"{cell:{'>' if head in _NUMBERS else '<'}{width}}" for head, cell, width in cells).rstrip())


@commands.command("close", epilog=examples("penstock streams close replica-2", "penstock streams close anon_7 --json"))
def close_streams(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `streams list` shows it.")],
    *,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """End the change-stream connections of this name, with all their streams."""
    asyncio.run(_close(name, address_of(url, username, password)))
    print(json_line({"closed": name}) if as_json else f"Closed {name}.")


class _Stream(Struct):
    """One stream of a connection, as far as a row shows it."""

    vbucket: int
    filters: list[str]
    items_remaining: int


class _Report(Struct):
    """One connection, as far as a row shows it."""

    name: str
    dialect: str
    user: str | None
    peer: str
    agent: str
    items_sent: int
    streams: list[_Stream]


def _row(report: dict[str, Any]) -> tuple[str, ...]:
    read = convert(report, _Report)
    without = {what for stream in read.streams for what in stream.filters}
    texts = (read.name, read.dialect, f"{read.user or 'anonymous'}@{read.peer}", read.agent)  # the consumer's own words
    return (
        *(one_line((text or "-").encode(), _NAME_WIDTH) for text in texts),
        ranges_of(stream.vbucket for stream in read.streams) or "-",
        ",".join(sorted(without)) or "-",
        str(read.items_sent),
        str(sum(stream.items_remaining for stream in read.streams)),
    )


async def _reports(address: Address) -> list[dict[str, Any]]:
    from penstock.client.bucket import Bucket

    async with Bucket(address) as bucket:
        try:
            texts = (await bucket.stats("streams")).values()
            reports = [read_peer_json(text.encode(), dict[str, Any], "statistic streams") for text in texts]
            convert(reports, list[_Report])  # a report that the table cannot show is not Penstock's
        except (KeyNotFound, RemoteProtocolError, ValidationError):
            raise Error(f"{bucket.address} does not list its streams: it is no Penstock node") from None
    return reports


async def _close(name: str, address: Address) -> None:
    from penstock.client.bucket import Bucket

    async with Bucket(address) as bucket:
        try:
            await bucket.close_streams(name)
        except KeyNotFound as error:
            raise Error(f"no change-stream connection {name!r} at {bucket.address}") from error
