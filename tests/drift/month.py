"""The month: each day's change of the documents, and the columns that the tables have after it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.drift.drifting_bucket import DriftingBucket

NOON = 1_796_212_800_000
"""The first day at noon, in milliseconds since 1970."""
PER_DAY = 40


Drift = Callable[[dict[str, Any], int], object]


@dataclass(slots=True)
class Declarations:
    """The tables of the pipeline's file.

    Attributes:
        tables: name -> keys of its `[[table]]`, as TOML.
        keys: name -> columns of the document's key.
    """

    tables: dict[str, str] = field(default_factory=dict)
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def write(self, file: Path, url: str) -> None:
        """Write the pipeline's file."""
        tables = "".join(f'[[table]]\nname = "{name}"\n{text}\n' for name, text in self.tables.items())
        file.write_text(f'lake = "lake"\n[source.shop]\nurl = "{url}"\n{tables}')


class Shop:
    """The bucket and the pipeline's file during a month.

    Args:
        bucket: the bucket.
        seed: the seed of the daily work.

    Attributes:
        bucket: the bucket.
        declared: the tables.
        columns: table -> column -> type, of the columns that a day expects.
        order: the number of the next order.
        day: the number of the day, from 0.
        drifts: change an order as the days so far do, given its number.
    """

    def __init__(self, bucket: DriftingBucket, seed: int) -> None:
        self.bucket = bucket
        self.declared = Declarations()
        self.columns: dict[str, dict[str, str]] = {}
        self.chance = random.Random(seed)
        self.order = 0
        self.day = 0
        self.drifts: list[Drift] = []

    def declare(self, table: str, text: str, /, *keys: str, **columns: str) -> None:
        """Declare a table."""
        self.declared.tables[table] = text
        self.declared.keys[table] = keys
        self.columns[table] = columns

    def make_order(self, number: int) -> dict[str, Any]:
        """Return an order with the fields of the day."""
        found: dict[str, Any] = {
            "customer": number % 7,
            "total": number,
            "placed": f"2026-12-{1 + self.day:02}T12:00:00Z",
            "note": "by phone" if number % 2 else None,
            "address": {"city": "Oslo", "zip": number % 100},
            "lines": [{"sku": f"s{each}", "count": each} for each in range(number % 4)],
        }
        for drift in self.drifts:
            drift(found, number)
        return found

    def work(self) -> None:
        """Do the usual work of a day: new orders, changed ones and removed ones, customers and events."""
        known = [*self.bucket.documents["orders"]]
        numbers = range(self.order, self.order + PER_DAY)
        self.order += PER_DAY
        changed = [int(key[7:]) for key in self.chance.sample(known, min(len(known), 8))]
        self.bucket.store("orders", {f"order::{n}": self.make_order(n) for n in (*numbers, *changed)})
        if removed := self.chance.sample(known, min(len(known), 3)):
            self.bucket.remove("orders", removed)
        customer = {f"c{n}": {"name": f"No {n}", "since": 2000 + n, f"day_{self.day}": self.day} for n in range(10)}
        self.bucket.store("customers", customer)
        if "events" not in self.bucket.dropped:
            self.bucket.store("events", {f"e{self.day}-{n}": make_event(self.day, n) for n in range(12)})


def make_event(day: int, number: int) -> Any:
    """Return an event. Some do not fit their table."""
    kinds: dict[int, Any] = {
        3: {"kind": 5, "n": 1},
        4: {"kind": "sale", "n": 1.5},
        5: [1, 2],
        6: b"no JSON",
        7: b"\xff\x00",
        8: {"kind": "sale", "created": "2026-12-01T12:00:00.250Z"},
        9: {"kind": "sale", "created": "soon"},
        10: {"kind": "sale", "unit-price": 1.25, "Köln": {"a.b": None, "c": [[]]}},
    }
    return kinds.get(number, {"kind": "sale", "n": number, "created": NOON + 86_400_000 * day + number})


@dataclass(frozen=True, slots=True)
class Day:
    """One day.

    Attributes:
        title: the change in a few words.
        change: makes the change.
        is_killed: whether the first run of the day is killed.
        refusal: the beginning of the sentence with which the first run ends; empty if it succeeds.
    """

    title: str
    change: Callable[[Shop], None]
    is_killed: bool = False
    refusal: str = ""


def _open(shop: Shop) -> None:
    for name in ("orders", "customers", "events"):
        shop.bucket.create_collection(name)
    shop.declare(
        "orders",
        'collection = "sales.orders"\nschema = "infer"\nkey = "order::{number BIGINT}"',
        "number",
        number="bigint", customer="bigint", total="bigint", placed="string", note="string",
        address="struct<city:string,zip:bigint>", lines="array<struct<sku:string,count:bigint>>",
    )  # fmt: skip
    shop.declare(
        "customers",
        'collection = "sales.customers"\nschema = "infer"\nevolve = "keep"',
        name="string", since="bigint", day_0="bigint",
    )  # fmt: skip
    shop.declare(
        "events",
        'collection = "sales.events"\nschema = "kind STRING, n BIGINT"\nmisfits = "dead_letter"\n'
        "columns = { created = \"created_at TIMESTAMP FROM 'unix_ms'\" }",
        kind="string", n="bigint", created_at="timestamp",
    )  # fmt: skip
    shop.declared.keys["events_misfits"] = ()


