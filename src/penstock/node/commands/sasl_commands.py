"""The commands of logging in: what penstock.node.auth decides, and when it is told."""

from __future__ import annotations

import asyncio
import logging

from penstock.errors import NotSupported, TemporaryFailure
from penstock.node.answers import ALONE, GiveUp, Parked, Resume
from penstock.node.auth import Step
from penstock.node.session.replies import reply
from penstock.node.session.session import Handler, Session
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status

__all__ = ["HANDLERS"]

logger = logging.getLogger("penstock.node")


def _list(session: Session, frame: Frame) -> bytes:
    return reply(frame, value=session.listener.access.mechanism_list)


def _auth(session: Session, frame: Frame) -> bytes:
    """Begin a login. Who was logged in is so no more, whatever comes of it.

    Raises Parked where a password is to be checked, TemporaryFailure where too many wrong ones wait for their answer.
    """
    session.parked.check_empty()
    if session.producer is not None:
        raise NotSupported("the streams of this connection belong to its user")
    proving = session.login.proving(frame.key, frame.value)
    if proving is None:
        return _verdict(session, frame, _begun(session, frame))
    answer = session.node.passwords.ask(session.host, *proving)
    raise Parked(lambda resume: _Checked(session, frame, answer, resume).give_up, ALONE)


def _begun(session: Session, frame: Frame, fits: bool | None = None) -> Step:
    was = session.login.acting
    step = session.login.begin(frame.key, frame.value, fits)
    if session.login.acting != was and step.status != Status.SUCCESS:
        session.enter()
    return step


def _step(session: Session, frame: Frame) -> bytes:
    session.parked.check_empty()
    if (name := session.login.claimed) is not None:
        session.node.attempts.admit(session.host, name)
    return _verdict(session, frame, session.login.step(frame.key, frame.value))


def _verdict(session: Session, frame: Frame, step: Step) -> bytes:
    """Return what a step comes to. Raises Parked where guesses were made from the peer's address before."""
    seconds = session.node.attempts.after(step, session.host)
    if not seconds:
        return _told(session, frame, step)

    def begin(resume: Resume) -> GiveUp:
        return session.node.loop.call_later(seconds, lambda: resume(_told(session, frame, step))).cancel

    raise Parked(begin, ALONE)


class _Checked:
    """A login that waits until its password was checked, and then for as long as guesses have to."""

    def __init__(self, session: Session, frame: Frame, answer: asyncio.Future[bool], resume: Resume) -> None:
        self._session = session
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
            step = _begun(self._session, self._frame, answer.result())
            node = self._session.node
            self._timer = node.loop.call_later(
                node.attempts.after(step, self._session.host),
                lambda: self._resume(_told(self._session, self._frame, step)),
            )


def _told(session: Session, frame: Frame, step: Step) -> bytes:
    if step.status == Status.SUCCESS:
        session.enter()
    elif step.status == Status.EINVAL:
        logger.info("login from %s: %s", session.peer, step.why)
    elif step.status != Status.AUTH_CONTINUE and step.account is None:
        session.node.guests.refused_logins.warning(f"login from {session.peer} refused: {step.why}")
    elif step.status != Status.AUTH_CONTINUE:
        logger.warning("login from %s refused: %s", session.peer, step.why)
    return reply(frame, step.status, value=step.value)


HANDLERS: dict[Opcode, Handler] = {
    Opcode.SASL_LIST_MECHS: _list,
    Opcode.SASL_AUTH: _auth,
    Opcode.SASL_STEP: _step,
}
