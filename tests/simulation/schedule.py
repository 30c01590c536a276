"""The schedule of a seed: its size, and the faults that happen at given times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

CLIENT_HOSTS = {"cluster": 4, "xdcr": 4}
"""Story -> the number of machines without nodes. They come after those of the nodes."""


class Fault(NamedTuple):
    """A kind of action.

    Attributes:
        name: as it is printed.
        weight: how often it is chosen.
        choose: returns its arguments for a schedule.
        stories: the stories in which it happens.
    """

    name: str
    weight: int
    choose: Callable[[Schedule, Random], dict[str, object]]
    stories: tuple[str, ...]


class Action(NamedTuple):
    """An action of a schedule.

    Attributes:
        at: its time, in seconds.
        name: the name of its Fault.
        arguments: of the method of the simulation with this name.
    """

    at: float
    name: str
    arguments: dict[str, object]

    def __str__(self) -> str:
        return f"{self.at:8.3f} s  {self.name} " + " ".join(f"{name}={text}" for name, text in self.arguments.items())


def _choose_node(schedule: Schedule, random: Random) -> int:
    return random.randrange(schedule.nodes)


def _choose_hosts(schedule: Schedule, random: Random) -> tuple[int, int]:
    one, other = random.sample(range(schedule.nodes + CLIENT_HOSTS[schedule.story]), 2)
    return (one, other) if min(one, other) < schedule.nodes else (random.randrange(schedule.nodes), one)


def _choose_owner(schedule: Schedule, random: Random) -> dict[str, object]:
    return {"vbucket": random.randrange(schedule.vbuckets[0]), "hops": random.randrange(1, schedule.nodes)}


def _choose_kills(random: Random) -> tuple[float, ...]:
    return tuple(round(random.uniform(0.0, 0.6), 3) for _ in range(random.choice((0, 0, 1, 2))))


def _choose_kill(random: Random) -> float | None:
    return random.choice((None, None, round(random.uniform(0.0, 1.0), 3)))


_ALL = ("cluster", "xdcr")
_STORIES = ("cluster",) * 6 + ("xdcr",)

FAULTS = (
    Fault(
        "crash",
        3,
        lambda schedule, random: {
            "node": _choose_node(schedule, random),
            "power": random.random() < 0.6,
            "silent": random.random() < 0.3,
            "seconds": round(random.uniform(0.05, 4), 2),
        },
        _ALL,
    ),
    Fault(
        "lose_power",
        2,
        lambda schedule, random: {
            "seconds": tuple(round(random.uniform(0.05, 1), 2) for _ in range(schedule.nodes)),
            "vbucket": random.choice((None, 0)),
        },
        ("cluster",),
    ),
    Fault(
        "die_in_write",
        2,
        lambda schedule, random: {
            "node": _choose_node(schedule, random),
            "calls": random.randrange(12),
            "seconds": round(random.uniform(0.05, 3), 2),
        },
        _ALL,
    ),
    Fault(
        "cut_link",
        3,
        lambda schedule, random: {
            "hosts": _choose_hosts(schedule, random),
            "seconds": random.choice((0.1, 1.0, 5.0)),
        },
        _ALL,
    ),
    Fault("reset_link", 3, lambda schedule, random: {"hosts": _choose_hosts(schedule, random)}, _ALL),
    Fault(
        "fail_over",
        6,
        lambda schedule, random: {
            "node": _choose_node(schedule, random),
            "rebalances": random.random() < 0.4,
            "kill": _choose_kill(random),
        },
        ("cluster",),
    ),
    Fault("rebalance", 3, lambda schedule, random: {"kill": _choose_kill(random)}, ("cluster",)),
    Fault(
        "move",
        4,
        lambda schedule, random: {**_choose_owner(schedule, random), "kills": _choose_kills(random)},
        ("cluster",),
    ),
    Fault(
        "kill_replication",
        4,
        lambda schedule, random: {"side": random.randrange(2), "seconds": round(random.uniform(0.0, 2.0), 2)},
        ("xdcr",),
    ),
)
"""All kinds of faults. A new one needs an entry here, and a method of its name in its story."""


@dataclass(frozen=True)
class Schedule:
    """Everything that a seed decides in advance.

    Attributes:
        seed: the seed.
        story: its name.
        nodes: number of nodes.
        vbuckets: number of vbuckets of each bucket.
        writers: number of writers.
        writes: number of writes of each writer.
        seconds: time in which faults happen.
        durable: the part of the writes that are durable.
        actions: the faults, in the order of their times.
    """

    seed: int
    story: str
    nodes: int
    vbuckets: tuple[int, ...]
    writers: int
    writes: int
    seconds: float
    durable: float
    actions: tuple[Action, ...] = ()

    def shorten(self, faults: int) -> Schedule:
        """Return the schedule with the first faults only."""
        return replace(self, actions=self.actions[:faults])

    @classmethod
    def make(cls, seed: int) -> Schedule:
        """Return the schedule of a seed."""
        random = Random(f"{seed} schedule")
        story = random.choice(_STORIES)
        is_cluster = story == "cluster"
        schedule = cls(
            seed,
            story,
            nodes=random.choice((2, 2, 3)) if is_cluster else 2,
            vbuckets=(random.choice((1, 1, 2)),) if is_cluster else tuple(random.sample((1, 2, 4), 2)),
            writers=random.choice((1, 2)) if is_cluster else 2,
            writes=random.choice((3, 10, 10, 30)),
            seconds=random.choice((2.0, 2.0, 6.0)),
            durable=random.choice((0.0, 0.4, 1.0)) if is_cluster else 0.0,
        )
        faults = [fault for fault in FAULTS if story in fault.stories]
        chosen = random.choices(faults, [fault.weight for fault in faults], k=random.randrange(7))
        times = sorted(round(random.uniform(0.1, schedule.seconds), 3) for _ in chosen)
        actions = tuple(
            Action(at, fault.name, fault.choose(schedule, random)) for at, fault in zip(times, chosen, strict=True)
        )
        return replace(schedule, actions=actions)

    def __str__(self) -> str:
        head = (
            f"seed {self.seed}: {self.story}, {self.nodes} nodes, {' and '.join(map(str, self.vbuckets))} vbuckets, "
            f"{self.writers} writers of {self.writes} writes, {self.durable:.0%} durable, {self.seconds:g} s"
        )
        return "\n".join([head, *map(str, self.actions)])
