"""`penstock tail`."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli.base.app import (
    AsJson,
    Missing,
    Panel,
    PasswordFile,
    Url,
    Username,
    address_of,
    app,
    examples,
    with_missing,
)
from penstock.cli.base.show import as_object, json_line, one_line
from penstock.client.connect.address import DEFAULT_URL, Address
from penstock.client.connect.dropped import ROUTINE, describe_drops
from penstock.client.topology.missing import ranges_of

if TYPE_CHECKING:
    from penstock.client.streams.change_stream import ChangeStream
    from penstock.wire.columns.schema import Change

_HEADER = f"{'vb':>4} {'seqno':>8} {'event':10} {'key':32} {'cas':>19} {'size':>7} value"
_VALUE_WIDTH = 60
"""Characters of a value that are shown where there is no terminal to fill."""


@app.command(
    rich_help_panel=Panel.DATA,
    epilog=examples(
        "penstock tail --from beginning --until now",
        "penstock tail --protocol tap --from beginning",
        "penstock tail --json | jq -r 'select(.event == \"deletion\").key'",
    ),
)
def tail(
    *,
    start: Annotated[
        Literal["beginning", "now"], typer.Option("--from", help="All that the bucket remembers, or only what comes.")
    ] = "now",
    until: Annotated[
        Literal["now", "never"], typer.Option(help="Stop at what exists at this moment, or follow.")
    ] = "never",
    vbucket: Annotated[
        list[int] | None, typer.Option(min=0, max=65535, metavar="N", help="Only this one; may be given again.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after this many changes.")] = None,
    protocol: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The dialect to ask in: tap, upr-draft, upr or, unless said, dcp."),
    ] = None,
    missing_vbuckets: Missing = None,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Leave the values out.")] = False,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a bucket's changes, one line each.

    A rollback is a line too: what came before it above its seqno no longer holds.
    So is what happens to a collection; keys of other collections than the default
    one are shown as scope.collection/key.

    --until now needs every vbucket. Those that no node serves are waited for;
    then tail fails and names them, or leaves them out with a line on standard
    error, as --missing-vbuckets says.

    With --json a line is an object with the columns of a change.
    cas and vbuuid are strings: many readers of JSON would round such numbers.
    key and value are text, byte for byte, whether that is JSON or not; what is
    not UTF-8 is in base64, as key_base64 and value_base64.
    What is null is left out.
    """
    columns = _value_width()
    line: Callable[[Change], str] = (
        (lambda change: _json(change, keys_only))
        if as_json
        else (lambda change: _text(change, 0 if keys_only else columns))
    )
    if sys.stdout.isatty() and not as_json:
        print(_HEADER.removesuffix(" value") if keys_only else _HEADER)
    chosen = sorted(set(vbucket)) if vbucket else None
    address = with_missing(address_of(url, username, password), missing_vbuckets)
    asyncio.run(_tail(address, start, until, vbuckets=chosen, protocol=protocol, limit=limit, line=line))


async def _tail(
    address: Address,
    start: Literal["beginning", "now"],
    until: Literal["now", "never"],
    *,
    vbuckets: list[int] | None,
    protocol: str | None,
    limit: int | None,
    line: Callable[[Change], str],
) -> None:
    from penstock.client.bucket import Bucket
    from penstock.wire.columns.run_decoder import changes_of

    stop: Literal["now"] | None = "now" if until == "now" else None
    async with Bucket(address) as bucket, await bucket.stream(start, stop, vbuckets, protocol=protocol) as stream:
        try:
            async for batch in stream:
                changes = changes_of(batch)[:limit]
                # One write for what arrived together; flushed, since whoever reads wants to see it now.
                print("\n".join(map(line, changes)), flush=True)
                if limit is not None:
                    limit -= len(changes)
                    if not limit:
                        return
        finally:
            _report(stream)


def _report(stream: ChangeStream) -> None:
    """Say on standard error what of the bucket is not among the lines."""
    dropped = {reason: frames for reason, frames in stream.dropped.items() if reason not in ROUTINE}
    if dropped:
        print(f"Not shown: {describe_drops(dropped)}", file=sys.stderr)
    if missing := stream.missing:
        print(f"Not shown: vbuckets {ranges_of(missing, ', ')}, which waited for their nodes", file=sys.stderr)


def _json(change: Change, keys_only: bool) -> str:
    shown = change._replace(value=None) if keys_only else change
    return json_line(as_object(shown._asdict()))


def _text(change: Change, value_width: int) -> str:
    seqno = "" if change.seqno is None else change.seqno
    start = f"{change.vbucket:4} {seqno:>8} {change.event:10}"
    if change.key is None:
        return f"{start} {_without_key(change)}"
    size = "" if change.value is None else len(change.value)
    key = one_line(change.key, 250)
    if change.collection_id:
        name = ".".join(part for part in (change.scope, change.collection) if part is not None)
        key = f"{name or f'0x{change.collection_id:x}'}/{key}"
    text = f"{start} {key:32} {change.cas or 0:19} {size:>7}"
    return f"{text} {one_line(change.value, value_width)}".rstrip() if value_width else text.rstrip()


def _without_key(change: Change) -> str:
    if change.requested_seqno is None:
        names = ".".join(name for name in (change.scope, change.collection) if name is not None)
        return f"{names} {one_line(change.value or b'', _VALUE_WIDTH)}".strip()
    return f"back to {change.seqno}, the common point is {change.requested_seqno}; history {change.history}"


def _value_width() -> int:
    if not sys.stdout.isatty():
        return _VALUE_WIDTH
    return max(shutil.get_terminal_size().columns - len(_HEADER) + len("value"), 20)
