"""`penstock cluster`: drive the nodes of a cluster's file."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.base.app import AsJson, Panel, app, format_examples
from penstock.cli.base.exit_codes import ExitCode
from penstock.cli.base.interrupt import run_until_signal
from penstock.cli.base.show import format_json_line, print_text
from penstock.client.discovery.endpoint import format_endpoint
from penstock.client.login.credentials import resolve_credentials
from penstock.client.topology.missing_vbuckets import format_ranges

if TYPE_CHECKING:
    from penstock.client.cluster.cluster_file import ClusterFile
    from penstock.client.cluster.orchestrator import ClusterDifference, Orchestrator
    from penstock.client.cluster.vbucket_mover import MovedVbucket

cluster_app = typer.Typer(no_args_is_help=True, help="Drive several nodes from a file: buckets, users, replicas.")
app.add_typer(cluster_app, name="cluster", rich_help_panel=Panel.CLUSTER)

_File = Annotated[str, typer.Argument(metavar="FILE", help="TOML file with the nodes, buckets and users.")]
_Node = Annotated[str, typer.Argument(metavar="NODE", help="Host and port of a node of the file.")]


@cluster_app.command(
    epilog=format_examples("penstock cluster apply lab.toml", "penstock cluster apply lab.toml --check")
)
def apply(
    *,
    file: _File,
    check: Annotated[
        bool, typer.Option("--check", help="Only report the differences; exit 1 if there are any.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Give the nodes the buckets, users and replicas that a file declares.

    Creates missing buckets and users, and spreads vbuckets and replicas evenly over
    the nodes. Prints each difference. A second run finds none. Buckets, users and
    nodes that the file does not name stay as they are.

    Replicas are up to date when the command ends. penstock cluster run keeps them so.
    """
    count = asyncio.run(_open(file, as_json).apply(_print_difference(as_json=as_json), changes=not check))
    if not as_json:
        print_text(f"{count} differences" if count else "no difference")
    if check and count:
        raise typer.Exit(ExitCode.FAILURE)


@cluster_app.command(epilog=format_examples("penstock cluster rebalance lab.toml"))
def rebalance(*, file: _File, as_json: AsJson = False) -> None:
    """Spread vbuckets and replicas evenly over the nodes of a file, while clients use them."""
    asyncio.run(_open(file, as_json).rebalance(_print_difference(as_json=as_json)))


@cluster_app.command(epilog=format_examples("penstock cluster remove lab.toml 10.0.0.3:11210"))
def remove(*, file: _File, node: _Node, as_json: AsJson = False) -> None:
    """Move all vbuckets and replicas away from a node, and take it out of the cluster map.

    Take the node out of the file then: apply would add it again.
    """
    asyncio.run(_open(file, as_json).remove(node))


@cluster_app.command(
    epilog=format_examples(
        "penstock cluster failover lab.toml 10.0.0.3:11210",
        "penstock cluster failover lab.toml 10.0.0.3:11210 --rebalance",
    )
)
def failover(
    *,
    file: _File,
    node: _Node,
    lose: Annotated[
        bool, typer.Option("--lose", help="Promote also copies whose promotion may lose acknowledged changes.")
    ] = False,
    rebalance: Annotated[
        bool, typer.Option("--rebalance", help="Give the vbuckets new replicas on the remaining nodes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Promote the copies of a lost node's vbuckets, in all buckets of a file.

    The rules are those of penstock failover. Without --rebalance, durable writes may
    need replicas that no node has.
    """
    orchestrator = _open(file, as_json)
    results = asyncio.run(orchestrator.fail_over(node, may_lose=lose, rebalances=rebalance))
    for bucket, result in results.items():
        if as_json:
            risks = {str(vbucket): reason for vbucket, reason in sorted(result.risks.items())}
            found = {"promoted": len(result.promoted), "lost": list(result.lost), "risks": risks}
            print_text(format_json_line({"bucket": bucket, **found}))
        else:
            print_text(f"{bucket}: {len(result.promoted)} vbuckets promoted")
            if result.lost:
                print_text(f"{bucket}: no replica of vbuckets {format_ranges(result.lost, ', ')}")
    if any(result.lost for result in results.values()):
        raise typer.Exit(ExitCode.FAILURE)


@cluster_app.command(epilog=format_examples("penstock cluster run lab.toml", "penstock cluster run lab.toml --json"))
def run(*, file: _File, as_json: AsJson = False) -> None:
    """Keep the replicas that the cluster maps name up to date, until SIGINT (Ctrl-C) or SIGTERM.

    A second one for the same nodes is refused.
    """
    last: dict[str, tuple[int, int]] = {}

    def report(bucket: str, replicas: int, lag: int) -> None:
        if last.get(bucket) != (replicas, lag):
            last[bucket] = (replicas, lag)
            found: dict[str, Any] = {"bucket": bucket, "replicas": replicas, "lag": lag}
            line = f"{bucket}: {replicas} replicas, {lag:,} changes behind; Ctrl-C stops."
            print_text(format_json_line(found) if as_json else line)

    orchestrator = _open(file, as_json)

    async def work(stop: asyncio.Event) -> None:
        await orchestrator.run(report)

    asyncio.run(run_until_signal(work))


@cluster_app.command(
    epilog=format_examples("penstock cluster status lab.toml", "penstock cluster status lab.toml --json")
)
def status(*, file: _File, as_json: AsJson = False) -> None:
    """Show owner, replicas, lag and state of each vbucket. The exit code is 1 if one is not ok."""
    from penstock.client.cluster.orchestrator import Orchestrator

    content = _read(file)
    is_ok = True
    for bucket in content.buckets:
        for row in asyncio.run(Orchestrator(content).read_rows(bucket)):
            is_ok = is_ok and row.state == "ok"
            if as_json:
                found = {"owner": row.owner, "replicas": list(row.replicas), "lag": dict(row.lag), "state": row.state}
                print_text(format_json_line({"bucket": bucket.name, "vbucket": row.vbucket, **found}))
            else:
                copies = [f"{name} ({row.lag.get(name, '?')} behind)" for name in row.replicas]
                print_text(
                    f"{bucket.name} {row.vbucket:>4}  {row.owner or '-'}  {' '.join(copies) or '-'}  {row.state}"
                )
    if not is_ok:
        raise typer.Exit(ExitCode.FAILURE)


def _read(file: str) -> ClusterFile:
    from penstock.client.cluster.cluster_file import read_cluster_file

    return read_cluster_file(file, resolve_credentials(None, None, os.environ))


def _open(file: str, as_json: bool) -> Orchestrator:
    from penstock.client.cluster.orchestrator import Orchestrator

    def report(bucket: str, moved: MovedVbucket) -> None:
        source, target = (format_endpoint(*endpoint) for endpoint in (moved.source, moved.target))
        if as_json:
            found = {"bucket": bucket, "vbucket": moved.vbucket, "from": source, "to": target}
            print_text(format_json_line({**found, "seconds": round(moved.seconds, 3)}))
        else:
            print_text(f"{bucket} {moved.vbucket}: {source} -> {target}, takeover {moved.seconds * 1000:.0f} ms")

    return Orchestrator(_read(file), report)


def _print_difference(*, as_json: bool) -> Any:
    def report(difference: ClusterDifference) -> None:
        if as_json:
            found = {"subject": difference.subject, "found": difference.found, "expected": difference.expected}
            print_text(format_json_line(found))
        else:
            print_text(str(difference))

    return report
