"""Where our node differs from the recorded server on purpose, and what it cannot do yet."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from penstock.node.release import VERSION
from penstock.wire.constants import Status, TapOpaque
from penstock.wire.tap import TapDelete, TapOpaqueMessage
from tests.node.replay import MARKER, NAMES
from tests.node.replay_edits import (
    Edit,
    after_do,
    answered,
    both,
    closed,
    each,
    goes_on,
    instead,
    keys_only,
    more,
    never_referenced,
    no_floor,
    of_memory,
    once,
    only_new,
    refused,
    second_like_first,
    statistics,
    to_the_end,
    with_map,
    without,
    without_cas,
    without_text,
)

__all__ = ["DIFFERENCES", "LOOSE", "NOT_YET", "Difference"]


@dataclass(frozen=True)
class Difference:
    """What our node does instead, and why. edit: makes of a script of theirs one of ours.

    where: the recordings; None: whichever the edit changes.
    """

    why: str
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
"""By kind what our node says instead of what the recorded server said."""


DIFFERENCES: dict[str, Difference] = {
    "texts": Difference(
        "The status of a refusal says it; newer releases do not send these texts either.",
        each(without_text),
    ),
    "deletions": Difference(
        "Who has not said HELLO is told no cas of a deletion, as by memcached.",
        each(without_cas),
    ),
    "memory": Difference(
        "Each of our snapshots shows a document once, wherever it lies: MEMORY | CHECKPOINT, never DISK.",
        each(of_memory),
    ),
    "nru": Difference(
        "How recently a document was used is not kept: 0 for what was written here.", each(never_referenced)
    ),
    "repeats": Difference(
        "A TAP stream sends a change once; theirs began the open checkpoint anew after the backfill.", once
    ),
    "deleted revisions": Difference(
        "A key counts on from its own tombstone; theirs began above that of every tombstone, and said so.",
        no_floor,
    ),
    "purged": Difference(
        "A deletion that is dropped is dropped for all; theirs was still in memory, and so in the stream.",
        without(24, 25, 26),
        where=("dcp_rollback_purged",),
    ),
    "compressed": Difference(
        "Newer releases send compressed values only to who has agreed on that; theirs sent what it had.",
        instead(8, datatype=0, value=b"hello world"),
        where=("dcp_datatypes",),
    ),
    "keys only": Difference("KEYS_ONLY is honoured; theirs passed it over.", keys_only, where=("tap_keys_only_live",)),
    "from now on": Difference(
        "Who asks for what comes gets nothing older; theirs began with the open checkpoint.",
        only_new,
        where=("tap_backfill_now",),
    ),
    "same name of tap": Difference(
        "Who takes a name over is served at once; theirs took more than a second, and the recording ends before.",
        second_like_first,
        where=("tap_same_name",),
    ),
    "filter": Difference(
        "A vbucket that stays in the filter goes on where it is; theirs began all of them anew.",
        goes_on,
        where=("tap_change_vb_filter",),
    ),
    "superfluous body": Difference(
        "What no flag asks for is passed over; theirs sent nothing.",
        more(
            1,
            TapOpaqueMessage(engine_private=bytes((0, 0, 0, TapOpaque.INITIAL_VBUCKET_STREAM)), ttl=255),
            TapOpaqueMessage(engine_private=bytes((0, 0, 0, TapOpaque.CLOSE_BACKFILL)), ttl=255),
        ),
        where=("tap_bad_extra_body",),
    ),
    "prompt": Difference(
        "A change is sent at once; theirs had not sent it when the client left a second later.",
        after_do(TapDelete(key=b"live1", engine_private=bytes(8))),
        where=("tap_checkpoint", "tap_keys_only_live", "tap_support_ack"),
    ),
    "crashes": Difference(
        "Theirs dies of engine-private data of no bytes; ours takes it as none.",
        answered(Status.SUCCESS),
        where=("crash_tap_delete_es0", "crash_tap_mutation_es0"),
    ),
    "exact end": Difference(
        "A snapshot ends where the stream does, as far as there is a change; theirs always completed their checkpoint.",
        to_the_end,
    ),
    "before open": Difference(
        "Newer releases answer EINVAL to a change-stream request without OPEN, and the connection lives on; "
        "releases 4.0 to 5.5 told failover logs without it.",
        answered(Status.EINVAL),
        where=("dcp_before_open", *(f"dcp_no_open_op{code}" for code in ("51", "53", "55", "5a", "5b", "5d"))),
    ),
    "gapless": Difference(
        "A snapshot begins right behind the one before; theirs with the first change that deduplication left.",
        instead(8, extras=MARKER.pack(13, 17, 5)),
        where=("dcp_mem_live_dedup_checkpoint",),
    ),
    "system events": Difference(
        "0x5f was reserved; it is SYSTEM_EVENT now, which cannot be without extras.",
        instead(3, specific=Status.EINVAL),
        where=("dcp_bad_op5f",),
    ),
    "cluster map": Difference(
        "Newer releases say with NOT_MY_VBUCKET who has the vbucket, but not to change streams.",
        each(with_map),
    ),
    "plain cache": Difference(
        "A plain cache has no history whose changes could be told; theirs told over TAP what there was, and ended.",
        refused(Status.NOT_SUPPORTED),
        where=tuple(name for name in NAMES if name.startswith("defengine_tap_")),
    ),
    "version": Difference(
        "The version is ours.",
        instead(37, value=VERSION.encode()),
        where=("setup_vbuckets_and_items",),
    ),
    "statistics": Difference(
        "More is known of vbuckets and streams, but for queues of items, which there are not; booleans are words, "
        "and an opaque is not sent in reverse. The beginning of a checkpoint is no item.",
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
        "The value was passed over; since 6.5 it is a JSON object, so that anything else is EINVAL.",
        instead(1, specific=Status.EINVAL),
        where=("dcp_bad_open_value",),
    ),
    "states": Difference(
        "Newer releases refuse streams of dead and pending vbuckets; theirs had streams of every state.",
        both(*(instead(index, specific=Status.NOT_MY_VBUCKET, value=b"") for index in (9, 12)), without(10, 13)),
        where=("dcp_state_change_stream_end",),
    ),
    "features": Difference(
        "Of the features 1 to 8, these are ours; datatype (1) has come to be two newer ones.",
        instead(1, value=bytes((0, 3, 0, 4, 0, 6, 0, 7, 0, 8))),
        where=("dcp_hello_features",),
    ),
    "datatype": Difference(
        "Datatype (1) has come to be two newer features: it is not agreed on, so no value may have one.",
        both(instead(1, value=b""), *(instead(index, specific=Status.EINVAL, cas=0) for index in (3, 5))),
        where=("tap_datatype_hello",),
    ),
    "flags of open": Difference(
        "Newer releases answer EINVAL to flags that they do not know, and notifiers (2) are among these.",
        refused(Status.EINVAL),
        where=("dcp_notifier", "dcp_open_flags_2", "dcp_open_flags_7", "dcp_open_flags_80000001"),
    ),
    "length of a name": Difference(
        "Newer releases limit the name of a connection to 200 bytes.",
        refused(Status.EINVAL),
        where=("dcp_open_name_250",),
    ),
    "same name": Difference(
        "Who loses its name to another connection is closed at once, not within seconds.",
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
    "consumer": (
        *("crash_dcp_mutation_nmeta_gt_value", "crash_dcp_rollback_5_of_empty", "crash_dcp_rollback_nobody"),
        *("dcp_open_flags_4", "dcp_open_flags_8"),
        *(name for name in NAMES if name.startswith("dcpcons_") and name != "dcpcons_single_readback"),
    ),
}
"""By capability the recordings whose replay needs it."""
