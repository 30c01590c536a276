"""`penstock streams`: list and close change-stream connections."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer
from msgspec import Struct, ValidationError, convert

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Url, Username, app, format_examples, resolve_address
from penstock.cli.base.show import format_json_line, format_name, print_text
from penstock.client.connect.address import DEFAULT_URL, Address
from penstock.client.topology.missing_vbuckets import format_ranges
from penstock.errors import Error, KeyNotFound, RemoteProtocolError
from penstock.wire.values.peer_json import read_peer_json

commands = typer.Typer(
    help="List and close the change-stream connections of a bucket.", no_args_is_help=False, rich_markup_mode="rich"
)
app.add_typer(commands, name="streams", rich_help_panel=Panel.NODE)

_HEADS = ("name", "protocol", "role", "from", "agent", "vbuckets", "without", "sent", "remaining")
_NUMBER_COLUMNS = frozenset(("sent", "remaining"))
_NAME_WIDTH = 200
"""Characters; longest name of a connection in bytes."""


@commands.callback(invoke_without_command=True)
def streams(context: typer.Context) -> None:  # noqa: D103 - a docstring would replace the group's help
    if context.invoked_subcommand is None:
        print(context.get_help())


@commands.command("list", epilog=format_examples("penstock streams list", "penstock streams list --json"))
def list_streams(
    *,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """List the change-stream connections of a bucket.

    The role is that of the node: a producer sends changes, a consumer stores
    them. Connections without a name are listed by number, for example anon_7.
    With --json, each line is one connection with its streams.
    """
    found = asyncio.run(_read_reports(resolve_address(url, username, password)))
    if as_json:
        for report in found:
            print_text(format_json_line(report))
        return
    rows = [_HEADS, *(_format_row(report) for report in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(_HEADS, row, widths, strict=True)
        print_text(
            "  ".join(
                f"{cell:{'>' if head in _NUMBER_COLUMNS else '<'}{width}}" for head, cell, width in cells
            ).rstrip()
        )


@commands.command(
    "close", epilog=format_examples("penstock streams close replica-2", "penstock streams close anon_7 --json")
)
def close_streams(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the connection, see `penstock streams list`.")],
    *,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Close the change-stream connections with a name, and all their streams."""
    asyncio.run(_close_streams(name, resolve_address(url, username, password)))
    print_text(format_json_line({"closed": name}) if as_json else f"Closed {format_name(name)}.")


class _StreamReport(Struct):
    """The fields of a stream that a row shows."""

    vbucket: int
    filters: list[str]
    items_remaining: int


class _ConnectionReport(Struct):
    """The fields of a connection that a row shows."""

    name: str
    dialect: str
    role: str
    user: str | None
    peer: str
    agent: str
    items_sent: int
    streams: list[_StreamReport]


def _format_row(report: dict[str, Any]) -> tuple[str, ...]:
    read = convert(report, _ConnectionReport)
    without = {name for stream in read.streams for name in stream.filters}
    texts = (
        read.name,
        read.dialect,
        read.role,
        f"{read.user or 'anonymous'}@{read.peer}",
        read.agent,
    )  # chosen by the peer
    return (
        *(format_name(text or "-", _NAME_WIDTH) for text in texts),
        format_ranges(stream.vbucket for stream in read.streams) or "-",
        ",".join(sorted(without)) or "-",
        str(read.items_sent),
        str(sum(stream.items_remaining for stream in read.streams)),
    )


async def _read_reports(address: Address) -> list[dict[str, Any]]:
    from penstock.client.bucket import Bucket

    async with Bucket(address) as bucket:
        try:
            texts = (await bucket.stats("streams")).values()
            reports = [read_peer_json(text.encode(), dict[str, Any], "statistic streams") for text in texts]
            convert(reports, list[_ConnectionReport])  # a report that the table cannot show is not Penstock's
        except (KeyNotFound, RemoteProtocolError, ValidationError):
            raise Error(f"{bucket.address} does not list its streams: expected a Penstock node") from None
    return reports


async def _close_streams(name: str, address: Address) -> None:
    from penstock.client.bucket import Bucket

    async with Bucket(address) as bucket:
        try:
            await bucket.close_streams(name)
        except KeyNotFound as error:
            raise Error(f"no change-stream connection {name!r} at {bucket.address}") from error
