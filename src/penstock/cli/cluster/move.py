"""`penstock move`: move active vbuckets from node to node."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Username, app, format_examples, resolve_address
from penstock.cli.base.interrupt import run_until_signal
from penstock.cli.base.option_parameters import add_options
from penstock.cli.base.show import format_json_line, print_text
from penstock.cli.cluster.replicate import report_replicas
from penstock.client.connect.address import Address
from penstock.client.discovery.endpoint import format_endpoint
from penstock.errors import UsageError
from penstock.options import BOOLEAN, list_of, one_of, option, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.client.cluster.balance_moves import BalanceMoves
    from penstock.client.cluster.map_publisher import MapPublisher
    from penstock.client.cluster.vbucket_mover import MovedVbucket

_FromUrl = Annotated[
    str,
    typer.Option("--from", metavar="URL", help="Connection string of the bucket at the node that owns the vbuckets."),
]
_ToUrl = Annotated[
    str | None, typer.Option("--to", metavar="URL", help="Connection string of the bucket at the new owner.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOptions:
    """The options of `penstock move`."""

    vbuckets: tuple[int, ...] | None = option(
        list_of(whole_number(0, 65535)), "move this vbucket; can be repeated", default=None, flag="--vbucket"
    )
    balance: bool = option(
        BOOLEAN, "spread all vbuckets over the nodes of the cluster map and the node of --to", default=False
    )
    replicas: int | None = option(
        whole_number(0, 3),
        "with --balance: replicas of each vbucket, on other nodes than its owner; default: the present ones stay",
        default=None,
    )
    until: Literal["now", "never"] = option(
        one_of("now", "never"),
        "with --replicas: stop when the replicas are complete, or keep replicating",
        default="never",
    )


@app.command(
    rich_help_panel=Panel.CLUSTER,
    epilog=format_examples(
        "penstock move --vbucket 7 --from couchbase://10.0.0.1/beer --to couchbase://10.0.0.2/beer",
        "penstock move --balance --from $A --to $B --json",
        "penstock move --balance --replicas 1 --from $A",
    ),
)
@add_options("chosen", MoveOptions)
def move(
    *,
    chosen: dict[str, Any],
    source: _FromUrl,
    target: _ToUrl = None,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Move active vbuckets to another node while clients use them.

    The target first becomes a replica. Then it takes each vbucket over: the
    source sends the last changes, and hands the ownership over. All nodes get the
    new cluster map, and the former owner deletes its vbucket. Clients that use
    the old map are refused, get the new one, and lose no write.

    With --replicas, each vbucket then gets replicas on other nodes, evenly. The
    map names them once they are complete. The command goes on replicating until
    SIGINT (Ctrl-C) or SIGTERM; penstock replicate --from URL does the same later.

    A takeover whose connection is lost leaves the vbucket at its owner, and is
    tried again for retrySeconds of the connection string. After the command was
    killed, the same command finishes the move.
    """
    options = MoveOptions(**chosen)
    if bool(options.vbuckets) == options.balance:
        raise UsageError("expected either --vbucket or --balance")
    if options.replicas is not None and not options.balance:
        raise UsageError("--replicas without --balance, expected both")
    if target is None and not options.balance:
        raise UsageError("--vbucket without --to, expected the new owner")
    origin = resolve_address(source, username, password)
    destination = None if target is None else resolve_address(target, username, password)
    asyncio.run(_move(origin, destination, options, as_json=as_json))


async def _move(origin: Address, destination: Address | None, options: MoveOptions, *, as_json: bool) -> None:
    """Move vbuckets, place replicas, and keep these until a signal."""
    from penstock.client.cluster.map_publisher import open_map
    from penstock.client.cluster.vbucket_mover import VbucketMover
    from penstock.client.topology.balance_plan import check_replicas

    moved = 0
    is_done = False

    def report(done: MovedVbucket) -> None:
        nonlocal moved
        moved += 1
        print_text(format_moved(done, as_json=as_json))

    def finish() -> None:
        nonlocal is_done
        is_done = True
        if not as_json:
            print_text(f"{moved} vbuckets moved")

    async def work(stop: asyncio.Event) -> None:
        addresses = (origin, *((destination,) if destination is not None else ()))
        async with open_map(origin, [address.hosts[0] for address in addresses]) as publisher:
            if destination is not None:
                await publisher.add_node(destination.hosts[0])
            check_replicas(options.replicas or 0, len(publisher.layout.nodes))
            mover = VbucketMover(publisher, origin, report)
            for vbuckets, source, target in _plan(publisher, origin, destination, options):
                await mover.move(vbuckets, source, target)
            if options.replicas is not None:
                await _place_replicas(publisher, origin, options, finish, as_json=as_json)
            else:
                finish()

    await run_until_signal(work, is_complete=lambda: is_done)


async def _place_replicas(
    publisher: MapPublisher, origin: Address, options: MoveOptions, finish: Callable[[], None], *, as_json: bool
) -> None:
    """Place replicas, and keep them until the task is cancelled, if the options ask for it.

    Args:
        publisher: the newest map of the bucket.
        origin: the bucket.
        options: the options of the command.
        finish: called once the replicas are complete.
        as_json: report in JSON.
    """
    from penstock.client.cluster.map_replication import MapReplication, place_replicas

    assert options.replicas is not None
    keeps = options.replicas > 0 and options.until == "never"
    report = report_replicas(as_json=as_json)
    is_placed = False

    def report_kept(replicas: int, lag: int) -> None:
        if is_placed:
            report(replicas, lag)

    async with MapReplication(origin, report_kept, planned={}) as replication:
        await place_replicas(publisher, replication, options.replicas)
        finish()
        is_placed = keeps
        if keeps:
            await replication.wait()


def _plan(
    publisher: MapPublisher, origin: Address, destination: Address | None, options: MoveOptions
) -> list[BalanceMoves]:
    """Return the vbuckets to move together, with their nodes before and after."""
    from penstock.client.cluster.balance_moves import BalanceMoves, plan_moves

    if options.vbuckets is not None:
        assert destination is not None
        return [BalanceMoves(sorted(set(options.vbuckets)), origin.hosts[0], destination.hosts[0])]
    return plan_moves(publisher)


def format_moved(done: MovedVbucket, *, as_json: bool, bucket: str = "") -> str:
    """Return a move as a line, with the name of its bucket where a command moves vbuckets of several."""
    source, target = (format_endpoint(*endpoint) for endpoint in (done.source, done.target))
    if as_json:
        named = {"bucket": bucket} if bucket else {}
        seconds = round(done.seconds, 3)
        return format_json_line({**named, "vbucket": done.vbucket, "from": source, "to": target, "seconds": seconds})
    title = f"{bucket}: " if bucket else ""
    return f"{title}vbucket {done.vbucket}: {source} -> {target}, takeover {done.seconds * 1000:.0f} ms"
