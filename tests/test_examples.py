"""The small programs of examples/ against a real node."""

import asyncio
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.pytest import PenstockCluster

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_tap_starts_again_and_dcp_continues_and_rolls_back(
    penstock_cluster: Callable[..., PenstockCluster], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    follow = runpy.run_path(str(EXAMPLES / "tap_migration" / "follow.py"))["follow"]
    positions = str(tmp_path / "beer.positions")

    async def store(url: str, *keys: str) -> None:
        async with penstock.connect(url) as bucket:
            await bucket.upsert_many((key, b"{}") for key in keys)

    def lines(url: str, positions: str | None = None) -> list[str]:
        asyncio.run(follow(url, positions))
        return [line for line in capsys.readouterr().out.splitlines() if "mutation" in line or positions]

    bucket = penstock_cluster(1, vbuckets=1).bucket
    asyncio.run(store(bucket.url, "ale"))
    assert lines(bucket.url) == lines(bucket.url) == ["mutation vbucket=0 seqno=None ale"]
    assert lines(bucket.url, positions) == ["mutation vbucket=0 seqno=1 ale"]
    asyncio.run(store(bucket.url, "stout"))
    assert lines(bucket.url, positions) == ["mutation vbucket=0 seqno=2 stout"]
    bucket.rollback(0, 1)
    assert lines(bucket.url, positions) == ["rollback vbucket=0 seqno=1 "]
