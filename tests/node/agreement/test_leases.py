"""Leases: the table of stages, and the model in which two nodes never serve a vbucket at the same instant."""

from math import inf

import pytest

from penstock.errors import UsageError
from penstock.node.agreement.acceptor_state import AcceptorState, answer_request
from penstock.node.agreement.agreement_messages import Ask, Known, Learn, Newer, RequestPromise, RequestVote
from penstock.node.agreement.lease import (
    Lease,
    LeaseStage,
    apply_revision,
    check_lease,
    find_stage,
    learn_revision,
    note_vote,
    receive_grant,
)
from penstock.node.agreement.revisions import Ballot, Revision, Vote
from penstock.node.agreement.silence import Silence, change_members, measure_silence, note_renewal
from tests.node.agreement.failover_model import LEASE, TIMEOUT, FailoverModel

FIRST = Revision(1, ("a", "b", "c"), {}, {})
SECOND = Revision(2, ("a", "b", "c"), {}, {})


def make_lease(revision=FIRST, now=0.0):
    return apply_revision(learn_revision(Lease(own="a", seconds=10.0), revision, now), revision.number)


def test_lease_lasts_from_the_sending_of_the_requests_of_a_majority():
    lease = make_lease()
    assert find_stage(lease, 0.0) is LeaseStage.LAPSED
    lease = receive_grant(lease, "a", 1.0, 1.0)
    assert find_stage(lease, 1.0) is LeaseStage.LAPSED
    lease = receive_grant(lease, "b", 2.0, 5.0)
    assert lease.expires_at == 11.0
    assert [find_stage(lease, now) for now in (10.9, 11.0)] == [LeaseStage.HELD, LeaseStage.LAPSED]
    lease = receive_grant(lease, "c", 4.0, 5.0)
    assert lease.expires_at == 12.0
    assert receive_grant(lease, "c", 3.0, 6.0) == lease


def test_returned_lease_is_of_use_with_the_newest_document():
    lease = make_lease()
    for member in "ab":
        lease = receive_grant(lease, member, 0.0, 0.0)
    lease = learn_revision(lease, SECOND, 1.0)
    assert find_stage(lease, 1.0) is LeaseStage.HELD
    for member in "ab":
        lease = receive_grant(lease, member, 20.0, 20.0)
    assert find_stage(lease, 20.0) is LeaseStage.CATCHING_UP
    assert find_stage(apply_revision(lease, 2), 20.0) is LeaseStage.HELD


def test_node_alone_needs_no_lease_and_keeps_serving_when_another_joins():
    lease = make_lease(Revision(1, ("a",), {}, {}))
    assert (find_stage(lease, 1e9), lease.expires_at) == (LeaseStage.ALONE, inf)
    lease = learn_revision(lease, Revision(2, ("a", "b", "c"), {}, {}), 100.0)
    assert [find_stage(lease, now) for now in (100.0, 110.0)] == [LeaseStage.HELD, LeaseStage.LAPSED]


def test_node_of_two_is_alone_while_it_uses_the_newest_revision_and_has_not_voted():
    lease = make_lease(Revision(1, ("a", "b"), {}, {}))
    assert (find_stage(lease, 1e9), lease.expires_at) == (LeaseStage.ALONE, inf)
    voted = note_vote(lease)
    assert find_stage(voted, 0.0) is LeaseStage.LAPSED
    for member in "ab":
        voted = receive_grant(voted, member, 0.0, 0.0)
    assert [find_stage(voted, now) for now in (9.9, 10.0)] == [LeaseStage.HELD, LeaseStage.LAPSED]
    learned = learn_revision(voted, Revision(2, ("a", "b"), {}, {"other": 1}), 20.0)
    assert find_stage(learned, 20.0) is LeaseStage.LAPSED
    assert find_stage(apply_revision(learned, 2), 20.0) is LeaseStage.ALONE
    grown = apply_revision(learn_revision(voted, Revision(2, ("a", "b", "c"), {}, {}), 20.0), 2)
    assert find_stage(grown, 20.0) is LeaseStage.LAPSED


def test_excluded_node_serves_nothing_until_it_is_a_member_with_a_majority_and_the_document():
    lease = make_lease()
    for member in "abc":
        lease = receive_grant(lease, member, 0.0, 0.0)
    lease = learn_revision(lease, Revision(2, ("b", "c"), {}, {}), 1.0)
    assert find_stage(lease, 1.0) is LeaseStage.EXCLUDED
    lease = learn_revision(lease, Revision(3, ("a", "b", "c"), {}, {}), 2.0)
    assert find_stage(lease, 2.0) is LeaseStage.LAPSED
    for member in "ab":
        lease = receive_grant(lease, member, 3.0, 3.0)
    assert find_stage(lease, 3.0) is LeaseStage.CATCHING_UP
    assert find_stage(apply_revision(lease, 3), 3.0) is LeaseStage.HELD


@pytest.mark.parametrize("seconds", [0.0, 0.4, 601.0])
def test_lease_has_limits(seconds):
    with pytest.raises(UsageError, match=r"expected 0\.5 to 600"):
        check_lease(seconds)


def test_acceptor_renews_no_lease_of_a_suspect_until_it_knows_a_later_revision():
    state = AcceptorState(FIRST)
    assert answer_request(state, Ask(1, "b"))[1] == Known(1, grants=True)
    state, _ = answer_request(state, RequestPromise(2, Ballot(1, "x"), ("b",)))
    state, _ = answer_request(state, RequestPromise(2, Ballot(2, "y")))
    assert answer_request(state, Ask(1, "b"))[1] == Known(1)
    assert answer_request(state, Ask(1, "a"))[1] == Known(1, grants=True)
    state, _ = answer_request(state, Learn(SECOND))
    assert answer_request(state, Ask(1, "b"))[1] == Newer(SECOND)
    assert answer_request(state, Ask(2, "b"))[1] == Known(2, grants=True)
    assert answer_request(state, Ask(2, "z"))[1] == Known(2)
    assert answer_request(state, Ask(3, "b"))[1] == Known(2)


