"""Requests of an orchestrator to one node, also about vbuckets that are not active there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.client.connect.address import MAX_VBUCKETS, Address
from penstock.client.connect.client_session import ClientSession, open_session, request_node_map
from penstock.client.connect.handshake import DOCUMENTS, Purpose
from penstock.client.connect.node_link import ANY_STATUS, NodeLink, make_refusal_error
from penstock.client.connect.peer_forms import PeerForms, choose_peer_forms
from penstock.client.connect.retry import run_with_retry
from penstock.client.connect.stat_numbers import read_number
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.replication.map_layout import read_version
from penstock.client.replication.node_identity import NodeIdentity, check_identity, read_identity
from penstock.client.topology.vbucket_requests import read_high_seqnos, request_failover_logs, request_high_seqnos
from penstock.digits import read_digits
from penstock.errors import Error, KeyExists, NotMyVbucket, TemporaryFailure, UsageError
from penstock.store.history.failover_log import FailoverLog
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.layout import Request
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import DelVbucket, GetClusterConfig, Version
from penstock.wire.values.peer_json import read_peer_json

T = TypeVar("T")
R = TypeVar("R", bound=Request)

_ABSOLUTE_SEQNO = re.compile(r"vb_(\d{1,5}):abs_high_seqno", re.ASCII)


class NodeControl:
    """A node as an orchestrator sees it: states, seqnos and failover logs of its vbuckets, and its map.

    Every call connects if necessary, and retries as `run_with_retry` does. Calls raise its errors.

    Attributes:
        address: the bucket at this node alone.
    """

    def __init__(self, address: Address, endpoint: Endpoint | None = None, purpose: Purpose = DOCUMENTS) -> None:
        """Create a control without a connection.

        Args:
            address: the bucket.
            endpoint: the node; None: the one host of the address.
            purpose: the features of the connection. With collections, seqnos include those of aborts and system events.

        Raises:
            UsageError: the address has several hosts.
        """
        if endpoint is None and len(address.hosts) > 1:
            raise UsageError(f"{address} has {len(address.hosts)} hosts, expected one node")
        self.address = address if endpoint is None else replace(address, hosts=(endpoint,))
        self._purpose = purpose
        self._session: ClientSession | None = None
        self._connecting = asyncio.Lock()
        self._forms: tuple[ClientSession, PeerForms] | None = None
        """The connection and the forms of its server, which may have another release on the next connection."""

    async def __aenter__(self) -> Self:
        """Connect."""
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.link.close()

    @property
    def endpoint(self) -> Endpoint:
        """Host and port of the node."""
        return self.address.hosts[0]

    async def connect(self) -> ClientSession:
        """Return the connection, after opening it if there is none."""
        return await self._run(self._ensure_session)

    async def _ensure_session(self) -> ClientSession:
        async with self._connecting:
            if self._session is None or self._session.link.closed.done():
                self._session = await open_session(self.address, self._purpose)
            return self._session

    async def _run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await run_with_retry(attempt, self.address, lambda: self._session is not None)

    async def _ask(self, ask: Callable[[NodeLink, float], Awaitable[T]]) -> T:
        """Return the result of a function of the connection and the timeout of a request."""

        async def attempt() -> T:
            return await ask((await self._ensure_session()).link, self.address.options.operation_timeout)

        return await self._run(attempt)

    # Vbuckets

    async def read_states(self) -> dict[int, VbucketState]:
        """Return the states of the vbuckets that the node has."""
        stats = await self._ask(lambda link, timeout: link.request_stats("vbucket", timeout))
        by_name = {state.name.lower(): state for state in VbucketState}
        return {
            number: by_name[text]
            for name, text in stats.items()
            if (number := read_digits(name.removeprefix("vb_"), MAX_VBUCKETS)) is not None and text in by_name
        }

    async def read_seqnos(self) -> dict[int, int]:
        """Return the high seqno of each active vbucket and each replica."""
        count = (await self.connect()).vbuckets
        return await self._ask(lambda link, timeout: request_high_seqnos(link, count, timeout))

    async def read_vbucket_stats(self, group: str, vbucket: int) -> dict[str, str]:
        """Return a group of statistics with those of one vbucket, which may be dead."""

        async def ask(link: NodeLink, timeout: float) -> dict[str, str]:
            try:
                return await link.request_stats(f"{group} {vbucket}", timeout)
            except NotMyVbucket:  # kv_engine reports a dead vbucket only among all
                return await link.request_stats(group, timeout)

        return await self._ask(ask)

    async def read_failover_logs(self, vbuckets: Iterable[int]) -> dict[int, FailoverLog]:
        """Return failover logs, newest entry first. Raises NotMyVbucket for a vbucket that the node does not have."""
        wanted = sorted(vbuckets)
        return await self._ask(lambda link, timeout: request_failover_logs(dict.fromkeys(wanted, link), timeout))

    async def read_stats(self, group: str, *, optional: bool = False) -> dict[str, str]:
        """Return a group of statistics. With `optional`, it is empty if the node does not have the group."""
        return await self._ask(lambda link, timeout: link.request_stats(group, timeout, optional=optional))

    async def set_states(self, vbuckets: Iterable[int], state: VbucketState) -> None:
        """Set the state of vbuckets, and read it back. A missing vbucket is created.

        Raises:
            TemporaryFailure: another program has changed the state meanwhile, or the server ignores the request.
        """
        wanted = sorted(vbuckets)
        if not wanted:
            return
        forms = await self._run(self._choose_forms)
        await self._send_all([forms.make_state_request(vbucket, state) for vbucket in wanted])
        states = await self.read_states()
        for vbucket in (vb for vb in wanted if states.get(vb) is not state):
            found = "missing" if vbucket not in states else states[vbucket].name.lower()
            raise TemporaryFailure(
                f"vbucket {vbucket} is {found} at {self.address} after SET_VBUCKET, expected {state.name.lower()}"
            )

    async def _choose_forms(self) -> PeerForms:
        """Return the forms of requests that the server understands."""
        session = await self._ensure_session()
        if self._forms is None or self._forms[0] is not session:
            timeout = self.address.options.operation_timeout
            reply = await session.link.request(Version(), timeout, accept=ANY_STATUS)
            version = "" if reply.specific else reply.value.decode("ascii", "replace")
            self._forms = session, choose_peer_forms(version, session.features)
        return self._forms[1]

    async def set_chains(self, chains: Mapping[int, Sequence[Sequence[str | None]]], state: VbucketState) -> None:
        """Set the state of vbuckets with their replication chains, for durable writes, in one step.

        A server without durable writes gets the states alone.

        Args:
            chains: vbucket -> its chain, or two while it changes. A chain has the names of nodes, the active node
                first; None for a replica that does not exist.
            state: the state.
        """
        forms = await self._run(self._choose_forms)
        unchained: Iterable[int] = chains
        if forms.has_chains:
            requests = [forms.make_chain_request(vb, state, topology) for vb, topology in sorted(chains.items())]
            refused = await self._send_all(requests, accept=(Status.EINVAL, Status.NOT_SUPPORTED))
            unchained = [request.vbucket for request in refused]
        await self.set_states(unchained, state)

    async def delete_vbuckets(self, vbuckets: Iterable[int]) -> None:
        """Delete vbuckets with their documents. A missing vbucket stays missing."""
        requests = [DelVbucket(vbucket=vbucket) for vbucket in sorted(vbuckets)]
        await self._send_all(requests, accept=(Status.NOT_MY_VBUCKET,))

    async def _send_all(self, requests: Sequence[R], accept: Collection[int] = ()) -> list[R]:
        """Send requests, and return those that the node has refused with an accepted status."""
        replies = await self._ask(lambda link, timeout: link.request_many(requests, timeout, ANY_STATUS))
        refused = []
        for request, reply in zip(requests, replies, strict=True):
            if reply.specific == Status.SUCCESS:
                continue
            if reply.specific not in accept:
                raise make_refusal_error(request, reply)
            refused.append(request)
        return refused

    # The map

    async def read_map(self) -> dict[str, Any]:
        """Return the bucket's cluster map. Raises RemoteProtocolError if the node has none."""
        reply = await self._ask(lambda link, timeout: link.request(GetClusterConfig(), timeout))
        return read_peer_json(reply.value, dict[str, Any], "cluster map")

    async def read_node_map(self) -> dict[str, Any]:
        """Return the map that the node sends without a bucket, which has its own ports. Empty if it has none."""
        text = await self._run(lambda: request_node_map(self.endpoint, self.address))
        return read_peer_json(text, dict[str, Any], "map of the node") if text else {}

    async def push_map(self, document: Mapping[str, Any]) -> None:
        """Send a cluster map, whose `rev` and `revEpoch` are its revision.

        Raises:
            KeyExists: the node has a newer map.
            TemporaryFailure: the node does not have the map afterwards.
        """
        forms, version = await self._run(self._choose_forms), read_version(document)
        if not forms.has_map_revision and (found := read_version(await self.read_map())) > version:
            # Such a server would store an older map too.
            raise KeyExists(f"{self.address} has the map of version {found}, expected {version} at most")
        request = forms.make_map_request(self.address.bucket, document)
        await self._ask(lambda link, timeout: link.request(request, timeout))
        found = read_version(await self.read_map())
        if found < version:
            raise TemporaryFailure(f"{self.address} has the map of version {found} after a push, expected {version}")


