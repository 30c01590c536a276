"""The commands of logging in: what penstock.node.login decides, and when it is told."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.errors import NotSupported, TemporaryFailure
from penstock.node.login import Step
from penstock.node.replies import ALONE, GiveUp, Handler, Parked, Resume, reply
from penstock.wire.constants import Opcode, Status
from penstock.wire.frame import Frame

if TYPE_CHECKING:
    from penstock.node.connection import NodeConnection

__all__ = ["HANDLERS"]

logger = logging.getLogger("penstock.node")


def _list(connection: NodeConnection, frame: Frame) -> bytes:
    return reply(frame, value=connection.listener.access.mechanism_list)


def _auth(connection: NodeConnection, frame: Frame) -> bytes:
    """Begin a login. Who was logged in is so no more, whatever comes of it.

    Raises Parked where a password is to be checked, TemporaryFailure where too many wrong ones wait for their answer.
    """
    connection.wait_for_parked()
    if connection.producer is not None:
        raise NotSupported("the streams of this connection belong to its user")
    proving = connection.login.proving(frame.key, frame.value)
    if proving is None:
        return _verdict(connection, frame, _begun(connection, frame))
    answer = connection.node.passwords.ask(connection.host, *proving)
    raise Parked(lambda resume: _Checked(connection, frame, answer, resume).give_up, ALONE)


def _begun(connection: NodeConnection, frame: Frame, fits: bool | None = None) -> Step:
    was = connection.login.acting
    step = connection.login.begin(frame.key, frame.value, fits)
    if connection.login.acting != was and step.status != Status.SUCCESS:
        connection.enter()
    return step


def _step(connection: NodeConnection, frame: Frame) -> bytes:
    connection.wait_for_parked()
    if (name := connection.login.claimed) is not None:
        connection.node.attempts.admit(connection.host, name)
    return _verdict(connection, frame, connection.login.step(frame.key, frame.value))


def _verdict(connection: NodeConnection, frame: Frame, step: Step) -> bytes:
    """Return what a step comes to. Raises Parked where guesses were made from the peer's address before."""
    seconds = connection.node.attempts.after(step, connection.host)
    if not seconds:
        return _told(connection, frame, step)

    def begin(resume: Resume) -> GiveUp:
        return connection.node.loop.call_later(seconds, lambda: resume(_told(connection, frame, step))).cancel

    raise Parked(begin, ALONE)


class _Checked:
    """A login that waits until its password was checked, and then for as long as guesses have to."""

    def __init__(self, connection: NodeConnection, frame: Frame, answer: asyncio.Future[bool], resume: Resume) -> None:
        self._connection = connection
        self._frame = frame
        self._answer = answer
        self._resume = resume
        self._timer: asyncio.TimerHandle | None = None
        self._given_up = False
        answer.add_done_callback(self._known)

    def give_up(self) -> None:
        self._given_up = True  # the answer may be there already, and `_known` on its way
        self._answer.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _known(self, answer: asyncio.Future[bool]) -> None:
        if self._given_up or answer.cancelled():
            return
        if isinstance(error := answer.exception(), TemporaryFailure):
            self._resume(error)
        else:
            step = _begun(self._connection, self._frame, answer.result())
            node = self._connection.node
            self._timer = node.loop.call_later(
                node.attempts.after(step, self._connection.host),
                lambda: self._resume(_told(self._connection, self._frame, step)),
            )


def _told(connection: NodeConnection, frame: Frame, step: Step) -> bytes:
    if step.status == Status.SUCCESS:
        connection.enter()
    elif step.status == Status.EINVAL:
        logger.info("login from %s: %s", connection.peer, step.why)
    elif step.status != Status.AUTH_CONTINUE and step.account is None:
        connection.node.guests.refused_logins.warning(f"login from {connection.peer} refused: {step.why}")
    elif step.status != Status.AUTH_CONTINUE:
        logger.warning("login from %s refused: %s", connection.peer, step.why)
    return reply(frame, step.status, value=step.value)


HANDLERS: dict[Opcode, Handler] = {
    Opcode.SASL_LIST_MECHS: _list,
    Opcode.SASL_AUTH: _auth,
    Opcode.SASL_STEP: _step,
}
