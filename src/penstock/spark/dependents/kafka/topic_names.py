"""Names of topics: the topic of each collection, and those of rollbacks and positions beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from penstock.client.connect.address import ConnectionOptions
from penstock.errors import Error, UsageError

__all__ = ["TopicNames"]

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_EXPECTED = "expected letters, digits, . _ and -, with {scope} and {collection} as placeholders"


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The topics of one sink.

    Attributes:
        template: the topic of documents, with or without placeholders.
        rollbacks: the topic of rollback events.
        positions: the topic of positions.
        unique_keys: whether documents of different collections never have the same key.

    Raises:
        UsageError: a name is no name of a topic.
    """

    template: str
    rollbacks: str
    positions: str
    unique_keys: bool = False

    @classmethod
    def make(
        cls, sink: str, template: str, rollbacks: str | None = None, positions: str | None = None, *, unique_keys: bool
    ) -> TopicNames:
        """Return the topics; the names that are None begin like the topic of documents."""
        prefix = template.partition("{")[0].rstrip("._-") or sink
        return cls(template, rollbacks or f"{prefix}.rollbacks", positions or f"{prefix}.positions", unique_keys)

    def __post_init__(self) -> None:
        unknown = set(_PLACEHOLDER.findall(self.template)) - {"scope", "collection"}
        if unknown or not _is_topic(_PLACEHOLDER.sub("a", self.template)):
            raise UsageError(f"topic is {self.template!r}, {_EXPECTED}")
        if "{scope}" in self.template and "{collection}" not in self.template:
            raise UsageError(
                f"topic is {self.template!r}, expected {{collection}} too: keys are unique in a collection"
            )
        for name, topic in (("rollback_topic", self.rollbacks), ("position_topic", self.positions)):
            if not _is_topic(topic):
                raise UsageError(f"{name} is {topic!r}, expected letters, digits, . _ and -")
        if len({self.template, self.rollbacks, self.positions}) < 3:
            raise UsageError(f"topic is {self.template!r}, expected other names for rollbacks and positions")

    def check_source(self, options: ConnectionOptions) -> None:
        """Check that no two documents of a source can have the same topic and key.

        Raises:
            UsageError: two scopes may have a collection of the same name.
        """
        names = options.collections
        is_one_scope = bool(options.scope) or len({name.rpartition(".")[0] for name in names}) == 1
        is_ambiguous = "{collection}" in self.template and "{scope}" not in self.template
        if is_ambiguous and not self.unique_keys and not is_one_scope:
            raise UsageError(f"topic is {self.template!r}, expected {{scope}} too, because the source reads all scopes")

    def find_topic(self, scope: str | None, collection: str | None, collection_id: int) -> str:
        """Return the topic of a collection's documents. Raises Error if the collection cannot have a topic."""
        return _format_topic(self.template, self.unique_keys, scope, collection, collection_id)


@lru_cache(1024)
def _format_topic(
    template: str, unique_keys: bool, scope: str | None, collection: str | None, collection_id: int
) -> str:
    if "{" not in template:
        if collection_id != 0 and not unique_keys:
            raise Error(
                f"the topic {template} has no {{collection}}, but the changes have collection {scope}.{collection},"
                f" whose keys may be equal to others; expected unique_keys = true, or a topic such as"
                f" {template}.{{scope}}.{{collection}}"
            )
        return template
    # A dialect may know only the id.
    names = {"scope": scope or "unknown", "collection": collection or f"{collection_id:#x}"}
    topic = _PLACEHOLDER.sub(lambda match: names[match[1]], template)
    if not _is_topic(topic):
        raise Error(f"collection {scope}.{collection} cannot have the topic {topic!r}; expected letters, digits, . _ -")
    return topic


def _is_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")