async def read_copied_seqnos(node: NodeControl) -> dict[int, int]:
    """Return the newest seqno that each vbucket of a node has. Its high seqno counts the open snapshot of a replica."""
    stats = await node.read_stats("vbucket-seqno")
    found = _ABSOLUTE_SEQNO.fullmatch
    exact = {int(parts[1]): read_number(name, text) for name, text in stats.items() if (parts := found(name))}
    return read_high_seqnos(stats) | exact


async def check_identities(nodes: Iterable[NodeControl]) -> None:
    """Check that addresses lead to different nodes: a host has several names.

    Nodes that do not answer, or not for the bucket, are left out: a node that starts has no buckets yet.

    Raises:
        UsageError: two addresses lead to one node, or to two on copies of one data directory.
    """
    known: dict[str, NodeIdentity] = {}
    others: list[NodeControl] = []  # other servers report no identity
    for node in nodes:
        try:
            identity = read_identity(await node.read_stats(""))
        except (OSError, Error):
            continue
        if identity is not None:
            name = format_endpoint(*node.endpoint)
            check_identity(name, identity, known)
            known[name] = identity
            continue
        for other in others:
            if await _is_same_process(other, node):
                raise UsageError(f"{other.address} and {node.address} are the same node, expected different nodes")
        others.append(node)


async def _is_same_process(node: NodeControl, other: NodeControl) -> bool:
    """Return whether two addresses lead to one process of another server.

    One node has one process, and active vbuckets of one history. Neither alone is enough: processes of two machines may
    have the same number, and a vbucket and its copy have the same history.
    """
    try:
        (stats, states), (other_stats, other_states) = [
            (await each.read_stats(""), await each.read_states()) for each in (node, other)
        ]
        active = [vb for vb in states if states[vb] is other_states.get(vb) is VbucketState.ACTIVE][:1]
        if not active or stats.get("pid") != other_stats.get("pid"):
            return False
        newest, other_newest = [(await each.read_failover_logs(active))[active[0]][0] for each in (node, other)]
    except (OSError, Error):
        return False
    return newest == other_newest
