"""Messages between members, with proofs that the sender knows the secret of the cluster. Pure.

A message may be recorded and sent again: the agreement is made for repeated messages. A request to join adds no known
node, and a flush has a number of its own. A reply answers one request only, because its proof covers the number that
the request has drawn.
"""

from __future__ import annotations

import hmac

import msgspec
from msgspec import Struct

from penstock.errors import AuthenticationFailed
from penstock.node.agreement.agreement_messages import Reply, Request
from penstock.node.membership.cluster_document import ClusterNode
from penstock.node.membership.failover_decision import MemberReport
from penstock.wire.values.peer_json import read_peer_json

__all__ = [
    "PROOF_HEADER",
    "FlushReply",
    "FlushRequest",
    "JoinReply",
    "JoinRequest",
    "NodeAnswer",
    "NodeMessage",
    "NodeReply",
    "NodeRequest",
    "ReportReply",
    "ReportRequest",
    "encode_message",
    "sign",
    "verify_reply",
    "verify_request",
]

PROOF_HEADER = "x-penstock-proof"


class JoinRequest(Struct, frozen=True, tag="join"):
    """Asks to add a node that knows the secret."""

    node: ClusterNode


class JoinReply(Struct, frozen=True, tag="joined"):
    """Answers JoinRequest: a revision lists the node."""

    number: int


class FlushRequest(Struct, frozen=True, tag="flush"):
    """Asks a node to delete the documents of a bucket that it has.

    Attributes:
        bucket: name of the bucket.
        uuid: uuid of the bucket.
        number: number of the flush in the document. The node carries out each number once.
    """

    bucket: str
    uuid: str
    number: int


class FlushReply(Struct, frozen=True, tag="flushed"):
    """Answers FlushRequest: the node has no documents of the bucket."""


class ReportRequest(Struct, frozen=True, tag="report"):
    """Asks for a report about a lost member."""

    lost: str


class ReportReply(Struct, frozen=True, tag="reported"):
    """Answers ReportRequest."""

    report: MemberReport


NodeRequest = Request | JoinRequest | FlushRequest | ReportRequest
NodeAnswer = Reply | JoinReply | FlushReply | ReportReply


class NodeMessage(Struct, frozen=True):
    """A request of a member.

    Attributes:
        sender: id of the node that sends it.
        receiver: id of the node that it is for; empty: any member.
        nonce: a random text, for the proof of the reply.
        body: the request.
    """

    sender: str
    receiver: str
    nonce: str
    body: NodeRequest


class NodeReply(Struct, frozen=True):
    """A reply to a member."""

    body: NodeAnswer


def sign(secret: str, text: bytes, nonce: str = "") -> str:
    """Return the proof of a text. With a nonce it is the proof of a reply.

    Args:
        secret: the secret of the cluster, in hexadecimal.
        text: the JSON of the message.
        nonce: the nonce of the request, empty for a request.
    """
    return hmac.new(bytes.fromhex(secret), nonce.encode() + b"\0" + text, "sha256").hexdigest()


def verify_request(secret: str, node: str, text: bytes, proof: str) -> NodeMessage:
    """Return the message in a text that a member has sent to a node.

    Raises:
        AuthenticationFailed: the proof is wrong, or the message is for another node.
        RemoteProtocolError: the message is malformed.
    """
    _check_proof(sign(secret, text), proof)
    message = read_peer_json(text, NodeMessage, "message of a node")
    if message.receiver not in ("", node):
        raise AuthenticationFailed("a message for another node")
    return message


def verify_reply(secret: str, nonce: str, text: bytes, proof: str) -> NodeReply:
    """Return the reply in a text that a member has sent.

    Raises:
        AuthenticationFailed: the proof is wrong.
        RemoteProtocolError: the reply is malformed.
    """
    _check_proof(sign(secret, text, nonce), proof)
    return read_peer_json(text, NodeReply, "reply of a node")


def _check_proof(expected: str, proof: str) -> None:
    if not hmac.compare_digest(expected.encode(), proof.encode()):
        raise AuthenticationFailed("the proof of a node is wrong: it does not know the secret of the cluster")


def encode_message(message: NodeMessage | NodeReply) -> bytes:
    """Return the JSON of a message."""
    return msgspec.json.encode(message)
