"""Mutation tokens: where a write is in its vbucket's history.

A reader of a table that follows the bucket, for instance, can wait until that place is reached, and so read its own
writes. A node that does not grant MUTATION_SEQNO gives no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import Request
from penstock.wire.messages.kv import Delete, Set

__all__ = ["MutationToken", "NewestTokens"]

_TOKEN = Struct(">QQ")  # as StoreReply: one layout more, because decoding every reply costs a tenth of the rate
_BRANCH = slice(8)


class MutationToken(NamedTuple):
    """A write: it is change `seqno` of its vbucket, on the branch `vbuuid`. Both are 1..2^64-1."""

    vbucket: int
    vbuuid: int
    seqno: int


class NewestTokens:
    """The newest token of each vbucket, as replies report it."""

    def __init__(self) -> None:
        self._newest: dict[int, bytes] = {}

    def remember(self, requests: Sequence[Request], replies: Sequence[Frame]) -> None:
        """Take in the replies to requests, which are all of one kind; only those of writes have tokens."""
        if not requests or not isinstance(requests[0], Set | Delete):
            return
        newest = self._newest
        for request, reply in zip(requests, replies, strict=True):
            token = reply.extras
            if len(token) != _TOKEN.size or reply.specific:
                continue
            known = newest.get(request.vbucket)
            # Replies of calls that are under way together may come to be looked at in another order.
            if known is None or known < token or known[_BRANCH] != token[_BRANCH]:
                newest[request.vbucket] = token

    def newest(self) -> tuple[MutationToken, ...]:
        """Return the tokens by vbucket."""
        return tuple(MutationToken(vb, *_TOKEN.unpack(token)) for vb, token in sorted(self._newest.items()))
