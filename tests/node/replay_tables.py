"""Deliberate differences of our node from the recorded server, as edits of scripts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from penstock.node.cluster.release import VERSION
from penstock.wire.codec.constants import TapOpaque, VbucketState
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.tap import TapDelete, TapOpaqueMessage
from tests.node.replay import ENTRY, MARKER, MUTATION, NAMES
from tests.node.replay_edits import (
    Edit,
    add_after_last_action,
    add_map,
    add_reply,
    answer_with,
    chain_edits,
    check_statistics,
    close_after,
    close_connection,
    edit_each,
    end_at_exact_seqno,
    ignore_deleted_revisions,
    insert_messages,
    keep_connection,
    keep_new_changes,
    mark_disk,
    mark_memory,
    move_frames,
    refuse_all,
    remove_cas,
    remove_error_text,
    remove_frames,
    remove_repeats,
    remove_values,
    remove_vbucket_0,
    replace_fields,
    reset_nru,
    serve_second_connection,
    set_nrus,
)


@dataclass(frozen=True)
class Difference:
    """A deliberate difference from the recorded server. docs/differences.md describes it in a row of the same name.

    Attributes:
        edit: turns the script of the recorded server into the script of our node.
        where: names of the recordings; None for every recording that the edit changes.
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
"""By kind of statistic: our node's text, if it is not the recorded server's; None for no text, "" for any text."""


