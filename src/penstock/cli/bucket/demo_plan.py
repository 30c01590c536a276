"""The options of the demonstration."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.options import POSITIVE, nonempty, number, option


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """The options of `penstock demo`."""

    file: str | None = option(
        nonempty(metavar="FILE"), "load this file of JSON lines instead of sample documents", default=None
    )
    key: str = option(nonempty(metavar="FIELD"), "field of FILE that holds the key", default="id")
    value: str | None = option(
        nonempty(metavar="FIELD"), "field of FILE that holds the document", default=None, shown="the whole object"
    )
    count: int = option(POSITIVE, "number of sample documents", default=10_000)
    rate: float = option(number(1, metavar="PER_SECOND"), "changes per second while Spark follows", default=300)
    seconds: float = option(number(1), "seconds for which documents are changed", default=20)
    lake: str | None = option(
        nonempty(metavar="DIR"), "keep the tables in this new directory", default=None, shown="removed at the end"
    )
