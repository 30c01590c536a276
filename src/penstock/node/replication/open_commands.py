"""DCP OPEN: makes a connection a producer or a consumer."""

from __future__ import annotations

import json

from penstock.errors import AccessDenied, InvalidArguments
from penstock.node.auth import Privilege
from penstock.node.dialects.dcp_commands import require_ordered_replies
from penstock.node.dialects.dcp_producer import DcpProducer
from penstock.node.replication.dcp_consumer import DcpConsumer
from penstock.node.session.command_table import STREAM, CommandTable
from penstock.node.session.replies import encode_reply
from penstock.node.session.session import Session
from penstock.node.streams.change_producer import require_streamable_bucket
from penstock.wire.codec.constants import MAX_KEY, Dialect, Feature
from penstock.wire.codec.flags import Datatype, OpenFlag
from penstock.wire.messages.dcp import Open

COMMANDS = CommandTable()
"""Commands of which each may be a connection's first change-stream request."""

# Flags that this node offers. Any other bit is EINVAL, also bits that only older releases had (notifiers). Plain
# numbers: `~` of an IntFlag has named bits only.
_OFFERED = int(
    OpenFlag.PRODUCER
    | OpenFlag.INCLUDE_XATTRS
    | OpenFlag.NO_VALUE
    | OpenFlag.INCLUDE_DELETE_TIMES
    | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
    | OpenFlag.INCLUDE_DELETED_USER_XATTRS
    | OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL
)
_WITHOUT_VALUES = OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
# Flag -> a flag that must be set with it.
_REQUIRED_FLAGS = (
    (OpenFlag.INCLUDE_DELETED_USER_XATTRS, OpenFlag.INCLUDE_XATTRS),
    (OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL, OpenFlag.PRODUCER),
)
_CONSUMER_NAME = "consumer_name"


@COMMANDS.serve(needs=STREAM)
def open_connection(session: Session, request: Open) -> bytes:
    """Return the reply to OPEN: the connection is a producer from now on, or without PRODUCER a consumer.

    A consumer also needs the privilege of replication.
    """
    require_ordered_replies(session)
    if session.endpoint is not None:
        raise InvalidArguments("a second DCP OPEN")
    longest = MAX_KEY + (Feature.COLLECTIONS in session.features)  # the limit of all keys in kv_engine's validators
    if len(request.key) > longest:
        raise InvalidArguments(f"name of {len(request.key)} bytes, limit {longest}")
    _check_flags(request.flags)
    consumer_name = _read_consumer_name(request)
    produces = bool(request.flags & OpenFlag.PRODUCER)
    bucket = require_streamable_bucket(session)
    if produces:
        session.endpoint = DcpProducer(session, bucket, request.key, OpenFlag(request.flags))
    else:
        if not session.has_privilege(Privilege.REPLICATE):
            raise AccessDenied("DCP OPEN of a consumer needs the privilege REPLICATE")
        session.endpoint = DcpConsumer(session, bucket, request.key, request.flags, consumer_name)
        session.output.receive_runs(Dialect.DCP)
    session.datatypes |= int(Datatype.JSON)
    session.choose_handlers()
    return encode_reply(request)


def _check_flags(flags: int) -> None:
    if flags & _WITHOUT_VALUES == _WITHOUT_VALUES:
        raise InvalidArguments("NO_VALUE and NO_VALUE_WITH_UNDERLYING_DATATYPE: expected at most one of them")
    for flag, needed in _REQUIRED_FLAGS:
        if flags & flag and not flags & needed:
            raise InvalidArguments(f"{flag.name} without {needed.name}")
    if unknown := flags & ~_OFFERED:
        raise InvalidArguments(f"flags 0x{flags:x}, of which 0x{unknown:x} are unknown")


def _read_consumer_name(request: Open) -> str:
    """Return the name of a consumer in the topology of vbuckets; empty if the request has none.

    Raises:
        InvalidArguments: a value that is no JSON object, or has another field than `consumer_name`, or has this field
            in the request of a producer.
    """
    if not request.value and not request.datatype:
        return ""
    try:
        fields = json.loads(bytes(request.value)) if request.datatype == Datatype.JSON else None
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"value of OPEN: {error}") from error
    produces = bool(request.flags & OpenFlag.PRODUCER)
    known = {_CONSUMER_NAME: str}.items()
    if not isinstance(fields, dict) or not known >= _list_types(fields).items() or (produces and fields):
        raise InvalidArguments(
            f"value of {len(request.value)} bytes with datatype 0x{request.datatype:02x}, expected none, or of a "
            f"consumer a JSON object with {_CONSUMER_NAME}"
        )
    return str(fields.get(_CONSUMER_NAME, ""))


def _list_types(fields: dict[str, object]) -> dict[str, type]:
    return {name: type(value) for name, value in fields.items()}
