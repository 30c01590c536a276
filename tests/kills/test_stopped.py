"""A node that is killed while persistence is stopped keeps exactly the changes before the stop.

Consumers that have received later changes must roll back. After START_PERSISTENCE a kill loses no persisted change.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.client.bucket import connect
from penstock.client.connect.address import parse_address
from penstock.client.connect.client_session import open_session
from penstock.client.connect.node_link import NodeLink
from penstock.client.documents.document import compute_vbucket
from penstock.client.feeds.stream_position import Position
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.kv import GetAllVbSeqnos, SeqnoPersistence, unpack_vb_seqnos
from penstock.wire.messages.observe import StartPersistence, StopPersistence
from tests.kills.served import VBUCKETS, NodeProcess
from tests.kills.traffic import make_url
from tests.patience import PATIENCE

pytestmark = pytest.mark.process

_KEYS = [b"key %d" % number for number in range(200)]
_VBUCKETS = {compute_vbucket(key, VBUCKETS) for key in _KEYS}

Positions = dict[int, Position]


def test_kill_while_persistence_is_stopped_loses_exactly_the_changes_after_the_stop(tmp_path: Path) -> None:
    async def before(port: int) -> Positions:
        link = (await open_session(parse_address(make_url(port)))).link
        await _write(port, b"1")
        await _persist(link)
        await link.request(StopPersistence(), PATIENCE)
        await _write(port, b"2")
        changes, positions = await _read(port)
        await link.close()
        assert {change.value for change in changes} == {b"2"}
        return positions

    async def after(port: int) -> None:
        changes, _ = await _read(port, positions)
        rollbacks = {change.vbucket: change.seqno for change in changes if change.event == Event.ROLLBACK}
        on_disk = {vb: high for vb, high in (await _high_seqnos(port)).items() if vb in _VBUCKETS}
        assert set(rollbacks) == _VBUCKETS
        assert all(2 * high == positions[vb].seqno for vb, high in on_disk.items())
        assert all((seqno or 0) <= on_disk[vb] for vb, seqno in rollbacks.items())
        again, _ = await _read(port)
        assert {change.key: change.value for change in again} == dict.fromkeys(_KEYS, b"1")

    with NodeProcess.start(tmp_path) as node:
        positions = asyncio.run(before(node.port))
        node.kill()
    with NodeProcess.start(tmp_path) as node:
        asyncio.run(after(node.port))


def test_kill_after_restart_of_persistence_loses_nothing(tmp_path: Path) -> None:
    async def before(port: int) -> Positions:
        link = (await open_session(parse_address(make_url(port)))).link
        await link.request(StopPersistence(), PATIENCE)
        await _write(port, b"1")
        await link.request(StartPersistence(), PATIENCE)
        await _persist(link)
        await link.close()
        return (await _read(port))[1]

    async def after(port: int) -> None:
        changes, _ = await _read(port, positions)
        assert changes == []
        assert {change.value for change in (await _read(port))[0]} == {b"1"}

    with NodeProcess.start(tmp_path) as node:
        positions = asyncio.run(before(node.port))
        node.kill()
    with NodeProcess.start(tmp_path) as node:
        asyncio.run(after(node.port))


async def _write(port: int, value: bytes) -> None:
    async with connect(make_url(port)) as bucket:
        for key in _KEYS:
            await bucket.upsert(key.decode(), value)


async def _high_seqnos(port: int) -> dict[int, int]:
    link = (await open_session(parse_address(make_url(port)))).link
    try:
        return unpack_vb_seqnos((await link.request(GetAllVbSeqnos(), PATIENCE)).value)
    finally:
        await link.close()


async def _persist(link: NodeLink) -> None:
    seqnos = unpack_vb_seqnos((await link.request(GetAllVbSeqnos(), PATIENCE)).value)
    await link.request_many([SeqnoPersistence(vbucket=vb, seqno=seqno) for vb, seqno in seqnos.items()], PATIENCE)


async def _read(port: int, start: Positions | None = None) -> tuple[list[Change], Positions]:
    """Return all changes from the start positions to the present end of the bucket, and the positions there."""
    changes: list[Change] = []
    async with connect(make_url(port)) as bucket, await bucket.stream(start=start or "beginning", stop="now") as stream:
        async for change in stream.changes():
            changes.append(change)
        return changes, dict(stream.positions)
