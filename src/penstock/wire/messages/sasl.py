"""Commands of a login: the list of mechanisms, and the exchange of one.

Source: kv_engine docs/BinaryProtocol.md, "SASL"; RFC 4616 (PLAIN), RFC 5802 and 7677 (SCRAM). Values of the exchange
hold passwords and proofs. No repr and no `penstock decode` shows them.
"""

from __future__ import annotations

from penstock.wire.codec.layout import MAYBE, PRESENT, Message, Request, Response, message
from penstock.wire.codec.opcodes import Opcode

SECRETS = frozenset((Opcode.SASL_AUTH, Opcode.SASL_STEP))
"""Commands whose requests and replies have secret values."""


def _show_without_value(self: Message) -> str:
    return f"{type(self).__name__}(opaque={self.opaque}, key={self.key!r}, value={len(self.value)} bytes)"


@message(Opcode.SASL_LIST_MECHS)
class SaslListMechs(Request):
    """Answered with the names of the mechanisms, the preferred one first, with a space between them."""


@message(Opcode.SASL_AUTH, key=PRESENT, value=MAYBE)
class SaslAuth(Request):
    """Begin a login. The key is the mechanism, the value the client's first message.

    Answered with SUCCESS, with AUTH_ERROR, or with AUTH_CONTINUE and the server's message.
    """

    __repr__ = _show_without_value


@message(Opcode.SASL_STEP, key=PRESENT, value=MAYBE)
class SaslStep(Request):
    """Continue a login. The key is the mechanism again, the value the client's answer to the server's message."""

    __repr__ = _show_without_value


@message(Opcode.SASL_LIST_MECHS, Opcode.SASL_AUTH, Opcode.SASL_STEP, key=MAYBE, value=MAYBE, cas=MAYBE)
class SaslReply(Response):
    """The value is the server's message, or the names that SASL_LIST_MECHS asked for."""

    __repr__ = _show_without_value