def test_silence_begins_again_with_a_change_of_the_members():
    silence = note_renewal(Silence(0.0, ("a", "b")), "b", 5.0)
    assert measure_silence(note_renewal(silence, "z", 6.0), "abz", 8.0) == {"a": 8.0, "b": 3.0, "z": 8.0}
    assert change_members(silence, ("a", "b"), 9.0) == silence
    assert measure_silence(change_members(silence, ("a", "b", "c"), 9.0), "abc", 10.0) == dict.fromkeys("abc", 1.0)


# The model


def test_lost_owner_is_replaced_and_comes_back():
    model = FailoverModel(1)
    model.run(5)
    assert model.list_serving() == ["a"]
    model.cut_off("a")
    model.run(60)
    assert model.failovers == 1
    assert len(model.list_serving()) == 1
    assert model.list_serving() != ["a"]
    model.blocked = set()
    model.run(60)
    assert model.members["a"].lease.stage is LeaseStage.HELD
    assert len(model.list_serving()) == 1


def test_minority_stops_and_goes_on():
    model = FailoverModel(2, size=5)
    model.run(5)
    model.timeout = inf
    model.cut_off("a", "b")
    model.run(LEASE * 2)
    assert model.members["a"].lease.stage is LeaseStage.LAPSED
    assert model.list_serving() == []
    model.blocked = set()
    model.run(LEASE * 2)
    assert model.list_serving() == ["a"]


def test_node_of_two_goes_on_alone_until_it_votes():
    model = FailoverModel(2, size=2)
    model.run(5)
    model.cut_off("a")
    model.run(LEASE * 20)
    assert (model.list_serving(), model.members["a"].lease.stage) == (["a"], LeaseStage.ALONE)
    model.start(model.members["a"])
    model.run(LEASE)
    assert model.list_serving() == ["a"]
    vote = Vote(Ballot(1 << 30, "x"), Revision(2, ("a", "b"), {}, {"owner": "a"}))
    model.answer(model.members["a"], RequestVote(vote))
    assert model.list_serving() == []
    model.start(model.members["a"])
    model.run(LEASE)
    assert model.list_serving() == []
    model.blocked = set()
    model.run(LEASE * 2)
    assert model.list_serving() == ["a"]


def test_abandoned_failover_does_not_keep_the_lease_away():
    model = FailoverModel(3)
    model.timeout = inf
    model.run(5)
    for name in "bc":
        model.answer(model.members[name], RequestPromise(2, Ballot(1, "abandoned"), ("a",)))
    model.run(60)
    assert model.list_serving() == ["a"]
    assert max(model.decided) > 1


def run_schedule(model):
    """Let links, processes and machines fail at random for some minutes."""
    draw = model.random
    for _ in range(40):
        fault = draw.choice(("cut", "cut owner", "pause", "pause owner", "crash", "lose", "heal", "heal"))
        owner = max(model.decided.items())[1].content["owner"]
        name = owner if "owner" in fault else draw.choice(model.names)
        if fault.startswith("cut"):
            model.cut_off(name, *draw.sample(model.names, draw.randrange(2)))
        elif fault.startswith("pause"):
            model.pause(name, draw.choice((1.0, 4.5, 9.0, 20.0)))
        elif fault == "crash":
            model.start(model.members[name])
        elif fault == "lose":
            model.loss = draw.choice((0.1, 0.5))
        else:
            model.blocked, model.loss = set(), 0.0
        model.run(draw.uniform(0.1, 12.0))


@pytest.mark.parametrize(
    ("seed", "members"), [*((seed, None) for seed in range(16)), *((seed, 2) for seed in range(12))]
)
def test_two_nodes_never_serve_at_the_same_instant(seed, members):
    model = FailoverModel(seed, size=3 + seed % 3, members=members)
    run_schedule(model)
    model.blocked, model.loss = set(), 0.0
    model.run(120)
    assert len(model.list_serving()) == 1


def test_the_schedules_reach_failovers():
    models = [FailoverModel(seed, size=3 + seed % 3) for seed in range(5)]
    for model in models:
        run_schedule(model)
    assert sum(model.failovers for model in models) > 5
    assert len(set().union(*(model.served for model in models))) > 2


def test_the_model_finds_two_owners_without_the_check_of_the_silence():
    def finds_them(seed):
        try:
            run_schedule(FailoverModel(seed, check_silence=False, timeout=0.5))
        except AssertionError:
            return True
        return False

    assert any(finds_them(seed) for seed in range(20))


def test_the_model_finds_two_owners_if_a_node_of_two_ignores_its_vote():
    """The other node has another owner with the third member, which the lone node voted for without learning so."""
    model = FailoverModel(1, size=3, members=2, check_votes=False)
    model.timeout = inf
    model.cut_off("c")
    model.run(5)
    grown = Revision(2, ("a", "b", "c"), {}, {"owner": "a"})
    model.cut_off("a")
    for name in "ab":
        model.answer(model.members[name], RequestVote(Vote(Ballot(1 << 30, "x"), grown)))
    for name in "bc":
        model.answer(model.members[name], Learn(grown))
    model.timeout = TIMEOUT
    with pytest.raises(AssertionError, match="serve at"):
        model.run(60)
