"""Transports of the simulated network keep the contracts of asyncio's transports."""

import asyncio
from random import Random

import pytest

from tests.simulation.network import Network
from tests.simulation.virtual_loop import Process, Stalled, VirtualLoop

DATA = bytes(range(256)) * 40


class Recorder(asyncio.BufferedProtocol):
    """Records the calls of a transport; its buffer is small."""

    def __init__(self):
        self.calls = []
        self.data = b""
        self.ended = asyncio.Event()
        self._buffer = bytearray(100)

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self._buffer

    def buffer_updated(self, nbytes):
        self.data += self._buffer[:nbytes]

    def eof_received(self):
        self.calls.append("eof")

    def pause_writing(self):
        self.calls.append("pause")

    def resume_writing(self):
        self.calls.append("resume")

    def connection_lost(self, exc):
        self.calls.append(type(exc).__name__ if exc else "lost")
        self.ended.set()


def simulate(story, seed=1):
    """Run a story of two connected protocols, their link and the network."""
    loop = VirtualLoop()
    network = Network(loop, seed, lambda *segment: None)
    processes = [Process(name, f"127.0.0.{number}", Random(number)) for number, name in enumerate(("client", "server"))]
    accepted = []

    def accept():
        accepted.append(Recorder())
        return accepted[-1]

    async def listen():
        network.bind(loop, "127.0.0.1", 5, accept).start()

    async def run():
        await loop.spawn(processes[1], listen())
        _, near = await loop.create_connection(Recorder, "127.0.0.1", 5)
        await asyncio.sleep(1)
        await story(near, accepted[0], network.find_link("127.0.0.0", "127.0.0.1"), network)

    loop.run_until_complete(loop.spawn(processes[0], run()))
    assert not loop.failures
    loop.close()


@pytest.mark.parametrize("seed", range(8))
def test_data_arrives_in_order_and_the_end_after_it(seed):
    async def story(near, far, link, network):
        near.transport.write(DATA)
        near.transport.write(DATA)
        near.transport.close()
        assert near.transport.is_closing()
        near.transport.write(b"lost")
        await asyncio.gather(near.ended.wait(), far.ended.wait())
        assert far.data == DATA + DATA
        assert far.calls == ["eof", "lost"]
        assert near.calls == ["lost"]

    simulate(story, seed)


def test_reader_that_pauses_pauses_the_writer():
    async def story(near, far, link, network):
        link.window = 200
        near.transport.set_write_buffer_limits(1000)
        far.transport.pause_reading()
        near.transport.write(DATA)
        await asyncio.sleep(1)
        assert (near.calls, far.data) == (["pause"], b"")
        assert near.transport.get_write_buffer_size() == len(DATA) - 200
        far.transport.resume_reading()
        await asyncio.sleep(10)
        assert (near.calls, far.data) == (["pause", "resume"], DATA)

    simulate(story)


def test_cut_link_holds_data_and_new_connections():
    async def story(near, far, link, network):
        link.cut()
        near.transport.write(DATA)
        connecting = asyncio.ensure_future(asyncio.get_running_loop().create_connection(Recorder, "127.0.0.1", 5))
        await asyncio.sleep(100)
        assert (far.data, connecting.done()) == (b"", False)
        link.heal()
        await asyncio.sleep(10)
        assert (far.data, connecting.done()) == (DATA, True)

    simulate(story)


def test_abort_resets_the_peer():
    async def story(near, far, link, network):
        far.transport.write(DATA)
        near.transport.abort()
        await asyncio.gather(near.ended.wait(), far.ended.wait())
        assert (near.calls, far.calls) == (["lost"], ["ConnectionResetError"])

    simulate(story)


def test_dead_process_runs_no_callback():
    async def story(near, far, link, network):
        process = far.transport.process
        process.kill()
        network.end_process(process, silent=False)
        near.transport.write(DATA)
        await near.ended.wait()
        assert (near.calls, far.calls, far.data) == (["ConnectionResetError"], [], b"")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().create_connection(Recorder, "127.0.0.1", 5)

    simulate(story)


def test_loop_without_a_timer_is_stalled():
    loop = VirtualLoop()
    with pytest.raises(Stalled):
        loop.run_until_complete(loop.create_future())
    loop.close()
