"""The kinds of changes, as objects and as columns."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.columns.run_decoder import make_batch
from penstock.wire.columns.schema import Change, ChangeKind, Event, find_kinds

changes = st.builds(
    Change,
    vbucket=st.just(1),
    vbuuid=st.none(),
    seqno=st.none(),
    rev_seqno=st.none() | st.sampled_from([1, 2, 2**64 - 1]),
    cas=st.none(),
    event=st.sampled_from([str(each) for each in Event]),
    **dict.fromkeys(Change._fields[6:], st.none()) | {"history": st.just(0)},
)


def test_kinds_of_a_document():
    def kind(event, rev_seqno=None):
        return Change(1, 2, 3, rev_seqno, event=event).kind

    assert kind(Event.MUTATION, 1) is ChangeKind.CREATED
    assert kind(Event.MUTATION, 2) is ChangeKind.UPDATED
    assert kind(Event.MUTATION) is None
    assert kind(Event.DELETION, 1) is ChangeKind.DELETED
    assert kind(Event.EXPIRATION) is ChangeKind.EXPIRED
    assert kind(Event.ROLLBACK) is kind(Event.CREATE_SCOPE, 1) is None


@given(st.lists(changes, max_size=9))
def test_column_has_the_kinds_of_the_objects(rows):
    assert find_kinds(make_batch(rows)).to_pylist() == [row.kind for row in rows]
