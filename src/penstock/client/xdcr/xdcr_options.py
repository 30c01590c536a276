"""The options of a replication from one bucket to another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.argument_types import check_arguments
from penstock.client.filters.filter_options import FilterOptions
from penstock.errors import UsageError
from penstock.options import BOOLEAN, FILE, one_of, option, shared_option, text_list


@check_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class XdcrOptions:
    """The options of a replication from one bucket to another.

    Raises:
        UsageError: an option has an unknown value.
    """

    until: Literal["now", "never"] = option(
        one_of("now", "never"), "stop at the current end of the source, or keep following", default="never"
    )
    state: str | None = option(
        FILE, "file that keeps the position; a later start resumes there", default=None, shown="none, start over"
    )
    filter_key: str | None = shared_option(
        FilterOptions, doc="replicate only keys in which this regular expression (RE2) is found"
    )
    filter_key_exclude: str | None = shared_option(
        FilterOptions,
        doc="replicate no keys in which this regular expression (RE2) is found, such as ^_txn: for documents of"
        " transactions",
    )
    filter_value: str | None = shared_option(
        FilterOptions,
        doc="replicate only documents that match this expression; deletions match unless it reads the key alone",
    )
    skip_deletions: bool = option(BOOLEAN, "do not replicate deletions", default=False)
    skip_expirations: bool = option(BOOLEAN, "do not replicate expirations", default=False)
    mapping: tuple[str, ...] = option(
        text_list(metavar="FROM=TO"),
        "replicate this collection or scope: scope.collection=scope.collection or scope=scope; can be repeated",
        default=(),
        shown="all collections, under their names",
        flag="--map",
    )
    missing_collection: Literal["error", "wait"] = option(
        one_of("error", "wait"),
        "action for a collection that the target does not have, and for a mapping's that the source does not have",
        default="error",
    )
    unpersisted: bool = option(
        BOOLEAN, "replicate changes before they are on the source's disk; a crash may void them", default=False
    )

    def __post_init__(self) -> None:
        for name, words in (("until", ("now", "never")), ("missing_collection", ("error", "wait"))):
            if getattr(self, name) not in words:
                raise UsageError(f"{name} is {getattr(self, name)!r}, expected {' or '.join(words)}")

    @property
    def state_path(self) -> Path | None:
        """The state file."""
        return None if self.state is None else Path(self.state).expanduser()

    def describe_selection(self) -> dict[str, Any]:
        """Return the options that choose changes. A position is only valid with the same choice."""
        excluded = {} if self.filter_key_exclude is None else {"filter_key_exclude": self.filter_key_exclude}
        return {
            "filter_key": self.filter_key,
            **excluded,  # files of earlier versions have no such entry
            "filter_value": self.filter_value,
            "skip_deletions": self.skip_deletions,
            "skip_expirations": self.skip_expirations,
            "mapping": sorted(self.mapping or ()),
        }
