"""A node that is killed under load has all that it said to be on disk when it is started again, and consumers that go
on where they were end with what it has.
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
from tests.kills.killing import Nursery
from tests.kills.served import Command
from tests.kills.traffic import Traffic, url_of

pytestmark = pytest.mark.process

_SEGMENT_BYTES = 64 * 1024
_SOAK_NODES = 20
_SOAK_LIVES = 50


class Killable(Protocol):
    port: int

    def kill(self) -> None: ...


class Start(Protocol):
    def __call__(self) -> AbstractContextManager[Killable]: ...


def kill_again_and_again(start: Start, lives: int, longest: float = 0.5) -> Traffic:
    """longest: seconds of a life."""
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    traffic = Traffic(seed)
    try:
        for life in range(lives):
            with start() as node:
                asyncio.run(_live(node, traffic, chance.uniform(0, longest), catch_up=life % 2 == 0))
        with start() as node:
            asyncio.run(traffic.check(node.port))
            asyncio.run(traffic.catch_up(node.port))
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    return traffic


async def _live(node: Killable, traffic: Traffic, seconds: float, *, catch_up: bool) -> None:
    await traffic.check(node.port)
    if catch_up:
        await traffic.catch_up(node.port)
    await traffic.flow(node.port, seconds, node.kill)


def test_killed_under_load(nursery: Nursery, tmp_path: Path) -> None:
    traffic = kill_again_and_again(partial(nursery.serving, tmp_path, _SEGMENT_BYTES), 12)
    assert traffic.confirmed


def test_the_command_killed_under_load(tmp_path: Path) -> None:
    kill_again_and_again(partial(Command.running, tmp_path), 4)


def test_stopped_well_it_has_all_that_it_answered_and_begins_no_branch(tmp_path: Path) -> None:
    traffic = Traffic(1)

    async def write(port: int) -> None:
        link = (await open_session(parse_address(url_of(port)))).link
        for _ in range(20):
            await traffic.write_some(link)
        await link.close()

    for turn in range(3):
        with Command.running(tmp_path) as node:
            asyncio.run(traffic.check(node.port, stopped=turn > 0))
            asyncio.run(traffic.catch_up(node.port))
            asyncio.run(write(node.port))
            node.stop()
    assert traffic.rollbacks == 0


@pytest.mark.soak
def test_killed_under_load_often(nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    rollbacks = 0
    for number in range(_SOAK_NODES):
        path = tmp_path / str(number)
        rollbacks += kill_again_and_again(
            lambda path=path: nursery.serving(path, _SEGMENT_BYTES), _SOAK_LIVES
        ).rollbacks
        with capsys.disabled():
            kills = (number + 1) * _SOAK_LIVES
            sys.stderr.write(f"{kills} kills, {rollbacks} rollbacks, {time.monotonic() - began:.0f} s\n")
