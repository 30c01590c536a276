"""Wait for what happens to a bucket of a node in this process."""

import asyncio

from tests.patience import PATIENCE


def run(node, work):
    """Return the result of `work` on the node's event loop, which owns all of the node but its address."""

    async def on_loop():
        return work()

    return asyncio.run_coroutine_threadsafe(on_loop(), node.loop).result(PATIENCE)


class Watch:
    """Records every event of a bucket."""

    def __init__(self, served):
        self.served = served
        self.happened = asyncio.Event()
        served.listeners.add(self)

    def vbucket_changed(self, vbucket, event):
        self.happened.set()

    async def until(self, condition):
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.happened.clear()
                for vbucket in self.served.store.vbuckets:
                    self.served.add_waiting_stream(Waiter(vbucket, self.happened))
                await self.happened.wait()
        self.served.listeners.discard(self)


class Waiter:
    def __init__(self, vbucket, happened):
        self.vbucket = vbucket
        self.happened = happened

    def wake(self):
        self.happened.set()


def until(node, condition):
    """Wait until something is so of the node's bucket, looking after every change."""
    (served,) = node.buckets.values()

    async def wait():
        await Watch(served).until(condition)

    asyncio.run_coroutine_threadsafe(wait(), node.loop).result(PATIENCE)
