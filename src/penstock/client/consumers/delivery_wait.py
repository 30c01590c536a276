"""The wait of a consumer for its next delivery."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from penstock.client.consumers.position_committer import PositionCommitter
from penstock.client.feeds.deliveries import Delivery
from penstock.client.groups.shared_stream import SharedStream
from penstock.client.streams.change_stream import ChangeStream

__all__ = ["wait_for_delivery"]


async def wait_for_delivery(stream: ChangeStream | SharedStream, committer: PositionCommitter) -> Delivery | None:
    """Return the next delivery; None after the end. The last one is processed. Commits by time while it waits."""
    committer.progress.finish_delivery(stream.positions)
    await committer.commit_if_due()
    coming = asyncio.ensure_future(stream.next_delivery())
    try:
        while not coming.done():
            await committer.wait([coming], lambda: committer.progress.finish_delivery(stream.positions))
        delivery = coming.result()
    finally:
        if not coming.done():
            coming.cancel()
            with suppress(asyncio.CancelledError):
                await coming
    if delivery is None:
        committer.progress.finish_delivery(stream.positions)
    else:
        committer.progress.begin_delivery(delivery)
    return delivery
