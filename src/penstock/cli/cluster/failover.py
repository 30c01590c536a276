"""`penstock failover`: promote the replicas of a lost node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Username, app, format_examples, resolve_address
from penstock.cli.base.exit_codes import ExitCode
from penstock.cli.base.show import format_json_line, print_text, warn
from penstock.client.connect.address import Address
from penstock.client.discovery.endpoint import format_endpoint
from penstock.client.topology.missing_vbuckets import format_ranges

if TYPE_CHECKING:
    from penstock.client.cluster.node_failover import FailoverResult


@app.command(
    rich_help_panel=Panel.CLUSTER,
    epilog=format_examples(
        "penstock failover --node couchbase://10.0.0.1/beer --to couchbase://10.0.0.2/beer",
        "penstock failover --node $A --to $B --to $C --json",
        "penstock failover --node $A --to $B --lose",
    ),
)
def failover(
    *,
    node: Annotated[
        str, typer.Option("--node", metavar="URL", help="Connection string of the bucket at the lost node.")
    ],
    remaining: Annotated[
        list[str],
        typer.Option(
            "--to",
            metavar="URL",
            help="Connection string of the bucket at a node that remains; can be repeated. The nodes in their cluster "
            "maps remain too.",
        ),
    ],
    lose: Annotated[
        bool, typer.Option("--lose", help="Promote also copies whose promotion may lose acknowledged changes.")
    ] = False,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Promote the best replicas of a lost node's vbuckets.

    A vbucket that no remaining node has active gets a new owner: the replica with
    the highest complete seqno in the newest branch. It becomes active with a new
    entry in its failover log. All remaining nodes get the new cluster map. Consumers
    and other replicas roll back to the common seqno and go on.

    A replica is promoted if the newest map has it in the vbucket's chain. A stream
    must have reached it since the start of its node. Every majority of the chain
    must include such a replica. Otherwise the command lists the vbuckets with the reasons, changes
    nothing, and ends with 2. --lose promotes any copy.

    If the lost node answers, its vbuckets become dead first. The exit code is 1
    if a vbucket has no replica.
    """
    lost = resolve_address(node, username, password)
    others = [resolve_address(url, username, password) for url in remaining]
    result = asyncio.run(_fail_over(lost, others, may_lose=lose))
    print_failover(result, as_json=as_json)
    if result.lost:
        raise typer.Exit(ExitCode.FAILURE)


async def _fail_over(lost: Address, others: list[Address], *, may_lose: bool) -> FailoverResult:
    from penstock.client.cluster.map_publisher import open_map
    from penstock.client.cluster.node_failover import fail_over

    async with open_map(others[0], [address.hosts[0] for address in others]) as publisher:
        return await fail_over(publisher, lost.hosts[0], others[0], may_lose=may_lose)


def print_failover(result: FailoverResult, *, as_json: bool, bucket: str = "") -> None:
    """Print the result of a failover, with the name of its bucket where a command promotes copies of several."""
    from penstock.client.cluster.node_failover import format_risks

    by_node: dict[str, list[int]] = {}
    for vbucket, endpoint in result.promoted.items():
        by_node.setdefault(format_endpoint(*endpoint), []).append(vbucket)
    named, title = ({"bucket": bucket}, f"{bucket}: ") if bucket else ({}, "")
    if as_json:
        risks = {str(vbucket): reason for vbucket, reason in sorted(result.risks.items())}
        found = {"promoted": by_node, "lost": list(result.lost), "risks": risks, "reachable": result.is_reachable}
        print_text(format_json_line({**named, **found}))
    else:
        for address, vbuckets in by_node.items():
            print_text(f"{title}{address}: vbuckets {format_ranges(vbuckets, ', ')} promoted")
        if not by_node:
            print_text(f"{title}no vbucket to promote")
        if result.risks:
            warn(f"{title}changes may be lost: {format_risks(result.risks)}")
    if result.lost:
        warn(f"{title}no replica of vbuckets {format_ranges(result.lost, ', ')}: no node serves them")
