"""Requests of a member to the other members, with proofs."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable

from penstock.errors import Error, Unreachable
from penstock.node.agreement.agreement_messages import Learn, Reply, Request
from penstock.node.agreement.attempt import Outbox
from penstock.node.membership.member_state import MemberState
from penstock.node.membership.node_messages import (
    PROOF_HEADER,
    FlushReply,
    FlushRequest,
    JoinReply,
    JoinRequest,
    NodeAnswer,
    NodeMessage,
    NodeRequest,
    ReportReply,
    encode_message,
    sign,
    verify_reply,
)
from penstock.node.membership.node_requests import NodeRequests

__all__ = ["AGREEMENT_PATH", "Courier", "MemberLinks"]

logger = logging.getLogger("penstock.node")

AGREEMENT_PATH = "/cluster/agreement"
_REQUEST_SECONDS = 3.0
_LONG_REQUEST_SECONDS = 20.0  # for requests that wait for other nodes, or for buckets that are opened
_HEALTHY_SECONDS = 10.0


class MemberLinks:
    """Sends requests to members.

    Args:
        state: the own state, which answers requests of the node to itself.
        requests: sends requests to other nodes.
        clock: returns seconds, and never goes back.
    """

    def __init__(self, state: MemberState, requests: NodeRequests, clock: Callable[[], float]) -> None:
        self._state = state
        self._requests = requests
        self._clock = clock
        self._answered_at: dict[str, float] = {}

    def is_healthy(self, node: str) -> bool:
        """Return whether a node has answered lately."""
        answered_at = self._answered_at.get(node)
        return node == self._state.node or (answered_at is not None and self._clock() - answered_at < _HEALTHY_SECONDS)

    async def send(self, node: str, request: NodeRequest) -> NodeAnswer:
        """Send a request to a member.

        Returns:
            The reply.

        Raises:
            Error: the node does not answer, or refuses the request.
        """
        place = self._state.find_place(node)
        if place is None:
            raise Unreachable(f"node {node}: no address is known")
        secret, nonce = self._state.secret, secrets.token_hex(16)
        text = encode_message(NodeMessage(self._state.node, node, nonce, request))
        seconds = _LONG_REQUEST_SECONDS if isinstance(request, Learn | JoinRequest | FlushRequest) else _REQUEST_SECONDS
        headers = {PROOF_HEADER: sign(secret, text), "content-type": "application/json"}
        response = await self._requests.post(place, AGREEMENT_PATH, text, headers, seconds=seconds)
        if response.status != 200:
            raise Unreachable(f"node {place.address}: status {response.status}: {response.reason}")
        reply = verify_reply(secret, nonce, response.body, response.headers.get(PROOF_HEADER, ""))
        self._answered_at[node] = self._clock()
        return reply.body

    async def deliver(self, node: str, request: Request) -> Reply | None:
        """Send a request to a member, or answer it here.

        Returns:
            The reply; None if there is none.
        """
        try:
            reply = await (self._state.answer(request) if node == self._state.node else self.send(node, request))
        except Unreachable:
            return None
        except Error as error:
            logger.warning("node %s: %s", node, error)
            return None
        return None if isinstance(reply, JoinReply | FlushReply | ReportReply) else reply


class Courier:
    """Delivers requests to several nodes at once; those to one node in order.

    Args:
        deliver: sends a request, and returns the reply, or None.
    """

    def __init__(self, deliver: Callable[[str, Request], Awaitable[Reply | None]]) -> None:
        self._deliver = deliver
        self._replies: asyncio.Queue[tuple[str, Reply | None]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._expected = 0

    def send(self, outbox: Outbox) -> None:
        """Send requests."""
        for node in dict.fromkeys(node for node, _ in outbox):
            requests = [request for receiver, request in outbox if receiver == node]
            self._expected += len(requests)
            task = asyncio.get_running_loop().create_task(self._send_all(node, requests))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_all(self, node: str, requests: list[Request]) -> None:
        for request in requests:
            self._replies.put_nowait((node, await self._deliver(node, request)))

    async def receive(self) -> tuple[str, Reply] | None:
        """Return the next reply and its sender; None once no more replies are expected."""
        while self._expected:
            node, reply = await self._replies.get()
            self._expected -= 1
            if reply is not None:
                return node, reply
        return None

    def close(self) -> None:
        """Stop sending."""
        for task in self._tasks:
            task.cancel()
