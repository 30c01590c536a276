"""Names of topics: the topic of each collection, and those of rollbacks and positions beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from penstock.client.connect.address import ConnectionOptions
from penstock.errors import Error, UsageError
from penstock.spark.dependents.kafka.refused_records import RecordRefusal
from penstock.wire.columns.collection_names import DEFAULT_NAME

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_EXPECTED = "expected letters, digits, . _ and -, with {scope} and {collection} as placeholders"


_REFUSED = 17
"""The code of INVALID_TOPIC_EXCEPTION in Kafka's protocol."""


class TopicMissing(Error):
    """A collection can have no topic."""

    @property
    def refusal(self) -> RecordRefusal:
        """The refusal of the collection's records."""
        return RecordRefusal(_REFUSED, "INVALID_TOPIC_EXCEPTION", str(self))


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
        """Check that each collection of a source has a topic, and that no two documents have the same topic and key.

        Raises:
            UsageError: two collections may have the same topic, or a selected collection cannot have one.
        """
        names = [name.rpartition(".") for name in options.collections]
        is_one_scope = bool(options.scope) or len({scope for scope, _, _ in names}) == 1
        if "{collection}" in self.template and not self.unique_keys and not is_one_scope:
            if "{scope}" not in self.template:
                raise UsageError(
                    f"topic is {self.template!r}, expected {{scope}} too, because the source reads all scopes"
                )
            if not _is_unambiguous(self.template):
                raise UsageError(
                    f"topic is {self.template!r}, which two collections may share, such as a_b.c and a.b_c; expected a"
                    " dot between {scope} and {collection}, as names have none"
                )
        for scope, _, collection in names:
            try:
                self.find_topic(scope or options.scope or DEFAULT_NAME, collection, 0)
            except TopicMissing as error:
                raise UsageError(str(error)) from None

    def find_topic(self, scope: str | None, collection: str | None, collection_id: int) -> str:
        """Return the topic of a collection's documents. Raises TopicMissing if the collection cannot have one."""
        return _format_topic(self, scope, collection, collection_id)


def _is_unambiguous(template: str) -> bool:
    """Return whether no two collections have the same topic.

    Names have no dots. So a part between dots with one of the two names determines that name. Then the rest of the
    topic determines the other name.
    """
    return any(len(set(_PLACEHOLDER.findall(part))) == 1 for part in template.split("."))


@lru_cache(1024)
def _format_topic(topics: TopicNames, scope: str | None, collection: str | None, collection_id: int) -> str:
    template = topics.template
    if "{" not in template:
        if collection_id != 0 and not topics.unique_keys:
            raise TopicMissing(
                f"the topic {template} has no {{collection}}, but the changes have collection {scope}.{collection},"
                f" whose keys may be equal to others; expected unique_keys = true, or a topic such as"
                f" {template}.{{scope}}.{{collection}}"
            )
        return template
    # A dialect may know only the id.
    names = {"scope": scope or "unknown", "collection": collection or f"{collection_id:#x}"}
    topic = _PLACEHOLDER.sub(lambda match: names[match[1]], template)
    if not _is_topic(topic):
        raise TopicMissing(
            f"collection {scope}.{collection} cannot have the topic {topic!r}; expected letters, digits, . _ -"
        )
    for kind, other in (("rollbacks", topics.rollbacks), ("positions", topics.positions)):
        if topic == other:
            raise TopicMissing(
                f"collection {scope}.{collection} cannot have the topic {topic!r}, which has the {kind}; expected"
                f" another topic, or another {kind.removesuffix('s')}_topic"
            )
    return topic


def _is_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")
