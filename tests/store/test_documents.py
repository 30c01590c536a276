"""All commands on documents, in any order and at any time, compared with a model in a dict."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.errors import StatusError
from penstock.store.documents.conflict import Meta
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import MAX_SEQNO, VbucketState
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp_values import pack_xattrs
from tests.examples import scaled
from tests.store.documents import SECOND, DocumentModel, ManualClock, make_timed_bucket
from tests.store.model import START, read_all

KEYS = [b"a", b"a", b"a", b"bb"]
NOW = START // SECOND
LAST = 2**64 - 1
XATTRS = pack_xattrs({"a": b"1"})

keys = st.sampled_from(KEYS)
cas = st.sampled_from(["none", "none", "shown", "shown", "logged", "wrong"])
bodies = st.sampled_from([b"", b"5", b"007", b"%d" % LAST, b"%d" % 2**64, b"[1]", b"no number"])
contents = st.tuples(bodies, st.sampled_from([0, 1])) | bodies.map(lambda body: (XATTRS + body, 4))
expiries = st.sampled_from([0, 0, 0, 0, 10, 30 * 24 * 3600, NOW - 5, NOW + 20, NOW + 100])
fields = st.fixed_dictionaries({"flags": st.integers(0, 3), "expiry": expiries})
numbers = st.sampled_from([0, 1, 2, 10, LAST])
rests = st.builds(
    Meta,
    cas=st.integers(1, 6) | st.integers(START, START + 9),
    rev_seqno=st.integers(1, 6),
    flags=st.integers(0, 2),
    expiry=expiries,
    datatype=st.just(0),
    deleted=st.booleans(),
)
storing = {"content": contents, "fields": fields}
commands: dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]] = {
    "get": (2, {}),
    "set": (4, {**storing, "cas": cas}),
    "add": (3, storing),
    "replace": (1, {**storing, "cas": cas}),
    "delete": (1, {"cas": cas}),
    "touch": (1, {"expiry": expiries}),
    "count": (
        2,
        {
            "delta": numbers | numbers.map(lambda number: -number),
            "initial": numbers,
            "expiry": st.none() | expiries,
        },
    ),
    "extend": (1, {"more": bodies, "in_front": st.booleans(), "cas": cas}),
    "lock": (4, {"seconds": st.sampled_from([1, 15, 30])}),
    "unlock": (2, {"cas": cas}),
    "find_meta": (1, {}),
    "store_with_meta": (
        3,
        {"meta": rests, "add": st.booleans(), "resolve": st.booleans(), "new_cas": st.booleans(), "cas": cas},
    ),
}
"""Command -> its weight among the commands, and the strategies of its arguments."""

calls = [
    st.tuples(st.just(name), keys, st.fixed_dictionaries(arguments))
    for name, (weight, arguments) in commands.items()
    for _ in range(weight)
]
waits: st.SearchStrategy[Any] = st.tuples(st.just("wait"), st.sampled_from([1, 1, 5, 15, 29]), st.just({}))
events: st.SearchStrategy[Any] = st.tuples(
    st.just("vbucket"), st.sampled_from(["rollback", "state", "reset"]), st.just({})
)
steps = st.one_of(*calls, waits, waits, events)


class DocumentMachine(RuleBasedStateMachine):
    """Calls the same commands on a vbucket and on its model, and compares results and streams."""

    @initialize(resolution=st.sampled_from(["seqno", "lww"]))
    def begin(self, resolution: str) -> None:
        self.clock = ManualClock()
        self.vbucket: Vbucket = make_timed_bucket(self.clock).find(1)
        self.vbucket.incoming.conflict_resolution = resolution
        self.documents = DocumentModel(1, self.clock, resolution)

    @rule(step=steps)
    def take_step(self, step: tuple[str, Any, dict[str, Any]]) -> None:
        action, subject, drawn = step
        if action == "wait":
            self.clock.wait(subject)
        elif action == "vbucket":
            self.change_vbucket(subject)
        else:
            arguments = self.make_arguments(action, subject, drawn)
            parts = {"find_meta": self.vbucket.versions, "store_with_meta": self.vbucket.incoming}
            tested = parts.get(action, self.vbucket)
            found, expected = (call_method(each, action, subject, arguments) for each in (tested, self.documents))
            assert found == expected, (action, subject, arguments)

    def change_vbucket(self, change: str) -> None:
        """Change the whole vbucket: `reset` drops its documents, other changes keep them; each ends the locks."""
        if change == "reset":
            self.vbucket.reset()
            self.documents.reset()
        elif change == "rollback":
            self.vbucket.rollback(self.vbucket.changes.high_seqno)
        else:
            self.vbucket.set_state(VbucketState.REPLICA)
            self.vbucket.set_state(VbucketState.ACTIVE)
        self.documents.end_locks()

    def make_arguments(self, command: str, key: bytes, drawn: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a method from the drawn ones."""
        arguments = dict(drawn)
        if "cas" in arguments:
            arguments["cas"] = self.find_cas(key, arguments["cas"])
        if "content" in arguments:
            arguments["value"], datatype = arguments.pop("content")
            arguments |= {**arguments.pop("fields"), "datatype": datatype}
        if command == "store_with_meta":
            meta = arguments["meta"]
            arguments["event"] = Event.DELETION if meta.deleted else Event.MUTATION
            arguments["value"] = b"" if meta.deleted else b"from elsewhere"
            if meta.deleted:
                arguments["meta"] = meta._replace(expiry=meta.expiry or NOW)
        return arguments

    def find_cas(self, key: bytes, which: str) -> int:
        version = self.documents.versions.get(key)
        if version is None:
            return {"none": 0}.get(which, 1)
        shown = version.held_by or version.cas
        return {"none": 0, "shown": shown, "logged": version.cas, "wrong": 7}[which]

    @invariant()
    def matches_the_model(self) -> None:
        assert read_all(self.vbucket.history.open_snapshot(0, MAX_SEQNO)) == self.documents.list_changes()
        assert self.vbucket.changes.items == sum(
            each.event is Event.MUTATION for each in self.documents.versions.values()
        )
        assert (self.vbucket.changes.high_seqno, self.vbucket.changes.clock.last) == (
            self.documents.last_seqno,
            self.documents.last_cas,
        )


def call_method(target: Any, command: str, key: bytes, arguments: dict[str, Any]) -> Any:
    """Return the result of a method, or the class of the error that it raises."""
    try:
        return getattr(target, command)(key=key, **arguments)
    except StatusError as error:
        return type(error)


TestDocuments = DocumentMachine.TestCase
TestDocuments.settings = settings(stateful_step_count=60, max_examples=scaled(150))
