"""Features of HELLO and settings of DCP that a server has or lacks, and the losses without them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from penstock.cli.doctor.finding import Finding, FindingState
from penstock.client.connect.address import Address
from penstock.client.connect.client_session import ClientSession, open_session
from penstock.client.connect.node_link import ANY_STATUS
from penstock.client.filters.change_filter import ChangeFilter
from penstock.client.filters.filter_control import FILTER_SETTING, encode_filter
from penstock.errors import Error
from penstock.version import __version__
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Control
from penstock.wire.messages.kv import Hello, pack_features, unpack_features


class Ability(NamedTuple):
    """Something that a server may be able to do.

    Attributes:
        name: its name in sentences.
        features: the features of HELLO that it needs.
        loss: the consequence without it, for users.
    """

    name: str
    features: frozenset[Feature]
    loss: str


_ABILITIES = (
    Ability(
        "collections",
        frozenset((Feature.COLLECTIONS,)),
        "only the default collection exists: --scope, --collection and dumps of several collections fail",
    ),
    Ability(
        "durable writes",
        frozenset((Feature.ALT_REQUEST, Feature.SYNC_REPLICATION)),
        "writes with durability= are refused; use wait_for with the tokens of a write",
    ),
    Ability(
        "mutation tokens",
        frozenset((Feature.MUTATION_SEQNO,)),
        "a write returns no vbuuid and seqno, so that no consumer can wait for it",
    ),
    Ability("extended attributes", frozenset((Feature.XATTR,)), "xattrs=true has no effect"),
    Ability("compression", frozenset((Feature.SNAPPY,)), "streams are larger: --compression has no effect"),
    Ability(
        "pushed cluster maps",
        frozenset((Feature.DUPLEX, Feature.CLUSTERMAP_CHANGE_NOTIFICATION)),
        "a client learns of moved vbuckets later, by refused requests",
    ),
)

_CONTROLS: Sequence[tuple[str, str, str, str]] = (
    ("change_streams", "true", "change history", "changeHistory=true has no effect: versions are deduplicated"),
    (
        "enable_out_of_order_snapshots",
        "true",
        "first snapshots out of order (OSO)",
        "--out-of-order has no effect: the first snapshot of a collection takes longer",
    ),
    ("enable_expiry_opcode", "true", "expirations", "expired documents are shown as deletions"),
    ("flatbuffers_system_events", "true", "settings of collections", "events of collections lack changed settings"),
    (
        FILTER_SETTING,
        encode_filter(ChangeFilter(key="^penstock-doctor-")).decode(),
        "filters on the server",
        "--filter-key and --filter-value work, but all changes travel over the network",
    ),
)
"""Setting of DCP, its value, its name in sentences, and the loss without it."""


async def check_features(finding: Callable[..., Finding], address: Address) -> AsyncIterator[Finding]:
    """Yield the features that the server grants to a connection of its own, and those that it lacks."""
    wanted = sorted({feature for ability in _ABILITIES for feature in ability.features})
    try:
        session = await open_session(address)
    except (Error, OSError) as error:
        yield finding("features", FindingState.WARNING, f"features cannot be read: {error}")
        return
    try:
        hello = Hello(key=f"penstock/{__version__} doctor".encode(), value=pack_features([Feature.XERROR, *wanted]))
        reply = await session.link.request(hello, address.options.operation_timeout, accept=ANY_STATUS)
        granted = set() if reply.specific else set(unpack_features(reply.value))
    finally:
        await session.link.close()
    lacking = [ability for ability in _ABILITIES if not ability.features <= granted]
    present = ", ".join(ability.name for ability in _ABILITIES if ability not in lacking)
    if present:
        yield finding("features", FindingState.OK, f"the server has {present}")
    for ability in lacking:
        yield _describe_lack(finding, ability.name, ability.loss)


async def check_controls(
    finding: Callable[..., Finding], session: ClientSession, timeout: float
) -> AsyncIterator[Finding]:
    """Yield the settings of DCP that the server accepts on this connection, and those that it lacks."""
    accepted: list[str] = []
    lacking = []
    for setting, value, name, loss in _CONTROLS:
        request = Control(key=setting.encode(), value=value.encode())
        reply = await session.link.request(request, timeout, accept=ANY_STATUS)
        if reply.specific == Status.SUCCESS:
            accepted.append(name)
        else:
            lacking.append((name, loss))
    if accepted:
        yield finding("stream settings", FindingState.OK, f"streams have {', '.join(accepted)}")
    for name, loss in lacking:
        yield _describe_lack(finding, name, loss)


def _describe_lack(finding: Callable[..., Finding], name: str, loss: str) -> Finding:
    return finding(f"lacks {name}", FindingState.INFO, f"the server has no {name}", loss)
