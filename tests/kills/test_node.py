"""A node that was killed under load has all changes after its restart that it had confirmed as on disk.

Consumers that resume have the same documents as the node in the end.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from penstock.client.connect.address import parse_address
from penstock.client.connect.client_session import open_session
from tests.kills.killing import ForkServer
from tests.kills.served import NodeProcess
from tests.kills.traffic import Traffic, make_url

pytestmark = pytest.mark.process

_SEGMENT_BYTES = 64 * 1024
_SOAK_NODES = 20
_SOAK_LIVES = 50


class Killable(Protocol):
    port: int

    def kill(self) -> None: ...


class Start(Protocol):
    def __call__(self) -> AbstractContextManager[Killable]: ...


def kill_repeatedly(start: Start, lives: int, longest: float = 0.5) -> Traffic:
    """Start a node, change it and kill it, several times; check it after each restart.

    Args:
        start: starts a node.
        lives: how many times.
        longest: the maximum seconds between start and kill.
    """
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    traffic = Traffic(seed)
    try:
        for life in range(lives):
            with start() as node:
                asyncio.run(_run_life(node, traffic, chance.uniform(0, longest), catch_up=life % 2 == 0))
        with start() as node:
            asyncio.run(traffic.check(node.port))
            asyncio.run(traffic.catch_up(node.port))
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    return traffic


async def _run_life(node: Killable, traffic: Traffic, seconds: float, *, catch_up: bool) -> None:
    await traffic.check(node.port)
    if catch_up:
        await traffic.catch_up(node.port)
    await traffic.run_until_kill(node.port, seconds, node.kill)


def test_killed_node_keeps_all_confirmed_changes(fork_server: ForkServer, tmp_path: Path) -> None:
    traffic = kill_repeatedly(partial(fork_server.run_node, tmp_path, _SEGMENT_BYTES), 12)
    assert traffic.confirmed


def test_killed_serve_command_keeps_all_confirmed_changes(tmp_path: Path) -> None:
    kill_repeatedly(partial(NodeProcess.start, tmp_path), 4)


def test_clean_stop_keeps_all_answered_changes_and_begins_no_branch(tmp_path: Path) -> None:
    traffic = Traffic(1)

    async def write(port: int) -> None:
        link = (await open_session(parse_address(make_url(port)))).link
        for _ in range(20):
            await traffic.write_some(link)
        await link.close()

    for turn in range(3):
        with NodeProcess.start(tmp_path) as node:
            asyncio.run(traffic.check(node.port, stopped=turn > 0))
            asyncio.run(traffic.catch_up(node.port))
            asyncio.run(write(node.port))
            node.stop()
    assert traffic.rollbacks == 0


@pytest.mark.soak
def test_node_keeps_all_confirmed_changes_after_many_kills(
    fork_server: ForkServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    rollbacks = 0
    for number in range(_SOAK_NODES):
        path = tmp_path / str(number)
        rollbacks += kill_repeatedly(
            lambda path=path: fork_server.run_node(path, _SEGMENT_BYTES), _SOAK_LIVES
        ).rollbacks
        with capsys.disabled():
            kills = (number + 1) * _SOAK_LIVES
            sys.stderr.write(f"{kills} kills, {rollbacks} rollbacks, {time.monotonic() - began:.0f} s\n")
