"""Orders as JSON of about 300 B with 12 fields, for the benchmarks of typed tables."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DDL = (
    "order_id BIGINT, customer STRING, email STRING, city STRING, status STRING, total DOUBLE, quantity INT, "
    "paid BOOLEAN, ordered_at STRING, note STRING, discount DOUBLE, revision BIGINT"
)
CITIES = pa.array(["London", "Köln", "Port Louis", "Zürich"])
STATES = pa.array(["shipped", "open", "returned"])


def make_orders(numbers: np.ndarray, revision: int) -> pa.Array:
    """Return orders as JSON, the same for the same numbers and revision."""
    mixed = (numbers ^ revision << 24) * 0x1E37_79B9_7F4A_7C15 >> 24 & 0x7FFF_FFFF  # looks random to Parquet
    text = partial(pc.cast, target_type=pa.string())
    parts: list[Any] = [
        '{"order_id":', text(pa.array(numbers)),
        ',"customer":"customer ', text(pa.array(mixed % 100_000)),
        '","email":"someone.', text(pa.array(mixed % 99_991)),
        '@example.com","city":"', CITIES.take(pa.array(mixed % len(CITIES))),
        '","status":"', STATES.take(pa.array(mixed % len(STATES))),
        '","total":', text(pa.array(mixed % 100_000 / 100)),
        ',"quantity":', text(pa.array(mixed % 17)),
        ',"paid":', text(pa.array(mixed % 2 == 0)),
        ',"ordered_at":"2026-11-', text(pa.array(10 + mixed % 20)),
        'T09:30:00Z","note":"leave it at the door of number ', text(pa.array(mixed % 9_973)),
        ', please, and ring","discount":', text(pa.array(mixed % 1_000 / 8)),
        ',"revision":', text(pa.array(np.full(len(numbers), revision))),
        "}",
    ]  # fmt: skip
    return pc.cast(pc.binary_join_element_wise(*parts, ""), pa.binary())


def list_orders(first: int, behind: int) -> list[bytes]:
    """Return the orders of some numbers."""
    orders: list[bytes] = make_orders(np.arange(first, behind), 0).to_pylist()
    return orders
