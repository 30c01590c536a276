"""Commands of the login: they carry the exchange of penstock.node.auth, and delay answers to guesses."""

from __future__ import annotations

import asyncio
import logging

from penstock.errors import NotSupported, TemporaryFailure
from penstock.node.answers import EXCLUSIVE_BYTES, CancelWait, Parked, Resume
from penstock.node.auth import LoginStep
from penstock.node.session.command_table import NO_LOGIN, CommandTable
from penstock.node.session.replies import encode_reply
from penstock.node.session.session import Session
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.sasl import SaslAuth, SaslListMechs, SaslStep

COMMANDS = CommandTable()

logger = logging.getLogger("penstock.node")


@COMMANDS.serve(needs=NO_LOGIN)
def list_mechanisms(session: Session, request: SaslListMechs) -> bytes:
    """Return the mechanisms of the listener."""
    return encode_reply(request, value=session.listener.access.mechanism_list)


@COMMANDS.serve(needs=NO_LOGIN)
def start_login(session: Session, request: SaslAuth) -> bytes:
    """Start a login. It always ends the previous login.

    Raises:
        Parked: a password must be checked.
        TemporaryFailure: too many wrong passwords wait for their answer.
    """
    session.parked.check_empty()
    if session.endpoint is not None:
        raise NotSupported("the streams of this connection belong to its user")
    check = session.login.find_password_check(request.key, request.value)
    if check is None:
        return _reply_after_delay(session, request, _start_login(session, request))
    answer = session.node.passwords.check(session.host, *check)
    raise Parked(lambda resume: _ParkedLogin(session, request, answer, resume).give_up, EXCLUSIVE_BYTES)


def _start_login(session: Session, request: SaslAuth, fits: bool | None = None) -> LoginStep:
    was = session.login.effective_user
    step = session.login.start(request.key, request.value, fits)
    if session.login.effective_user != was and step.status != Status.SUCCESS:
        session.apply_login()
    return step


@COMMANDS.serve(needs=NO_LOGIN)
def continue_login(session: Session, request: SaslStep) -> bytes:
    """Continue a login with the client's proof."""
    session.parked.check_empty()
    if (name := session.login.claimed_name) is not None:
        session.node.attempts.check_queue(session.host, name)
    return _reply_after_delay(session, request, session.login.proceed(request.key, request.value))


def _reply_after_delay(session: Session, request: SaslAuth | SaslStep, step: LoginStep) -> bytes:
    """Return the reply to a step. Raises Parked if earlier guesses from the peer's address delay it."""
    seconds = session.node.attempts.record_step(step, session.host)
    if not seconds:
        return _finish_step(session, request, step)

    def begin(resume: Resume) -> CancelWait:
        return session.node.loop.call_later(seconds, lambda: resume(_finish_step(session, request, step))).cancel

    raise Parked(begin, EXCLUSIVE_BYTES)


class _ParkedLogin:
    """A login that waits until its password was checked, and then for the delay of guesses."""

    def __init__(self, session: Session, request: SaslAuth, answer: asyncio.Future[bool], resume: Resume) -> None:
        self._session = session
        self._request = request
        self._answer = answer
        self._resume = resume
        self._timer: asyncio.TimerHandle | None = None
        self._given_up = False
        answer.add_done_callback(self._continue_login)

    def give_up(self) -> None:
        """Cancel the login: the connection has ended."""
        self._given_up = True  # the answer may exist already, with `_continue_login` scheduled
        self._answer.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _continue_login(self, answer: asyncio.Future[bool]) -> None:
        if self._given_up or answer.cancelled():
            return
        if isinstance(error := answer.exception(), TemporaryFailure):
            self._resume(error)
        else:
            step = _start_login(self._session, self._request, answer.result())
            node = self._session.node
            self._timer = node.loop.call_later(
                node.attempts.record_step(step, self._session.host),
                lambda: self._resume(_finish_step(self._session, self._request, step)),
            )


def _finish_step(session: Session, request: SaslAuth | SaslStep, step: LoginStep) -> bytes:
    if step.status == Status.SUCCESS:
        session.apply_login()
    elif step.status == Status.EINVAL:
        logger.info("login from %s: %s", session.peer, step.reason)
    elif step.status != Status.AUTH_CONTINUE and step.account is None:
        session.node.connections.refused_login_log.warning(f"login from {session.peer} refused: {step.reason}")
    elif step.status != Status.AUTH_CONTINUE:
        logger.warning("login from %s refused: %s", session.peer, step.reason)
    return encode_reply(request, step.status, value=step.value)
