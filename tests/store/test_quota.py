"""A bucket at its memory quota: permanent refusals, and temporary ones that a client should try again."""

from itertools import count

import pytest

from penstock.errors import OutOfMemory, TemporaryFailure
from penstock.store.definition.bucket_settings import BucketSettings
from tests.store.model import make_bucket

QUOTA = 8 << 20
VALUE = bytes(64 * 1024)


def test_a_client_should_try_again_once_deletions_have_left_something_to_free() -> None:
    """A deletion makes later refusals temporary, although the bucket has not measured its memory again since then."""
    bucket = make_bucket()
    bucket.set_settings(BucketSettings(memory_bytes=QUOTA))
    vbucket = bucket.vbuckets[0]
    stored = 0
    with pytest.raises(OutOfMemory):  # noqa: PT012 - the number of the failing call is not known before
        for stored in count():
            vbucket.set(b"key-%d" % stored, VALUE)
    bucket.log.room.compact = lambda: None  # as in a node, where the compaction runs later, beside the commands
    for number in range(40):  # fewer than the changes between two measurements
        vbucket.delete(b"key-%d" % number)
    with pytest.raises(TemporaryFailure):
        vbucket.set(b"again", VALUE)
    assert (bucket.log.quota.errors, bucket.log.quota.temporary_errors) == (1, 1)
