"""Mutation tokens: the position of a write in its vbucket's history.

For example, a reader of a table that follows the bucket can wait for this position, and so read its own writes. A node
that does not grant MUTATION_SEQNO sends no tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from penstock.errors import UsageError
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import Request
from penstock.wire.messages.kv import Delete, Set

_TOKEN = Struct(">QQ")  # the layout of StoreReply; decoding the whole reply would cost a tenth of the rate
_BRANCH = slice(8)


class MutationToken(NamedTuple):
    """The position of a write: seqno and branch of its vbucket.

    Attributes:
        vbuuid: the branch, 1 to 2^64 - 1.
        seqno: the change, 1 to 2^64 - 1.
    """

    vbucket: int
    vbuuid: int
    seqno: int


def check_tokens(tokens: object) -> list[MutationToken]:
    """Return tokens as a list. Raises UsageError for other values: for example, `upsert` returns a cas."""
    found = [*tokens] if isinstance(tokens, Iterable) else [tokens]
    writes = [token for token in found if isinstance(token, MutationToken)]
    if len(writes) < len(found):
        (wrong, *_) = (token for token in found if not isinstance(token, MutationToken))
        raise UsageError(f"token {wrong!r}, expected mutation tokens, as bucket.tokens() returns them")
    return writes


class NewestTokens:
    """The newest token of each vbucket."""

    def __init__(self) -> None:
        self._newest: dict[int, bytes] = {}

    def remember(self, requests: Sequence[Request], replies: Sequence[Frame]) -> None:
        """Record the tokens in replies to requests of one kind. Only writes have tokens."""
        if not requests or not isinstance(requests[0], Set | Delete):
            return
        newest = self._newest
        for request, reply in zip(requests, replies, strict=True):
            token = reply.extras
            if len(token) != _TOKEN.size or reply.specific:
                continue
            known = newest.get(request.vbucket)
            # Concurrent calls may process their replies in another order than the node sent them.
            if known is None or known < token or known[_BRANCH] != token[_BRANCH]:
                newest[request.vbucket] = token

    def list_newest(self) -> tuple[MutationToken, ...]:
        """Return the tokens, ordered by vbucket."""
        return tuple(MutationToken(vb, *_TOKEN.unpack(token)) for vb, token in sorted(self._newest.items()))
