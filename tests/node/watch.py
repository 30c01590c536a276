"""Functions that run on the event loop of a node in this process, or wait for changes of its bucket."""

import asyncio

from tests.patience import PATIENCE


def run(node, work):
    """Run `work` on the node's event loop, which owns the node's state, and return its result."""
    return node.call(work)


def has_unsent_bytes(node):
    """Return whether a connection of the node waits for its client to read."""
    return node.call(lambda: any(connection.bytes_unsent for connection in node.connections.open_connections))


class Watch:
    """Waits for a condition of a bucket, which is checked after each event and each change."""

    def __init__(self, served):
        self.served = served
        self.happened = asyncio.Event()
        served.listeners[self] = None

    def vbucket_changed(self, vbucket, event):
        self.happened.set()

    async def until(self, condition):
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.happened.clear()
                for vbucket in self.served.store.vbuckets:
                    self.served.add_waiting_stream(Waiter(vbucket, self.happened))
                await self.happened.wait()
        self.served.listeners.pop(self, None)


class Waiter:
    """Waiting stream of a vbucket, which sets an event at the next change."""

    def __init__(self, vbucket, happened):
        self.vbucket = vbucket
        self.happened = happened

    def wake(self):
        self.happened.set()


def until(node, condition):
    """Wait until a condition is true, and check it after each change of the node's only bucket."""
    (served,) = node.buckets.values()

    async def wait():
        await Watch(served).until(condition)

    asyncio.run_coroutine_threadsafe(wait(), node.loop).result(PATIENCE)
