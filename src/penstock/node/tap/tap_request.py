"""The options of a TAP consumer: its vbuckets, its start, and the form of changes.

Source: TAP, "TAP_CONNECT" and "CHANGE_VB_FILTER"; ep-engine 2.5 tapconnection.cc.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.node.tap_state.tap_checkpoints import TapCheckpoints
from penstock.node.tap_state.tap_clients import TapPhase, TapPosition
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect, VbucketState
from penstock.wire.codec.flags import TapConnectFlag
from penstock.wire.columns.frame_form import FORMS, FrameForm
from penstock.wire.messages.tap import TapOptions


class TapRequest:
    """The options of one TAP_CONNECT.

    Attributes:
        flags: the flags of the request.
        is_dump: whether the connection ends after the present changes.
        registered: whether the client may return after any time.
        acks: whether the consumer acknowledges messages.
        checkpoints: whether checkpoints are announced.
        takes_over: whether the consumer becomes the owner of the vbuckets.
        closed_only: whether only changes of closed checkpoints are sent.
        vbuckets: the requested vbuckets, empty for all.
    """

    def __init__(self, options: TapOptions) -> None:
        flags = options.flags
        self.flags = flags
        self.is_dump = bool(flags & TapConnectFlag.DUMP)
        self.registered = bool(flags & TapConnectFlag.REGISTERED_CLIENT)
        self.acks = bool(flags & TapConnectFlag.SUPPORT_ACK)
        self.takes_over = bool(flags & TapConnectFlag.TAKEOVER_VBUCKETS)
        self.checkpoints = bool(flags & TapConnectFlag.CHECKPOINT)
        self.closed_only = self.registered and options.closed_only
        self.vbuckets = frozenset(options.vbuckets or ())
        self._backfill = options.backfill
        self._closed_checkpoints = dict(
            options.checkpoints or ()
        )  # vbucket -> last checkpoint that the consumer has closed

    def change_filter(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Request other vbuckets from now on.

        Args:
            pairs: (vbucket, last checkpoint that the consumer has closed); empty for all vbuckets.
        """
        self._closed_checkpoints = dict(pairs)
        self.vbuckets = frozenset(self._closed_checkpoints)

    def make_form(self, datatypes: int) -> FrameForm:
        """Return the form of changes.

        Args:
            datatypes: Datatype bits that the connection has agreed on.
        """
        return replace(
            FORMS[Dialect.TAP],
            keys_only=bool(self.flags & TapConnectFlag.REQUEST_KEYS_ONLY),
            datatypes=datatypes,
            reversed_flags=not self.flags & TapConnectFlag.FIX_FLAG_BYTEORDER,
        )

    def includes(self, vbucket: Vbucket, *, bridged: bool) -> bool:
        """Return whether a vbucket is sent.

        Args:
            vbucket: the vbucket.
            bridged: whether the bucket mirrors a bucket of another node.
        """
        if self.vbuckets and vbucket.id not in self.vbuckets:
            return False
        if self.is_dump:  # a dump leaves copies to the active node, but a mirror has only copies
            return vbucket.changes.items > 0 and (vbucket.history.state is VbucketState.ACTIVE or bridged)
        return vbucket.history.state is not None

    def get_first_position(self, vbucket: Vbucket, checkpoints: TapCheckpoints, now: float) -> TapPosition:
        """Return the position at which a new consumer starts.

        Args:
            vbucket: the vbucket.
            checkpoints: the checkpoints of the vbucket.
            now: epoch seconds.
        """
        since = self._closed_checkpoints.get(vbucket.id, 0)
        point = checkpoints.find_start(since + 1) if since else None
        if point is not None:
            return TapPosition(TapPhase.LIVE, vbucket.history.vbuuid, point.seqno)
        if self._backfill is not None and self._backfill >= int(now) and not self.is_dump:
            return TapPosition(TapPhase.LIVE, vbucket.history.vbuuid, vbucket.history.whole_seqno)
        return TapPosition(TapPhase.NEW, vbucket.history.vbuuid)
