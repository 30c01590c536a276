"""The pure parts of moves and failovers: layouts of maps, plans of a balance, the choice of a replica."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.cluster.replica_choice import (
    NodeReport,
    ReplicaReport,
    choose_replica,
    find_owner,
    plan_promotion,
)
from penstock.client.connect.cluster_map import parse_cluster_map
from penstock.client.replication.map_layout import (
    MapLayout,
    MapNode,
    find_next_version,
    make_map_document,
    read_map_layout,
    read_own_address,
    read_own_node,
)
from penstock.client.topology.balance_plan import plan_balance
from penstock.errors import RemoteProtocolError
from penstock.node.cluster.own_map import dump_json
from penstock.store.history.failover_log import FailoverLog, create_entry
from penstock.wire.codec.constants import VbucketState
from penstock.wire.messages.kv import FailoverEntry

NODES = [MapNode((f"10.0.0.{at}", 11210), {"kv": 11210, "mgmt": 8091}) for at in range(4)] + [
    MapNode(("fd00::1", 11210), {"kv": 11210, "kvSSL": 11207, "mgmt": 8091})
]


@st.composite
def layouts(draw):
    nodes = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=4, unique_by=lambda node: node.endpoint))
    chain = st.tuples(*[st.integers(-1, len(nodes) - 1)] * 2)
    return MapLayout(tuple(nodes), tuple(draw(st.lists(chain, min_size=1, max_size=8))))


@given(layouts(), st.data())
def test_map_of_a_layout_is_read_by_clients_and_orchestrators(layout, data):
    own = data.draw(st.sampled_from(layout.nodes)).endpoint
    document = make_map_document({"name": "beer", "rev": 3, "revEpoch": 1}, layout, (2, 9), own)
    assert (document["rev"], document["revEpoch"], document["name"]) == (9, 2, "beer")
    assert read_map_layout(document, own) == layout
    found = parse_cluster_map(dump_json(document), own)
    assert found is not None
    assert found.endpoints == tuple(node.endpoint for node in layout.nodes)
    if len(layout.nodes) > 1:
        assert found.owners == tuple(chain[0] for chain in layout.chains)
    marked = [entry["hostname"] for entry in document["nodesExt"] if "thisNode" in entry]
    assert marked == [own[0]]


@given(layouts(), st.data())
def test_removed_node_has_no_vbuckets_and_others_keep_theirs(layout, data):
    gone = data.draw(st.sampled_from(layout.nodes))
    rest = layout.remove_node(gone.endpoint)
    assert rest.find_node(gone.endpoint) == -1
    for before, after in zip(layout.chains, rest.chains, strict=True):
        for old, new in zip(before, after, strict=True):
            expected = None if old < 0 or layout.nodes[old] == gone else layout.nodes[old]
            assert (rest.nodes[new] if new >= 0 else None) == expected
    assert rest.remove_node(gone.endpoint) is rest


def test_new_owner_is_no_replica_any_more():
    layout = MapLayout(tuple(NODES[:3]), ((0, 1, 2), (1, 0, -1)))
    assert layout.set_owners({0: 2, 1: -1}).chains == ((2, 1, -1), (-1, 0, -1))
    assert layout.list_owned(1) == [1]
    assert layout.add_nodes(NODES[:4]).nodes == tuple(NODES[:4])


def test_placeholder_is_the_dialled_host():
    document = {"vBucketServerMap": {"serverList": ["$HOST:11210"], "vBucketMap": [[0]]}}
    assert read_map_layout(document, ("fd00::7", 9)).nodes == (MapNode(("fd00::7", 11210), {"kv": 11210}),)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"vBucketServerMap": {"serverList": [], "vBucketMap": []}},
        {"vBucketServerMap": {"serverList": ["a:1"], "vBucketMap": [[1]]}},
        {"vBucketServerMap": {"serverList": ["a:1"], "vBucketMap": [[]]}},
        {"vBucketServerMap": {"serverList": ["a:x"], "vBucketMap": [[0]]}},
        {"vBucketServerMap": {"serverList": [7], "vBucketMap": [[0]]}},
        {"vBucketServerMap": {"serverList": ["a:1"], "vBucketMap": "none"}},
        {"vBucketServerMap": {"serverList": ["a:1"], "vBucketMap": [[0]]}, "nodesExt": [{"services": {"kv": "x"}}]},
        {"vBucketServerMap": {"serverList": ["a:1"], "vBucketMap": [[0]]}, "nodesExt": [7]},
    ],
)
def test_malformed_maps_are_refused(document):
    with pytest.raises(RemoteProtocolError, match="cluster map without"):
        read_map_layout(document, ("h", 1))


def test_next_version_is_above_all_and_never_of_a_node():
    assert find_next_version([]) == (2, 1)
    assert find_next_version([{"rev": 1795457467659}, {}]) == (2, 1795457467660)
    assert find_next_version([{"rev": 9, "revEpoch": 3}, {"rev": 99, "revEpoch": 2}]) == (3, 10)


@given(st.lists(st.integers(-1, 4), max_size=64), st.sets(st.integers(0, 4), max_size=4))
def test_balance_evens_the_nodes_out_with_the_fewest_moves(owners, leaving):
    moves = plan_balance(owners, 5, leaving)
    after = list(owners)
    for vbucket, source, target in moves:
        assert after[vbucket] == source != target
        after[vbucket] = target
    counts = [after.count(node) for node in range(5) if node not in leaving]
    assert max(counts) - min(counts) <= 1
    assert not leaving.intersection(after)
    assert len({move.vbucket for move in moves}) == len(moves)
    before = sorted((owners.count(node) for node in range(5) if node not in leaving), reverse=True)
    goals = sorted(counts, reverse=True)
    given_away = sum(max(had - goal, 0) for had, goal in zip(before, goals, strict=True))
    assert len(moves) == given_away + sum(map(owners.count, leaving))


@st.composite
def replicas(draw):
    """Replicas of one vbucket: each has stopped at some moment of a history with failovers."""
    uuids = itertools.count(1)
    log: FailoverLog = (FailoverEntry(next(uuids), 0),)
    high, reports = 0, []
    for at in range(draw(st.integers(1, 5))):
        for _ in range(draw(st.integers(0, 2))):
            high = draw(st.integers(log[0].seqno, high))  # a lower seqno would make the last branch void
            log = create_entry(log, next(uuids), high)
        high += draw(st.integers(0, 9))
        reports.append((len(log), ReplicaReport((f"node-{at}", 1), log, high)))
    return reports


@given(replicas(), st.randoms())
def test_chosen_replica_has_the_highest_seqno_of_the_newest_branch(reports, random):
    chosen = choose_replica([report for _, report in reports])
    newest = reports[-1][1].failover_log[0].vbuuid
    assert chosen.failover_log[0].vbuuid == newest
    rivals = [report for _, report in reports if report.failover_log[0].vbuuid == newest]
    assert chosen.whole_seqno == max(report.whole_seqno for report in rivals)
    shuffled = [report for _, report in reports]
    random.shuffle(shuffled)
    assert choose_replica(shuffled) == chosen


ACTIVE, REPLICA = VbucketState.ACTIVE, VbucketState.REPLICA


@pytest.mark.parametrize(
    ("states", "seqnos", "mapped", "owner"),
    [
        ([ACTIVE, ACTIVE], [0, 0], -1, -1),
        ([ACTIVE, ACTIVE], [0, 0], 1, 1),
        ([ACTIVE, ACTIVE], [3, 0], 1, 1),
        ([ACTIVE, ACTIVE], [3, 4], -1, 1),
        ([ACTIVE, REPLICA], [3, 9], 1, 0),
        ([ACTIVE, REPLICA], [0, 9], 1, -1),
        ([REPLICA, None], [9, 0], 1, -1),
    ],
)
def test_owner_is_in_the_map_or_has_changes(states, seqnos, mapped, owner):
    reports = [
        NodeReport({} if state is None else {7: state}, {7: seqno}) for state, seqno in zip(states, seqnos, strict=True)
    ]
    assert find_owner(7, reports, mapped) == owner


def test_layout_names_the_copies():
    layout = MapLayout(tuple(NODES[:3]), ((0,), (1,))).set_replicas({0: [2, 1]})
    assert layout.chains == ((0, 2, 1), (1, -1, -1))
    assert layout.list_names(0) == ["10.0.0.0:11210", "10.0.0.2:11210", "10.0.0.1:11210"]
    assert layout.set_replicas({}).list_names(1) == ["10.0.0.1:11210", None, None]


def test_own_address_is_marked_in_the_map():
    layout = MapLayout(tuple(NODES[:2]), ((0,),))
    document = make_map_document({}, layout, (2, 1), NODES[1].endpoint)
    assert read_own_address(document, ("localhost", 9)) == "10.0.0.1:11210"
    assert read_own_address({"vBucketServerMap": document["vBucketServerMap"]}, ("h", 9)) == "h:9"


@pytest.mark.parametrize(
    ("document", "endpoint", "services"),
    [
        (
            {"nodesExt": [{"services": {"kv": 1}}, {"services": {"kv": 2, "kvSSL": 9}, "thisNode": True}]},
            ("a", 2),
            {"kv": 2, "kvSSL": 9},
        ),
        (
            {"nodesExt": [{"services": {"kv": 9, "mgmt": 3}, "hostname": "b", "thisNode": True}]},
            ("b", 9),
            {"kv": 9, "mgmt": 3},
        ),
    ],
)
def test_node_reports_its_own_ports(document, endpoint, services):
    assert read_own_node(document, ("a", 9)) == MapNode(endpoint, services)


@pytest.mark.parametrize("document", [{}, {"nodesExt": [{"services": {"kv": 1}}]}])
def test_map_may_leave_its_node_unmarked(document):
    assert read_own_node(document, ("a", 9)) is None


@pytest.mark.parametrize("entries", [5, [5], [{"thisNode": True}], [{"thisNode": True, "services": {"kv": "x"}}]])
def test_garbage_in_place_of_own_ports_is_a_protocol_error(entries):
    with pytest.raises(RemoteProtocolError, match="without ports of its node"):
        read_own_node({"nodesExt": entries}, ("a", 9))


def test_replicas_of_unrelated_histories_are_compared_by_seqno():
    logs = [(FailoverEntry(7, 0),), (FailoverEntry(8, 0),)]
    reports = [ReplicaReport(("a", 1), logs[0], 5), ReplicaReport(("b", 1), logs[1], 4)]
    assert choose_replica(reports) is reports[0]
    circle = [(FailoverEntry(1, 0), FailoverEntry(2, 0)), (FailoverEntry(2, 0), FailoverEntry(1, 0))]
    reports = [ReplicaReport(("a", 1), circle[0], 5), ReplicaReport(("b", 1), circle[1], 9)]
    assert choose_replica(reports) is reports[1]


A, B, C, D, E = ((name, 1) for name in "abcde")


def report(endpoint, whole=5, *, is_fed=True):
    return ReplicaReport(endpoint, (FailoverEntry(7, 0),), whole, is_fed)


@pytest.mark.parametrize(
    ("chain", "copies", "promoted", "risk"),
    [
        ((A, B), [report(B)], B, ""),
        ((A, B), [report(B, 0)], B, ""),
        ((A, B, C), [report(B), report(C, 7)], C, ""),
        (
            (A, B, None),
            [report(B)],
            B,
            "2 of 3 places of its chain do not answer (1 without a node until the next rebal",
        ),
        ((A, None, B, C), [report(B), report(C, 7)], C, ""),
        ((A, B, C, D, E), [report(B), report(C), report(D)], D, ""),
        ((A, B), [], None, "no node has a copy"),
        ((A, B), [report(C)], C, "no copy is in its chain"),
        ((A,), [report(C)], C, "no copy is in its chain"),
        ((A, B), [report(B), report(C, 99)], B, ""),
        ((A, B, C), [report(B, 7)], B, "2 of 3 places of its chain do not answer"),
        ((A, B, C, D, E), [report(B), report(C)], C, "3 of 5 places"),
        ((A, B), [report(B, is_fed=False)], B, "no stream has reached the copy at b:1 since that node's start"),
        ((A, B, C), [report(B, 9, is_fed=False), report(C)], B, "no stream has reached the copy at b:1"),
        ((A, B, C), [report(B, is_fed=False)], B, "2 of 3 places of its chain do not answer"),
        ((A, B, C, D, E), [report(B, 9, is_fed=False), report(C), report(D), report(E)], E, ""),
    ],
)
def test_copy_is_promoted_without_risk_or_with_its_reason(chain, copies, promoted, risk):
    found = plan_promotion(chain, copies)
    assert (found.replica and found.replica.endpoint) == promoted
    assert found.risk.startswith(risk)
    assert bool(found.risk) == bool(risk)


@given(st.integers(1, 5), st.data())
def test_promotion_without_risk_has_every_durable_write(length, data):
    """Each majority of the chain, which may have acknowledged a write, includes a copy that was fed and answers."""
    chain = list("abcde"[:length])
    answers = data.draw(st.dictionaries(st.sampled_from(chain[1:] or ["f"]), st.booleans()))
    copies = [report((name, 1), data.draw(st.integers(0, 9)), is_fed=fed) for name, fed in sorted(answers.items())]
    found = plan_promotion([(name, 1) for name in chain], copies)
    fed = {each.endpoint[0] for each in copies if each.is_fed}.intersection(chain)
    majorities = itertools.combinations(chain, length // 2 + 1)
    assert (not found.risk) == (bool(fed) and all(fed.intersection(each) for each in majorities))
    if not found.risk:
        assert found.replica is not None
        assert found.replica.whole_seqno == max(each.whole_seqno for each in copies if each.is_fed)


def test_log_without_its_changes_makes_no_newer_replica():
    """A replica has the log of a new owner before it has the owner's changes."""
    old, new = FailoverEntry(1, 0), FailoverEntry(2, 85)
    ahead, behind = ReplicaReport(A, (old,), 90), ReplicaReport(B, (new, old), 50)
    assert choose_replica([ahead, behind]) is ahead
    assert choose_replica([ahead, behind._replace(whole_seqno=85)]).endpoint == B


