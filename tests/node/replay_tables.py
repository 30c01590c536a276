"""Deliberate differences of our node from the recorded server, as edits of its scripts, and unsupported recordings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from penstock.node.cluster.release import VERSION
from penstock.wire.codec.constants import TapOpaque
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.tap import TapDelete, TapOpaqueMessage
from tests.node.replay import ENTRY, MARKER, MUTATION, NAMES
from tests.node.replay_edits import (
    Edit,
    after_do,
    answered,
    both,
    closed,
    closes_after,
    each,
    goes_on,
    instead,
    keys_only,
    more,
    never_referenced,
    no_floor,
    of_disk,
    of_memory,
    once,
    only_new,
    refused,
    replies,
    second_like_first,
    statistics,
    to_the_end,
    with_map,
    with_nrus,
    without,
    without_cas,
    without_text,
)

__all__ = ["DIFFERENCES", "LOOSE", "NOT_YET", "Difference"]


@dataclass(frozen=True)
class Difference:
    """A deliberate difference from the recorded server. docs/differences.md describes it in a row of the same name.

    Attributes:
        edit: makes of a script of the recorded server the script of this node.
        where: the recordings; None: every recording that the edit changes.
    """

    edit: Edit
    where: Collection[str] | None = None


STATISTICS: dict[str, str | None] = {
    "num_checkpoint_items": "15",
    "ep_dcp_dead_conn_count": "0",
    **{"created": "", "noop_enabled": "false", "noop_wait": "false", "opaque": str(0x2001), "stream_4_state": "open"},
    **dict.fromkeys(
        (
            *("pending_disconnect", "supports_ack", "reserved", "paused", "last_sent_time", "flags"),
            *("ep_dcp_total_queue", "ep_dcp_queue_fill", "ep_dcp_queue_backfillremaining"),
        )
    ),
}
"""By kind: the text of our node in place of the recorded server's."""


