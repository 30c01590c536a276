"""The mapping of a source bucket's collections to collections of the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from penstock.client.documents.row_columns import TargetCollection
from penstock.client.feeds.collection_selection import KnownCollections
from penstock.errors import NoSuchCollection, UsageError


@dataclass(frozen=True, slots=True)
class CollectionMapping:
    """The collections that are replicated, and their names at the target.

    Attributes:
        scopes: source scope -> target scope, for all collections of the scope.
        collections: source collection -> target collection. It precedes `scopes`.
    """

    scopes: Mapping[str, str]
    collections: Mapping[TargetCollection, TargetCollection]

    @classmethod
    def parse(cls, rules: Sequence[str]) -> Self:
        """Return the mapping of rules `scope.collection=scope.collection` and `scope=scope`.

        Args:
            rules: the rules; without any, all collections keep their names.

        Raises:
            UsageError: a rule is invalid, or a name stands on the same side of two rules.
        """
        scopes: dict[str, str] = {}
        collections: dict[TargetCollection, TargetCollection] = {}
        for rule in rules:
            sides = [tuple(side.strip().split(".")) for side in rule.split("=")]
            if len(sides) != 2 or len(sides[0]) != len(sides[1]) or len(sides[0]) > 2 or not all(map(all, sides)):
                raise UsageError(f"mapping {rule!r}, expected scope.collection=scope.collection or scope=scope")
            source, target = (".".join(side) for side in sides)
            known = {".".join(name): ".".join(other) for name, other in collections.items()} | scopes
            if source in known or target in known.values():
                raise UsageError(f"mapping {rule!r}: {source if source in known else target} has another rule already")
            if len(sides[0]) == 1:
                scopes[source] = target
            else:
                collections[TargetCollection(*sides[0])] = TargetCollection(*sides[1])
        return cls(scopes, collections)

    @property
    def keeps_names(self) -> bool:
        """Whether all collections are replicated under their own names."""
        return not self.scopes and not self.collections

    def check_names(self, known: KnownCollections, source: object) -> None:
        """Check that the source has the scopes and collections of the rules.

        Args:
            known: those of the source.
            source: the source, for the error.

        Raises:
            NoSuchCollection: it lacks one of them.
        """
        missing = [f"scope {name!r}" for name in self.scopes if name not in known.scopes]
        missing += [f"collection {'.'.join(name)!r}" for name in self.collections if name not in known.collections]
        if missing:
            raise NoSuchCollection(f"{source} has no {missing[0]}, which the mapping names")

    def find_target(self, source: TargetCollection) -> TargetCollection | None:
        """Return the collection at the target; None if the source's collection is not replicated."""
        if self.keeps_names:
            return source
        if source in self.collections:
            return self.collections[source]
        scope = self.scopes.get(source.scope)
        return None if scope is None else TargetCollection(scope, source.name)
