"""Commands whose change needs the agreement of a cluster: they are answered once it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.errors import Error, StatusError, TemporaryFailure
from penstock.node.answers import CancelWait, Resume

__all__ = ["await_change"]


def await_change(change: Callable[[], Awaitable[object]], reply: bytes, resume: Resume) -> CancelWait:
    """Reply once the members of the cluster have agreed on a change. Returns the function that ends the wait."""

    async def run() -> None:
        answer: bytes | StatusError = reply
        try:
            await change()
        except StatusError as error:
            answer = error
        except Error as error:
            answer = TemporaryFailure(str(error))
        resume(answer)

    task = asyncio.get_running_loop().create_task(run())

    def cancel() -> None:
        task.cancel()

    return cancel
