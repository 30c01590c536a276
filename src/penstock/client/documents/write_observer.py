"""Waits until writes are on replicas or on disk, by OBSERVE_SEQNO. It needs no durability levels of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.client.connect.address import Address
from penstock.client.documents.mutation_tokens import MutationToken
from penstock.client.topology.nodes import Nodes
from penstock.client.topology.observed_copies import observe_copies
from penstock.errors import OperationTimeout, UsageError, WriteLost
from penstock.wire.messages.kv import Observed

_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.1


def is_reached(token: MutationToken, copies: Sequence[Observed | None], *, replicas: int, persisted: int) -> bool:
    """Return whether a write is on enough copies.

    Args:
        token: the write.
        copies: the answers of the vbucket's nodes, the active node's first; None: no answer, or of another branch.
        replicas: replicas that must have the write.
        persisted: copies that must have it on disk, the active one included.

    Raises:
        WriteLost: the active node continues another branch, which does not have the write.
    """
    active = copies[0]
    if active is not None and active.last_seqno_of_old is not None and active.last_seqno_of_old < token.seqno:
        raise WriteLost(
            f"vbucket {token.vbucket}: the write at seqno {token.seqno} was rolled back; its branch ends at "
            f"{active.last_seqno_of_old}"
        )
    holding = [copy for copy in copies[1:] if copy is not None and copy.current_seqno >= token.seqno]
    stored = [copy for copy in copies if copy is not None and copy.persisted_seqno >= token.seqno]
    return len(holding) >= replicas and len(stored) >= persisted


class WriteObserver:
    """Asks the nodes of vbuckets until they have some writes.

    Args:
        nodes: the connections.
        address: the bucket.
    """

    def __init__(self, nodes: Nodes, address: Address) -> None:
        self._nodes = nodes
        self._address = address

    async def wait(self, tokens: Iterable[MutationToken], *, replicas: int, persisted: int, timeout: float) -> None:
        """Wait until all writes are on enough replicas and disks.

        Args:
            tokens: the writes.
            replicas: as of `is_reached`.
            persisted: as of `is_reached`.
            timeout: seconds.

        Raises:
            UsageError: a number is negative, or the cluster map has fewer copies of a vbucket.
            WriteLost: a write was rolled back.
            OperationTimeout: the writes are not there in time.
        """
        if min(replicas, persisted) < 0:
            raise UsageError(f"replicas {replicas} and persisted {persisted}, expected 0 or more")
        waiting = [*tokens]
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*(self._wait_for_one(token, replicas, persisted) for token in waiting))
        except TimeoutError:
            raise OperationTimeout(
                f"{len(waiting)} writes: not on {replicas} replicas and {persisted} disks within {timeout:g} s"
            ) from None

    async def _wait_for_one(self, token: MutationToken, replicas: int, persisted: int) -> None:
        pause = _FIRST_PAUSE
        while not is_reached(
            token, await self._observe(token, max(replicas + 1, persisted)), replicas=replicas, persisted=persisted
        ):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _observe(self, token: MutationToken, needed: int) -> list[Observed | None]:
        """Return the answers of the active node and the replicas of a vbucket.

        Raises:
            UsageError: the cluster map has fewer copies than needed.
        """
        timeout = self._address.options.operation_timeout
        branches = {token.vbucket: token.vbuuid}
        observed = await self._nodes.run_with_retry(lambda: observe_copies(self._nodes, branches, timeout))
        copies = observed[token.vbucket]
        if len(copies) < needed:
            raise UsageError(
                f"vbucket {token.vbucket} has {len(copies)} copies in the cluster map, expected {needed} or more"
            )
        return copies
