"""`penstock move`: move active vbuckets from node to node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Username, app, format_examples, resolve_address
from penstock.cli.base.interrupt import run_until_signal
from penstock.cli.base.show import format_json_line, print_text
from penstock.client.connect.address import MAX_VBUCKETS, Address
from penstock.client.discovery.endpoint import format_endpoint

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.client.cluster.vbucket_mover import MovedVbucket

_FromUrl = Annotated[
    str,
    typer.Option("--from", metavar="URL", help="Connection string of the bucket at the node that owns the vbuckets."),
]
_ToUrl = Annotated[str, typer.Option("--to", metavar="URL", help="Connection string of the bucket at the new owner.")]
_Vbuckets = Annotated[
    list[int],
    typer.Option("--vbucket", metavar="N", min=0, max=MAX_VBUCKETS - 1, help="Move this vbucket; can be repeated."),
]


@app.command(
    rich_help_panel=Panel.CLUSTER,
    epilog=format_examples(
        "penstock move --vbucket 7 --from couchbase://10.0.0.1/beer --to couchbase://10.0.0.2/beer",
        "penstock move --vbucket 7 --vbucket 8 --from $A --to $B --json",
    ),
)
def move(
    *,
    vbuckets: _Vbuckets,
    source: _FromUrl,
    target: _ToUrl,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Move active vbuckets to another node while clients use them.

    The target first becomes a replica. Then it takes each vbucket over: the
    source sends the last changes, and hands the ownership over. All nodes get the
    new cluster map, and the former owner deletes its vbucket. Clients that use
    the old map are refused, get the new one, and lose no write.

    penstock cluster rebalance spreads all vbuckets and replicas evenly.

    A takeover whose connection is lost leaves the vbucket at its owner, and is
    tried again for retrySeconds of the connection string. After the command was
    killed, the same command finishes the move.
    """
    origin, destination = (resolve_address(url, username, password) for url in (source, target))
    asyncio.run(_move(origin, destination, {*vbuckets}, as_json=as_json))


async def _move(origin: Address, destination: Address, vbuckets: Collection[int], *, as_json: bool) -> None:
    """Move vbuckets, until a signal."""
    from penstock.client.cluster.map_publisher import open_map
    from penstock.client.cluster.vbucket_mover import VbucketMover

    moved = 0

    def report(done: MovedVbucket) -> None:
        nonlocal moved
        moved += 1
        print_text(format_moved(done, as_json=as_json))

    async def work(stop: asyncio.Event) -> None:
        old, new = origin.hosts[0], destination.hosts[0]
        async with open_map(origin, [old, new]) as publisher:
            await publisher.add_node(new)
            await VbucketMover(publisher, origin, report).move(vbuckets, old, new)
        if not as_json:
            print_text(f"{moved} vbuckets moved")

    await run_until_signal(work, is_complete=lambda: False)


def format_moved(done: MovedVbucket, *, as_json: bool, bucket: str = "") -> str:
    """Return a move as a line, with the name of its bucket where a command moves vbuckets of several."""
    source, target = (format_endpoint(*endpoint) for endpoint in (done.source, done.target))
    if as_json:
        named = {"bucket": bucket} if bucket else {}
        seconds = round(done.seconds, 3)
        return format_json_line({**named, "vbucket": done.vbucket, "from": source, "to": target, "seconds": seconds})
    title = f"{bucket}: " if bucket else ""
    return f"{title}vbucket {done.vbucket}: {source} -> {target}, takeover {done.seconds * 1000:.0f} ms"
