"""The interface of all stores of positions."""

from __future__ import annotations

from abc import ABC, abstractmethod

from penstock.client.positions.saved_positions import SavedPositions


class PositionStore(ABC):
    """Keeps the positions of one consumer. `str(store)` names its place for people.

    The methods raise PositionsUnreadable for content that is not saved positions, and Error for a place that cannot be
    read or written.
    """

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    async def read(self) -> SavedPositions | None:
        """Return the saved positions; None if there are none."""

    @abstractmethod
    async def write(self, saved: SavedPositions) -> None:
        """Replace the saved positions. After a crash the store has the old or the new ones."""

    @abstractmethod
    async def remove(self) -> None:
        """Remove the saved positions, if there are any."""
