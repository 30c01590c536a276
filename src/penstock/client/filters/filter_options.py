"""The options that choose changes by key and value."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.options import nonempty, option


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """The options that choose changes by key and value."""

    filter_key: str | None = option(
        nonempty("a regular expression", metavar="REGEX"),
        "only keys in which this regular expression (RE2) is found",
        default=None,
    )
    filter_key_exclude: str | None = option(
        nonempty("a regular expression", metavar="REGEX"),
        "no keys in which this regular expression (RE2) is found, such as ^_txn: for documents of transactions",
        default=None,
    )
    filter_value: str | None = option(
        nonempty("an expression", metavar="EXPRESSION"),
        "only documents that match this expression; deletions match unless it reads the key alone",
        default=None,
    )