@pytest.mark.parametrize(
    ("log", "whole", "stored", "expected"),
    [
        ((2, 1), 12, 12, True),
        ((2, 1), 15, 12, True),
        ((2, 1), 12, None, True),
        ((3, 2, 1), 12, 12, True),
        ((2, 1), 11, 12, False),
        ((2, 1), 12, 11, False),
        ((1,), 15, 15, False),
    ],
)
def test_copy_has_stored_the_changes_of_its_source(log, whole, stored, expected):
    begins = {1: 0, 2: 10, 3: 12}
    logs = [tuple(FailoverEntry(uuid, begins[uuid]) for uuid in each) for each in ((2, 1), log)]
    source = ReplicaReport(A, logs[0], 12)
    assert ReplicaReport(B, logs[1], whole, stored_seqno=stored).has_stored(source) is expected


def test_empty_places_stay_in_the_chain():
    layout = MapLayout(tuple(NODES[:3]), ((0, 1, 2), (1, 0), (0, 2)))
    assert layout.empty_places([0, 2], 2).chains == ((0, 1, -1), (1, 0), (0, -1))


def test_copies_of_other_servers_need_no_age():
    assert NodeReport({}, {0: 5}).is_fed(0)
    assert not NodeReport({}, {0: 5}, {0: 5}).is_fed(0)
    assert NodeReport({}, {0: 5}, {0: 5}, {0: 100}).is_fed(0)
