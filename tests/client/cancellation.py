"""Callers that are cancelled at a chosen await, and servers that refuse the requests of bookkeeping."""

import asyncio
import functools

from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from tests.client.old_server import OldServer, reply
from tests.client.restarting import SERVING

_BOOKKEEPING = {Opcode.SUBDOC_MULTI_MUTATION, Opcode.SUBDOC_MULTI_LOOKUP, Opcode.DELETE}


class CancelledAt:
    """Awaits a coroutine, and raises CancelledError in it at one of its awaits, as `Task.cancel` does.

    Args:
        coroutine: the caller.
        at: the number of the await, from 0.
        is_late: cancel it in the turn in which the awaited thing is done, and its result is already there.

    Attributes:
        awaits: the number of awaits so far.
    """

    def __init__(self, coroutine, at, *, is_late):
        self.awaits = 0
        self._coroutine = coroutine
        self._at = at
        self._is_late = is_late

    def __await__(self):
        steps = self._coroutine.__await__()
        resume = functools.partial(steps.send, None)
        while True:
            try:
                awaited = resume()
            except StopIteration as end:
                return end.value
            is_chosen, self.awaits = self.awaits == self._at, self.awaits + 1
            if is_chosen and not self._is_late:
                if awaited is not None:
                    awaited._asyncio_future_blocking = False  # no task waits for it
                resume = functools.partial(steps.throw, asyncio.CancelledError())
                continue
            try:
                value = yield awaited
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                resume = functools.partial(steps.throw, error)
            else:
                resume = functools.partial(steps.send, value)
            if is_chosen:
                resume = functools.partial(steps.throw, asyncio.CancelledError())


async def cancel_at(coroutine, at, *, is_late):
    """Await a coroutine and cancel it at an await; return whether it got so far."""
    try:
        await CancelledAt(coroutine, at, is_late=is_late)
    except asyncio.CancelledError:
        return True
    return False


class RefusingServer(OldServer):
    """A proxy in front of a node that refuses requests for Penstock's own documents.

    Attributes:
        refusals: the statuses of the next answers, the next one first.
        refused: the number of refused requests.
    """

    def __init__(self, node):
        super().__init__(node, SERVING)
        self.refusals = []
        self.refused = 0

    def answer(self, frame):
        if frame.opcode in _BOOKKEEPING and b"_penstock:" in frame.key and self.refusals:
            self.refused += 1
            return reply(frame, Status(self.refusals.pop(0)))
        return super().answer(frame)