def drift(title: str, change: Drift, **columns: str) -> Day:
    """Return a day from which on orders are different.

    Args:
        title: the change in a few words.
        change: changes an order, given its number.
        columns: the columns of orders that are new or have another type.
    """

    def apply(shop: Shop) -> None:
        shop.drifts.append(change)
        shop.columns["orders"] |= columns

    return Day(title, apply)


def _lose_work(shop: Shop) -> None:
    shop.bucket.roll_back()


def _return_goods(shop: Shop) -> None:
    shop.bucket.create_collection("returns")
    shop.declare(
        "returns", 'collection = "sales.returns"\nschema = "infer"', reason="string", order="struct<number:bigint>"
    )
    shop.bucket.store("returns", {f"r{n}": {"reason": "broken", "order": {"number": n}} for n in range(20)})


def _drop_events(shop: Shop) -> None:
    shop.bucket.drop_collection("events")


def _forbid_fields(shop: Shop) -> None:
    shop.declare(
        "strict", 'collection = "sales.returns"\nschema = "infer"\nevolve = "fail"', reason="string",
        order="struct<number:bigint>",
    )  # fmt: skip


def _break_rule(shop: Shop) -> None:
    shop.bucket.store("returns", {f"r{n}": {"reason": "late", "refund": 0.5} for n in range(10)})


def _allow_fields(shop: Shop) -> None:
    shop.declared.tables["strict"] = shop.declared.tables["strict"].replace('"fail"', '"add"')
    for name in ("strict", "returns"):
        shop.columns[name]["refund"] = "double"


def _nothing(shop: Shop) -> None:
    del shop


def _set(name: str, make: Callable[[int], Any]) -> Drift:
    return lambda order, number: order.update({name: make(number)})


FIRST = Day("the first documents", _open)
NEW_FIELD = drift("a new field", _set("channel", lambda n: "web" if n % 3 else "shop"), channel="string")
TEXT_NUMBERS = drift("an int becomes a string", _set("customer", lambda n: f"C-{n % 7}"))
EPOCH = drift("a date in epoch milliseconds", _set("placed", lambda n: NOON + n))
NO_NOTE = drift("a field disappears", lambda order, _: order.pop("note"))
ARRAYS = drift("objects become arrays", _set("address", lambda n: [{"city": "Oslo"}] * (n % 3)))
KILL = Day("a killed run", _nothing, is_killed=True)
LOSS = Day("a rollback", _lose_work)
FRACTIONS = drift("an int becomes a fraction", _set("total", lambda n: n + 0.25), total="double")
DROP = Day("a dropped collection", _drop_events)
SHORT = (FIRST, NEW_FIELD, TEXT_NUMBERS, KILL, LOSS)
"""A month in five days."""
DAYS = (
    FIRST,
    NEW_FIELD,
    TEXT_NUMBERS,
    EPOCH,
    NO_NOTE,
    ARRAYS,
    FRACTIONS,
    KILL,
    drift("numbers beyond 64 bits", _set("serial", lambda n: 2**70 + n), serial="decimal(38,0)"),
    LOSS,
    Day("a new collection", _return_goods),
    drift("nested fields", lambda order, n: order.update(ship={"by": {"name": "mail", "days": n % 5}}),
          ship="struct<by:struct<name:string,days:bigint>>"),
    drift("a field within them", lambda order, n: order["ship"]["by"].update(fast=n % 2 == 0),
          ship="struct<by:struct<name:string,days:bigint,fast:boolean>>"),
    drift("fields in arrays", lambda order, n: [each.update(price=n / 8) for each in order["lines"]],
          lines="array<struct<sku:string,count:bigint,price:double>>"),
    drift("odd names",
          lambda order, n: order.update({"unit-price": n, "a.b": n / 2, "Köln": True, "": 1, "Channel": 1}),
          unit_x2d_price="bigint", a_x2e_b="double", Köln="boolean", _x43_hannel="bigint"),
    KILL,
    drift("numbers that no column holds", _set("ratio", lambda n: 0.1 if n % 2 else 1 / 3), ratio="double"),
    drift("nulls and empty values", lambda order, n: order.update(gift=None, tags=[], extra={})),
    drift("an empty array has elements", _set("tags", lambda n: ["a", "b"][: n % 3]), tags="array<string>"),
    drift("mixed arrays", _set("tags", lambda n: ["a", n, None][: n % 4])),
    DROP,
    LOSS,
    drift("arrays become objects", _set("lines", lambda n: {"sku": "s", "count": n})),
    drift("a string becomes a boolean", _set("channel", lambda n: n % 2 == 0)),
    drift("strings return", _set("channel", lambda n: "web")),
    KILL,
    drift("a number in many forms", _set("total", lambda n: [n, float(n), n + 0.5, str(n), None][n % 5])),
    Day("a table that forbids new fields", _forbid_fields),
    Day("a forbidden field", _break_rule, refusal="table strict: refund DOUBLE is new, and evolve is 'fail'"),
    Day("it is allowed", _allow_fields),
)  # fmt: skip


def list_days(*, is_short: bool) -> Iterator[tuple[int, Day]]:
    """Yield the number of each day, and the day."""
    yield from enumerate(SHORT if is_short else DAYS)