DIFFERENCES: dict[str, Difference] = {
    "texts": Difference(edit_each(remove_error_text)),
    "deletions": Difference(edit_each(remove_cas)),
    "memory": Difference(edit_each(mark_memory)),
    "pending": Difference(
        replace_fields(9, extras=bytes((VbucketState.PENDING,))),
        where=("dcp_takeover",),
    ),
    "restart": Difference(
        mark_disk(6), where=("dcp_disk_backfill_after_clean_restart", "dcp_disk_backfill_after_sigkill")
    ),
    "compaction": Difference(mark_disk(14, 20), where=("dcp_rollback_purged",)),
    "nru": Difference(edit_each(reset_nru)),
    "repeats": Difference(remove_repeats),
    "deleted revisions": Difference(ignore_deleted_revisions),
    "purged": Difference(
        remove_frames(24, 25, 26),
        where=("dcp_rollback_purged",),
    ),
    "compressed": Difference(
        replace_fields(8, datatype=0, value=b"hello world"),
        where=("dcp_datatypes",),
    ),
    "keys only": Difference(remove_values, where=("tap_keys_only_live",)),
    "from now on": Difference(
        keep_new_changes,
        where=("tap_backfill_now",),
    ),
    "same name of tap": Difference(
        serve_second_connection,
        where=("tap_same_name",),
    ),
    "filter": Difference(
        remove_vbucket_0,
        where=("tap_change_vb_filter",),
    ),
    "superfluous body": Difference(
        insert_messages(
            1,
            TapOpaqueMessage(engine_private=bytes((0, 0, 0, TapOpaque.INITIAL_VBUCKET_STREAM)), ttl=255),
            TapOpaqueMessage(engine_private=bytes((0, 0, 0, TapOpaque.CLOSE_BACKFILL)), ttl=255),
        ),
        where=("tap_bad_extra_body",),
    ),
    "unpersisted": Difference(
        lambda steps: (move_frames(7, 8, behind=11) if len(steps) > 10 else move_frames(3, behind=4))(steps),
        where=("tap_takeover", "tap_takeover_noack"),
    ),
    "prompt": Difference(
        add_after_last_action(TapDelete(key=b"live1", engine_private=bytes(8))),
        where=("tap_checkpoint", "tap_keys_only_live", "tap_support_ack"),
    ),
    "crashes": Difference(
        answer_with(Status.SUCCESS),
        where=("crash_tap_delete_es0", "crash_tap_mutation_es0"),
    ),
    "exact end": Difference(end_at_exact_seqno),
    "before open": Difference(
        answer_with(Status.EINVAL),
        where=("dcp_before_open", *(f"dcp_no_open_op{code}" for code in ("51", "53", "55", "5b", "5d"))),
    ),
    "gapless": Difference(
        replace_fields(8, extras=MARKER.pack(13, 17, 5)),
        where=("dcp_mem_live_dedup_checkpoint",),
    ),
    "system events": Difference(
        replace_fields(3, specific=Status.EINVAL),
        where=("dcp_bad_op5f",),
    ),
    "cluster map": Difference(edit_each(add_map)),
    "plain cache": Difference(
        refuse_all(Status.NOT_SUPPORTED),
        where=tuple(name for name in NAMES if name.startswith("defengine_tap_")),
    ),
    "version": Difference(
        replace_fields(37, value=VERSION.encode()),
        where=("setup_vbuckets_and_items",),
    ),
    "statistics": Difference(
        check_statistics(STATISTICS),
        where=(
            "stats_checkpoint_1",
            "stats_dcp",
            "stats_tap",
            "stats_vbucket-seqno_1",
            "stats_dcp-vbtakeover_4_statconn",
        ),
    ),
    "value of open": Difference(
        replace_fields(1, specific=Status.EINVAL),
        where=("dcp_bad_open_value",),
    ),
    "states": Difference(
        chain_edits(
            *(replace_fields(index, specific=Status.NOT_MY_VBUCKET, value=b"") for index in (9, 12)),
            remove_frames(10, 13),
        ),
        where=("dcp_state_change_stream_end",),
    ),
    "features": Difference(
        replace_fields(1, value=bytes((0, 3, 0, 4, 0, 6, 0, 7, 0, 8))),
        where=("dcp_hello_features",),
    ),
    "datatype": Difference(
        chain_edits(
            replace_fields(1, value=b""), *(replace_fields(index, specific=Status.EINVAL, cas=0) for index in (3, 5))
        ),
        where=("tap_datatype_hello",),
    ),
    "flags of open": Difference(
        refuse_all(Status.EINVAL),
        where=("dcp_notifier", "dcp_open_flags_2", "dcp_open_flags_7", "dcp_open_flags_80000001"),
    ),
    "other opaque": Difference(
        chain_edits(replace_fields(16, specific=Status.KEY_EEXISTS), remove_frames(33)),
        where=("dcpcons_errors",),
    ),
    "closed stream": Difference(
        chain_edits(replace_fields(39, specific=Status.SUCCESS), remove_frames(42)),
        where=("dcpcons_errors",),
    ),
    "flush": Difference(
        answer_with(Status.NOT_SUPPORTED),
        where=("dcp_bad_flush_to_producer", "dcp_no_open_op5a"),
    ),
    "lengths": Difference(
        close_after(2),
        where=("dcp_bad_keylen_gt_body",),
    ),
    "unasked answers": Difference(
        keep_connection,
        where=("dcp_bad_res_unknown_opcode",),
    ),
    "outside snapshot": Difference(
        lambda steps: close_after(15)(steps) if len(steps) < 30 else remove_frames(18, 28, 30)(steps),
        where=("dcpcons_errors", "dcpcons_marker_backwards"),
    ),
    "extended metadata": Difference(
        chain_edits(add_reply(13, Status.EINVAL), add_reply(14, Status.SUCCESS)),
        where=("crash_dcp_mutation_nmeta_gt_value", "dcpcons_mut_nmeta_big"),
    ),
    "received documents": Difference(
        chain_edits(
            # The node would refuse this change for its datatype, and end the stream. See test_consumer.py.
            remove_frames(14, 30),
            replace_fields(27, value=ENTRY.pack(0x7BD1D496035, 0) + ENTRY.pack(0xABCD, 0)),
            set_nrus({29: 0, 31: 0, 32: 3, 33: 9, 35: 0, 36: 0}),
            replace_fields(34, extras=MUTATION.pack(6, 1, 0, 0, 99, 0, 0)),
            replace_fields(35, cas=0x5555),
        ),
        where=("dcpcons_odd_items_readback",),
    ),
    "same name": Difference(
        close_connection("first"),
        where=("dcp_open_same_name",),
    ),
}

LOOSELY_ORDERED: dict[str, int | None] = {
    "dcp_two_vbuckets": 4,
    "dcp_stream_req_errors": 22,
    "tap_checkpoint_ids": None,
}
"""Recordings in which timing decides the order of replies and of frames of different vbuckets.

Only the order of the replies and the order within a vbucket are compared. The number is the index of a request that the
client sent without waiting for earlier replies, or None.
"""
