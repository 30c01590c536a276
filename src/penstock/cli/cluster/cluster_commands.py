"""`penstock cluster`: drive the nodes of a cluster's file."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.base.app import AsJson, Panel, app, format_examples
from penstock.cli.base.exit_codes import ExitCode
from penstock.cli.base.interrupt import run_until_signal
from penstock.cli.base.show import format_json_line, print_text
from penstock.cli.base.text_tables import make_table, print_table
from penstock.cli.cluster.failover import print_failover
from penstock.cli.cluster.move import format_moved
from penstock.client.login.credentials import resolve_credentials

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from penstock.client.cluster.cluster_differences import ClusterDifference
    from penstock.client.cluster.cluster_file import ClusterFile
    from penstock.client.cluster.node_failover import FailoverResult
    from penstock.client.cluster.orchestrator import Orchestrator
    from penstock.client.cluster.vbucket_mover import MovedVbucket
    from penstock.client.cluster.vbucket_rows import VbucketRow

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
    count = asyncio.run(_open(file, as_json=as_json).apply(_print_difference(as_json=as_json), changes=not check))
    if not as_json:
        print_text("1 difference" if count == 1 else f"{count} differences" if count else "no difference")
    if check and count:
        raise typer.Exit(ExitCode.FAILURE)


@cluster_app.command(epilog=format_examples("penstock cluster rebalance lab.toml"))
def rebalance(*, file: _File, as_json: AsJson = False) -> None:
    """Spread vbuckets and replicas evenly over the nodes of a file, while clients use them."""
    asyncio.run(_open(file, as_json=as_json).rebalance(_print_difference(as_json=as_json)))


@cluster_app.command(epilog=format_examples("penstock cluster remove lab.toml 10.0.0.3:11210"))
def remove(*, file: _File, node: _Node, as_json: AsJson = False) -> None:
    """Move all vbuckets and replicas away from a node, and take it out of the cluster map.

    Take the node out of the file then: apply would add it again.
    """
    asyncio.run(_open(file, as_json=as_json).remove(node))


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
    is_whole = True

    def report(bucket: str, result: FailoverResult) -> None:
        nonlocal is_whole
        is_whole = is_whole and not result.lost
        print_failover(result, as_json=as_json, bucket=bucket)

    orchestrator = _open(file, as_json=as_json)
    asyncio.run(orchestrator.fail_over(node, report, may_lose=lose, rebalances=rebalance))
    if not is_whole:
        raise typer.Exit(ExitCode.FAILURE)


@cluster_app.command(epilog=format_examples("penstock cluster run lab.toml", "penstock cluster run lab.toml --json"))
def run(*, file: _File, as_json: AsJson = False) -> None:
    """Keep the replicas that the cluster maps name up to date, until SIGINT (Ctrl-C) or SIGTERM.

    A second one for the same nodes is refused.
    """
    content = _read(file)
    reports = {bucket.name: _report_replicas(bucket.name, as_json=as_json) for bucket in content.buckets}

    async def work(stop: asyncio.Event) -> None:
        from penstock.client.cluster.orchestrator import Orchestrator

        await Orchestrator(content).run(lambda bucket, replicas, lag: reports[bucket](replicas, lag))

    asyncio.run(run_until_signal(work))


def _report_replicas(bucket: str, *, as_json: bool) -> Callable[[int, int], None]:
    """Return a function that prints the replicas of a bucket and the changes that they lack, if these have changed."""
    last: tuple[int, int] | None = None

    def report(replicas: int, lag: int) -> None:
        nonlocal last
        if (replicas, lag) != last:
            last = (replicas, lag)
            line = f"{bucket}: {replicas} replicas, {lag:,} changes behind; Ctrl-C stops."
            print_text(format_json_line({"bucket": bucket, "replicas": replicas, "lag": lag}) if as_json else line)

    return report


@cluster_app.command(
    epilog=format_examples("penstock cluster status lab.toml", "penstock cluster status lab.toml --json")
)
def status(*, file: _File, as_json: AsJson = False) -> None:
    """Show owner, replicas, lag, age and state of each vbucket. The exit code is 1 if one is not ok.

    The age of a replica is the time since the last message of the stream that fills
    it: below 3 minutes while the stream lives, also if nothing is written. "?" is a
    replica that no stream has reached since the start of its node.
    """
    content = _read(file)
    rows = asyncio.run(_read_rows(content))
    if as_json:
        for row in rows:
            print_text(format_json_line(asdict(row)))
    else:
        print_table(_make_vbucket_table(content, rows))
    if any(row.state != "ok" for row in rows):
        raise typer.Exit(ExitCode.FAILURE)


async def _read_rows(content: ClusterFile) -> list[VbucketRow]:
    from penstock.client.cluster.orchestrator import Orchestrator

    return [row for bucket in content.buckets for row in await Orchestrator(content).read_rows(bucket)]


def _make_vbucket_table(content: ClusterFile, rows: list[VbucketRow]) -> Table:
    cells = [
        {
            "bucket": row.bucket,
            "vbucket": row.vbucket,
            "owner": row.owner or "none",
            "replicas": ", ".join(row.replicas) or "none",
            "behind": ", ".join(f"{row.lag[name]:,}" if name in row.lag else "?" for name in row.replicas),
            "age": ", ".join(f"{row.age[name]:,.1f} s" if name in row.age else "?" for name in row.replicas),
            "state": row.state,
        }
        for row in rows
    ]
    good = sum(row.state == "ok" for row in rows)
    return make_table(content.path, list(cells[0]), cells, f"{good:,} of {len(rows):,} vbuckets ok")


def _read(file: str) -> ClusterFile:
    from penstock.client.cluster.cluster_file import read_cluster_file

    return read_cluster_file(file, resolve_credentials(None, None, os.environ))


def _open(file: str, *, as_json: bool) -> Orchestrator:
    from penstock.client.cluster.orchestrator import Orchestrator

    def report(bucket: str, moved: MovedVbucket) -> None:
        print_text(format_moved(moved, as_json=as_json, bucket=bucket))

    return Orchestrator(_read(file), report)


def _print_difference(*, as_json: bool) -> Callable[[ClusterDifference], None]:
    def report(difference: ClusterDifference) -> None:
        print_text(format_json_line(asdict(difference)) if as_json else str(difference))

    return report
