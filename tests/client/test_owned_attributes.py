"""Attributes of one writer, over any sequence of writes with lost answers, late executions and other writers."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.documents.document_attributes import AttributeVersion
from penstock.client.positions.owned_attributes import OwnedAttributes
from penstock.errors import Unreachable
from tests.examples import scaled


class Documents:
    """The attributes of a bucket, whose next write can lose its answer.

    Attributes:
        found: key -> version.
        fate: what happens to the next write: `answered`, `executed` and lost, `lost` before it is executed, or `late`:
            executed after the next write.
    """

    def __init__(self):
        self.found = {}
        self.cas = 0
        self.fate = "answered"
        self._late = []

    async def read_many(self, keys):
        return [self.found.get(key) for key in keys]

    async def write_many(self, items):
        raise NotImplementedError

    async def replace_many(self, items):
        fate, self.fate = self.fate, "answered"
        if fate in ("answered", "executed"):
            late, self._late = self._late, []
            written = {key: self.write(key, new) for key, new in items.items()}
            for key, new in late:
                self.write(key, new)
            if fate == "answered":
                return written
        elif fate == "late":
            self._late += items.items()
        if fate == "executed":
            raise asyncio.CancelledError
        raise Unreachable(fate)

    def write(self, key, new):
        old = self.found.get(key, AttributeVersion(b"", 0))
        if old.cas != new.cas:
            return None
        self.cas += 1
        self.found[key] = AttributeVersion(new.value, self.cas)
        return self.cas


async def write(own, value):
    """Return the refused keys; None if the answer was lost."""
    try:
        return await own.replace({"k": value})
    except (Unreachable, asyncio.CancelledError):
        return None


@settings(max_examples=scaled(200), deadline=None)
@given(fates=st.lists(st.sampled_from(["answered", "executed", "lost", "late"]), max_size=8))
def test_write_after_lost_answers_succeeds(fates):
    async def main():
        documents = Documents()
        own = OwnedAttributes(documents)
        await own.read(["k"])
        for number, fate in enumerate(fates):
            documents.fate = fate
            assert not await write(own, b"%d" % number)
        assert await write(own, b"last") == set()
        assert documents.found["k"].value == b"last"

    asyncio.run(main())


@pytest.mark.parametrize("fate", ["answered", "executed", "lost"])
def test_version_of_another_writer_is_never_replaced(fate):
    async def main():
        documents = Documents()
        own, other = OwnedAttributes(documents), OwnedAttributes(documents)
        documents.fate = fate
        await write(own, b"own")
        await other.read(["k"])
        assert await write(other, b"other") == set()
        assert await write(own, b"own again") == {"k"}
        assert documents.found["k"].value == b"other"

    asyncio.run(main())
