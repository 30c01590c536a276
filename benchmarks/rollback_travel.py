"""How much travels to a replica after its source has lost a tail of its changes?

The source is copied to a target. Then each vbucket of the source loses its newest changes, as after a crash, and writes
as many changes with other keys. The second replication starts at the common points, so only later changes travel.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import NamedTuple

from benchmarks.replicate import make_address
from benchmarks.report import Report, make_parser
from benchmarks.served import NodeProcess, run_node
from penstock.client.replication.replicator import ReplicationOptions, Replicator


class Travel(NamedTuple):
    """The changes and bytes that a source has sent.

    Attributes:
        items: number of changes.
        nbytes: bytes of all frames.
    """

    items: int
    nbytes: int


async def replicate(source: NodeProcess, target: NodeProcess) -> Travel:
    """Let the target catch up, and return the changes and bytes that travelled."""
    options = ReplicationOptions(until_caught_up=True)
    async with Replicator(make_address(source), make_address(target), options) as replicator:
        progress = await replicator.run()
        return Travel(await asyncio.to_thread(source.count_sent_items), progress.nbytes)


def measure(report: Report, chosen: argparse.Namespace) -> None:
    lost = chosen.lost // chosen.vbuckets
    with (
        run_node(vbuckets=chosen.vbuckets, changes=chosen.changes, value_bytes=chosen.value_bytes) as source,
        run_node(vbuckets=chosen.vbuckets) as target,
    ):
        whole = asyncio.run(replicate(source, target))
        source.lose_tail(lost)
        again = asyncio.run(replicate(source, target))
    report.add_row("the whole bucket", f"{whole.items} items, {whole.nbytes} bytes")
    report.add_row(
        f"after a loss of {lost * chosen.vbuckets} items",
        f"{again.items} items, {again.nbytes} bytes: {again.nbytes / whole.nbytes:.2%} of the bytes",
    )


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--lost", type=int, default=10_000, help="changes that the source loses and writes again")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--vbuckets", type=int, default=64)
    chosen = parser.parse_args()
    report = Report(f"Rollback of {chosen.lost} of {chosen.changes} changes of {chosen.value_bytes} B", chosen)
    measure(report, chosen)
    report.finish()


if __name__ == "__main__":
    main()
