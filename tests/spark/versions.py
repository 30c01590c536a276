"""Changelogs for tests of versions and changes."""

from hypothesis import strategies as st

from penstock.spark.lake.current.table_shape import NEWEST_CAS, OLDEST_CAS
from tests.spark.test_current import histories

START = 1_700_000_000_000_000_000
"""A cas of 2023, in nanoseconds."""
TIMES = st.one_of(st.integers(0, 40).map(lambda n: START + n * 10**9), st.sampled_from([5, -1, NEWEST_CAS, OLDEST_CAS]))
"""Values of a cas: mostly times, which may go back, and numbers that are none."""


@st.composite
def timed_histories(draw, most=40):
    """Rows of a changelog whose cas is often a time; a few documents, so that each has several versions."""
    found = []
    for each in draw(histories(most)):
        if each["event"] not in ("rollback", "flush"):
            each |= {"cas": draw(TIMES)}
        if each.get("key") is not None:
            each |= {
                "key": draw(st.sampled_from([b"a", b"\xff"])),
                "collection_id": draw(st.sampled_from([8, 8, 0, None])),
            }
        found.append(each)
    return found
