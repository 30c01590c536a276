"""Time travel: how long the past versions of a lake's tables can be read.

A version can be read as long as its log and its files exist. Each table has that time in its own properties, so that
maintenance by other programs keeps it too.
"""

from __future__ import annotations

import re

from penstock.errors import UsageError
from penstock.spark.lake.current.typed_table import list_document_tables
from penstock.spark.lake.tables.directory import LakeDirectory

MOST_HOURS = 10 * 366 * 24
"""Greatest time of a pipeline's file."""
_HOURS = {"hour": 1, "day": 24, "week": 7 * 24}
_TEXT = re.compile(r"([0-9]{1,9})\s*([A-Za-z]+)")


def parse_time_travel(text: str) -> int:
    """Return the hours of a text such as "1 day".

    Args:
        text: a whole number and a unit.

    Raises:
        UsageError: it is no time, or less than one hour or more than ten years.
    """
    match = _TEXT.fullmatch(text.strip())
    hours = 0 if match is None else int(match[1]) * _HOURS.get(match[2].lower().removesuffix("s"), 0)
    if not 1 <= hours <= MOST_HOURS:
        raise UsageError(f"time_travel is {text!r}, expected 1 hour to 10 years, such as 12 hours, 1 day or 2 weeks")
    return hours


def set_time_travel(lake: LakeDirectory) -> None:
    """Give the existing tables of a lake the times that new ones get. The caller holds the lake's lock.

    Args:
        lake: the lake, with its hours.
    """
    for table in (lake.changelog_table, *(target.table for target in list_document_tables(lake))):
        table.set_time_travel()
