"""A store at its memory quota: which changes it refuses for good, and which a client should try again."""

from itertools import count

import pytest

from penstock.errors import OutOfMemory, TemporaryFailure
from penstock.store.definition.bucket_settings import BucketSettings
from tests.store.model import new_bucket

QUOTA = 8 << 20
VALUE = bytes(64 * 1024)


def test_a_client_should_try_again_once_deletions_have_left_something_to_free() -> None:
    """The refusals before said that nothing helps; that changes with the deletions, whatever was looked at last."""
    bucket = new_bucket()
    bucket.set_settings(BucketSettings(memory_bytes=QUOTA))
    vbucket = bucket.vbuckets[0]
    stored = 0
    with pytest.raises(OutOfMemory):  # noqa: PT012 - which of them fails is the question
        for stored in count():
            vbucket.set(b"key-%d" % stored, VALUE)
    bucket.log.room.compact = lambda: None  # it is yet to begin, as that of a node, which runs beside the commands
    for number in range(40):  # fewer than the changes between two looks
        vbucket.delete(b"key-%d" % number)
    with pytest.raises(TemporaryFailure):
        vbucket.set(b"again", VALUE)
    assert (bucket.log.quota.errors, bucket.log.quota.temporary_errors) == (1, 1)