DIFFERENCES: dict[str, Difference] = {
    "texts": Difference(each(without_text)),
    "deletions": Difference(each(without_cas)),
    "memory": Difference(each(of_memory)),
    "restart": Difference(
        of_disk(6), where=("dcp_disk_backfill_after_clean_restart", "dcp_disk_backfill_after_sigkill")
    ),
    "compaction": Difference(of_disk(14, 20), where=("dcp_rollback_purged",)),
    "nru": Difference(each(never_referenced)),
    "repeats": Difference(once),
    "deleted revisions": Difference(no_floor),
    "purged": Difference(
        without(24, 25, 26),
        where=("dcp_rollback_purged",),
    ),
    "compressed": Difference(
        instead(8, datatype=0, value=b"hello world"),
        where=("dcp_datatypes",),
    ),
    "keys only": Difference(keys_only, where=("tap_keys_only_live",)),
    "from now on": Difference(
        only_new,
        where=("tap_backfill_now",),
    ),
    "same name of tap": Difference(
        second_like_first,
        where=("tap_same_name",),
    ),
    "filter": Difference(
        goes_on,
        where=("tap_change_vb_filter",),
    ),
    "superfluous body": Difference(
        more(
            1,
            TapOpaqueMessage(engine_private=bytes((0, 0, 0, TapOpaque.INITIAL_VBUCKET_STREAM)), ttl=255),
            TapOpaqueMessage(engine_private=bytes((0, 0, 0, TapOpaque.CLOSE_BACKFILL)), ttl=255),
        ),
        where=("tap_bad_extra_body",),
    ),
    "prompt": Difference(
        after_do(TapDelete(key=b"live1", engine_private=bytes(8))),
        where=("tap_checkpoint", "tap_keys_only_live", "tap_support_ack"),
    ),
    "crashes": Difference(
        answered(Status.SUCCESS),
        where=("crash_tap_delete_es0", "crash_tap_mutation_es0"),
    ),
    "exact end": Difference(to_the_end),
    "before open": Difference(
        answered(Status.EINVAL),
        where=("dcp_before_open", *(f"dcp_no_open_op{code}" for code in ("51", "53", "55", "5a", "5b", "5d"))),
    ),
    "gapless": Difference(
        instead(8, extras=MARKER.pack(13, 17, 5)),
        where=("dcp_mem_live_dedup_checkpoint",),
    ),
    "system events": Difference(
        instead(3, specific=Status.EINVAL),
        where=("dcp_bad_op5f",),
    ),
    "cluster map": Difference(each(with_map)),
    "plain cache": Difference(
        refused(Status.NOT_SUPPORTED),
        where=tuple(name for name in NAMES if name.startswith("defengine_tap_")),
    ),
    "version": Difference(
        instead(37, value=VERSION.encode()),
        where=("setup_vbuckets_and_items",),
    ),
    "statistics": Difference(
        statistics(STATISTICS),
        where=(
            "stats_checkpoint_1",
            "stats_dcp",
            "stats_tap",
            "stats_vbucket-seqno_1",
            "stats_dcp-vbtakeover_4_statconn",
        ),
    ),
    "value of open": Difference(
        instead(1, specific=Status.EINVAL),
        where=("dcp_bad_open_value",),
    ),
    "states": Difference(
        both(*(instead(index, specific=Status.NOT_MY_VBUCKET, value=b"") for index in (9, 12)), without(10, 13)),
        where=("dcp_state_change_stream_end",),
    ),
    "features": Difference(
        instead(1, value=bytes((0, 3, 0, 4, 0, 6, 0, 7, 0, 8))),
        where=("dcp_hello_features",),
    ),
    "datatype": Difference(
        both(instead(1, value=b""), *(instead(index, specific=Status.EINVAL, cas=0) for index in (3, 5))),
        where=("tap_datatype_hello",),
    ),
    "flags of open": Difference(
        refused(Status.EINVAL),
        where=("dcp_notifier", "dcp_open_flags_2", "dcp_open_flags_7", "dcp_open_flags_80000001"),
    ),
    "length of a name": Difference(
        refused(Status.EINVAL),
        where=("dcp_open_name_250",),
    ),
    "outside snapshot": Difference(
        lambda steps: closes_after(15)(steps) if len(steps) < 30 else without(18, 28, 30)(steps),
        where=("dcpcons_errors", "dcpcons_marker_backwards"),
    ),
    "extended metadata": Difference(
        both(replies(13, Status.EINVAL), replies(14, Status.SUCCESS)),
        where=("crash_dcp_mutation_nmeta_gt_value", "dcpcons_mut_nmeta_big"),
    ),
    "received documents": Difference(
        both(
            replies(14, Status.EINVAL),
            without(30),
            instead(27, value=ENTRY.pack(0x7BD1D496035, 0) + ENTRY.pack(0xABCD, 0)),
            with_nrus({29: 0, 31: 0, 32: 3, 33: 9, 35: 0, 36: 0}),
            instead(34, extras=MUTATION.pack(6, 1, 0, 0, 99, 0, 0)),
            instead(35, cas=0x5555),
        ),
        where=("dcpcons_odd_items_readback",),
    ),
    "same name": Difference(
        closed("first"),
        where=("dcp_open_same_name",),
    ),
}

LOOSE: dict[str, int | None] = {"dcp_two_vbuckets": 4, "dcp_stream_req_errors": 22, "tap_checkpoint_ids": None}
"""Recordings in which replies, or frames of other vbuckets, stand among those of a stream: which is first is timing.

Only the order of replies and that within a vbucket are compared. The number is that of a request for which the client
did not wait.
"""

NOT_YET: dict[str, Collection[str]] = {
    "takeover": (
        *("dcp_takeover", "dcp_takeover_no_acks"),
        *("tap_takeover", "tap_takeover_noack"),
    ),
}
"""By capability the recordings whose replay needs it."""
