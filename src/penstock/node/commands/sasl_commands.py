"""The commands of logging in: what penstock.node.auth decides, and when it is told."""

from __future__ import annotations

import asyncio
import logging

from penstock.errors import NotSupported, TemporaryFailure
from penstock.node.answers import ALONE, GiveUp, Parked, Resume
from penstock.node.auth import Step
from penstock.node.session.command_table import NO_LOGIN, CommandTable
from penstock.node.session.replies import reply
from penstock.node.session.session import Session
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.sasl import SaslAuth, SaslListMechs, SaslStep

__all__ = ["COMMANDS"]

COMMANDS = CommandTable()

logger = logging.getLogger("penstock.node")


@COMMANDS.serve(needs=NO_LOGIN)
def list_mechanisms(session: Session, request: SaslListMechs) -> bytes:
    return reply(request, value=session.listener.access.mechanism_list)


@COMMANDS.serve(needs=NO_LOGIN)
def begin_login(session: Session, request: SaslAuth) -> bytes:
    """Begin a login. It always ends the previous login.

    Raises Parked where a password is to be checked, TemporaryFailure where too many wrong ones wait for their answer.
    """
    session.parked.check_empty()
    if session.producer is not None:
        raise NotSupported("the streams of this connection belong to its user")
    proving = session.login.proving(request.key, request.value)
    if proving is None:
        return _verdict(session, request, _begun(session, request))
    answer = session.node.passwords.ask(session.host, *proving)
    raise Parked(lambda resume: _Checked(session, request, answer, resume).give_up, ALONE)


def _begun(session: Session, request: SaslAuth, fits: bool | None = None) -> Step:
    was = session.login.acting
    step = session.login.begin(request.key, request.value, fits)
    if session.login.acting != was and step.status != Status.SUCCESS:
        session.enter()
    return step


@COMMANDS.serve(needs=NO_LOGIN)
def continue_login(session: Session, request: SaslStep) -> bytes:
    session.parked.check_empty()
    if (name := session.login.claimed) is not None:
        session.node.attempts.admit(session.host, name)
    return _verdict(session, request, session.login.step(request.key, request.value))


def _verdict(session: Session, request: SaslAuth | SaslStep, step: Step) -> bytes:
    """Return what a step comes to. Raises Parked where guesses were made from the peer's address before."""
    seconds = session.node.attempts.after(step, session.host)
    if not seconds:
        return _told(session, request, step)

    def begin(resume: Resume) -> GiveUp:
        return session.node.loop.call_later(seconds, lambda: resume(_told(session, request, step))).cancel

    raise Parked(begin, ALONE)


class _Checked:
    """A login that waits until its password was checked, and then for as long as guesses have to."""

    def __init__(self, session: Session, request: SaslAuth, answer: asyncio.Future[bool], resume: Resume) -> None:
        self._session = session
        self._request = request
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
            step = _begun(self._session, self._request, answer.result())
            node = self._session.node
            self._timer = node.loop.call_later(
                node.attempts.after(step, self._session.host),
                lambda: self._resume(_told(self._session, self._request, step)),
            )


def _told(session: Session, request: SaslAuth | SaslStep, step: Step) -> bytes:
    if step.status == Status.SUCCESS:
        session.enter()
    elif step.status == Status.EINVAL:
        logger.info("login from %s: %s", session.peer, step.why)
    elif step.status != Status.AUTH_CONTINUE and step.account is None:
        session.node.guests.refused_logins.warning(f"login from {session.peer} refused: {step.why}")
    elif step.status != Status.AUTH_CONTINUE:
        logger.warning("login from %s refused: %s", session.peer, step.why)
    return reply(request, step.status, value=step.value)
