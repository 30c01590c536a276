"""What a TAP consumer has asked for: which vbuckets, from where on, and how their changes look.

Source: TAP, "TAP_CONNECT" and "CHANGE_VB_FILTER"; ep-engine 2.5 tapconnection.cc.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.node.tap_state.tap_checkpoints import Checkpoints
from penstock.node.tap_state.tap_clients import Phase, TapPosition
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect, VbucketState
from penstock.wire.codec.flags import TapConnectFlag
from penstock.wire.columns.frame_form import FORMS, FrameForm
from penstock.wire.messages.tap import TapOptions

__all__ = ["TapRequest"]


class TapRequest:
    """is_dump: it wants what there is, and then the end. registered: it may come back, however late. acks: it answers.

    checkpoints: it is to be told of them; closed_only: of nothing behind the last closed one. listed: the vbuckets it
    wants, all where there is none.
    """

    def __init__(self, options: TapOptions) -> None:
        flags = options.flags
        self.flags = flags
        self.is_dump = bool(flags & TapConnectFlag.DUMP)
        self.registered = bool(flags & TapConnectFlag.REGISTERED_CLIENT)
        self.acks = bool(flags & TapConnectFlag.SUPPORT_ACK)
        self.checkpoints = bool(flags & TapConnectFlag.CHECKPOINT)
        self.closed_only = self.registered and options.closed_only
        self.listed = frozenset(options.vbuckets or ())
        self._backfill = options.backfill
        self._closed = dict(options.checkpoints or ())  # by vbucket the last one that the consumer has closed

    def change_filter(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Want these vbuckets from now on, all where there is none. pairs: (vbucket, the last checkpoint closed)."""
        self._closed = dict(pairs)
        self.listed = frozenset(self._closed)

    def form(self, datatypes: int) -> FrameForm:
        """Return what changes look like. datatypes: those that the connection has agreed on."""
        return replace(
            FORMS[Dialect.TAP],
            keys_only=bool(self.flags & TapConnectFlag.REQUEST_KEYS_ONLY),
            datatypes=datatypes,
            reversed_flags=not self.flags & TapConnectFlag.FIX_FLAG_BYTEORDER,
        )

    def wants(self, vbucket: Vbucket, *, bridged: bool) -> bool:
        """bridged: the bucket is a copy of another node's."""
        if self.listed and vbucket.id not in self.listed:
            return False
        if self.is_dump:  # copies are dumped by their owner, but a bridge is there for nothing else
            return vbucket.changes.items > 0 and (vbucket.history.state is VbucketState.ACTIVE or bridged)
        return vbucket.history.state is not None

    def first_place(self, vbucket: Vbucket, checkpoints: Checkpoints, now: float) -> TapPosition:
        """Return where a consumer begins that has no place yet. checkpoints: the vbucket's. now: epoch seconds."""
        since = self._closed.get(vbucket.id, 0)
        point = checkpoints.start_of(since + 1) if since else None
        if point is not None:
            return TapPosition(Phase.LIVE, vbucket.history.vbuuid, point.seqno)
        if self._backfill is not None and self._backfill >= int(now) and not self.is_dump:
            return TapPosition(Phase.LIVE, vbucket.history.vbuuid, vbucket.history.whole_seqno)
        return TapPosition(Phase.NEW, vbucket.history.vbuuid)
