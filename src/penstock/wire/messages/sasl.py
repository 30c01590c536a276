"""The list of mechanisms, and the exchange of one.

Source: kv_engine docs/BinaryProtocol.md, "SASL"; RFC 4616 (PLAIN), RFC 5802 and 7677 (SCRAM). The exchange stands in
values, passwords and proofs among it: no repr and no `penstock decode` shows them.
"""

from __future__ import annotations

from penstock.wire.codec.layout import MAYBE, PRESENT, Message, Request, Response, message
from penstock.wire.codec.opcodes import Opcode

__all__ = ["SECRETS", "SaslAuth", "SaslListMechs", "SaslReply", "SaslStep"]


SECRETS = frozenset((Opcode.SASL_AUTH, Opcode.SASL_STEP))
"""Commands whose values, asked and answered, are nobody else's business."""


def _without_value(self: Message) -> str:
    return f"{type(self).__name__}(opaque={self.opaque}, key={self.key!r}, value={len(self.value)} bytes)"


@message(Opcode.SASL_LIST_MECHS)
class SaslListMechs(Request):
    """Answered with the names of the mechanisms, the preferred one first, with a space between them."""


@message(Opcode.SASL_AUTH, key=PRESENT, value=MAYBE)
class SaslAuth(Request):
    """Begin to log in. key: the mechanism; value: what the client says first. Answered with SUCCESS, AUTH_ERROR, or
    AUTH_CONTINUE and what the server says to it."""

    __repr__ = _without_value


@message(Opcode.SASL_STEP, key=PRESENT, value=MAYBE)
class SaslStep(Request):
    """Go on with it. key: the mechanism once more; value: what the client says to the server's answer."""

    __repr__ = _without_value


@message(Opcode.SASL_LIST_MECHS, Opcode.SASL_AUTH, Opcode.SASL_STEP, key=MAYBE, value=MAYBE, cas=MAYBE)
class SaslReply(Response):
    """value: what the server says; of SASL_LIST_MECHS the names."""

    __repr__ = _without_value
