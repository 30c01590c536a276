"""Couchbase's Python SDK: sub-documents and extended attributes."""

from datetime import timedelta

import pytest

from tests.compat.installed import require_package

require_package("couchbase")

import couchbase.subdocument as SD
from couchbase.exceptions import (
    DocumentExistsException,
    DocumentNotFoundException,
    InvalidValueException,
    PathExistsException,
    PathMismatchException,
    PathNotFoundException,
)
from couchbase.options import MutateInOptions
from couchbase.subdocument import LookupInMacro, MutationMacro, StoreSemantics

BEER = {"name": "Stout", "abv": 4.5, "tags": ["dark", "dry"], "brewery": {"city": "Cork", "country": "Ireland"}}


@pytest.fixture
def beer(collection):
    collection.upsert("beer", BEER)
    return collection


def test_lookup_returns_parts(beer):
    found = beer.lookup_in(
        "beer",
        [
            SD.get("name"),
            SD.get("brewery.city"),
            SD.get("tags[-1]"),
            SD.exists("abv"),
            SD.exists("ibu"),
            SD.count("tags"),
        ],
    )
    assert [found.content_as[str](n) for n in range(3)] == ["Stout", "Cork", "dry"]
    assert [found.exists(n) for n in (3, 4)] == [True, False]
    assert found.content_as[int](5) == 2


def test_lookup_of_missing_paths_is_reported(beer):
    found = beer.lookup_in("beer", [SD.get("ibu"), SD.get("name[0]"), SD.get("name")])
    with pytest.raises(PathNotFoundException):
        found.content_as[str](0)
    with pytest.raises(PathMismatchException):
        found.content_as[str](1)
    assert found.content_as[str](2) == "Stout"
    with pytest.raises(DocumentNotFoundException):
        beer.lookup_in("nowhere", [SD.get("name")])


def test_mutation_changes_parts(beer):
    changed = beer.mutate_in(
        "beer",
        [
            SD.upsert("abv", 5),
            SD.insert("hops.aroma.first", "Fuggle", create_parents=True),
            SD.replace("brewery.city", "Dublin"),
            SD.remove("brewery.country"),
            SD.array_append("tags", "old"),
            SD.array_prepend("tags", "first"),
            SD.array_insert("tags[1]", "second"),
            SD.array_addunique("tags", "unique"),
            SD.increment("sold", 10),
            SD.decrement("sold", 3),
        ],
    )
    assert changed.content_as[int](8) == 10
    assert changed.content_as[int](9) == 7
    found = beer.get("beer")
    assert found.cas == changed.cas
    assert found.content_as[dict] == {
        "name": "Stout",
        "abv": 5,
        "tags": ["first", "second", "dark", "dry", "old", "unique"],
        "brewery": {"city": "Dublin"},
        "hops": {"aroma": {"first": "Fuggle"}},
        "sold": 7,
    }


REFUSED = [
    ("insert over a path", [SD.upsert("a", 1), SD.insert("name", "x")], PathExistsException),
    ("replace no path", [SD.upsert("a", 1), SD.replace("nowhere", 1)], PathNotFoundException),
    ("remove no path", [SD.remove("nowhere")], PathNotFoundException),
    ("unique twice", [SD.array_addunique("tags", "dry")], PathExistsException),
    ("append to an object", [SD.array_append("brewery", 1)], PathMismatchException),
    ("count a text", [SD.increment("name", 1)], PathMismatchException),
    ("no parents", [SD.insert("x.y.z", 1)], PathNotFoundException),
]


@pytest.mark.parametrize(("specs", "error"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_failed_mutation_changes_nothing(beer, specs, error):
    with pytest.raises(error):
        beer.mutate_in("beer", specs)
    assert beer.get("beer").content_as[dict] == BEER


def test_mutation_creates_documents(collection):
    insert, upsert = (MutateInOptions(store_semantics=how) for how in (StoreSemantics.INSERT, StoreSemantics.UPSERT))
    collection.mutate_in("new", [SD.upsert("a", 1)], insert)
    with pytest.raises(DocumentExistsException):
        collection.mutate_in("new", [SD.upsert("a", 2)], insert)
    collection.mutate_in("new", [SD.upsert("b", 2)], upsert)
    collection.mutate_in("newer", [SD.upsert("b", 2)], upsert)
    assert collection.get("new").content_as[dict] == {"a": 1, "b": 2}
    with pytest.raises(DocumentNotFoundException):
        collection.mutate_in("nowhere", [SD.upsert("a", 1)])


def test_extended_attributes_are_read_and_written(beer):
    beer.mutate_in("beer", [SD.upsert("_sync.rev", 7, xattr=True, create_parents=True), SD.upsert("abv", 6)])
    found = beer.lookup_in("beer", [SD.get("_sync.rev", xattr=True), SD.get("abv"), SD.exists("_sync")])
    assert (found.content_as[int](0), found.content_as[int](1), found.exists(2)) == (7, 6, False)
    assert beer.get("beer").content_as[dict] == BEER | {"abv": 6}
    beer.mutate_in("beer", [SD.remove("_sync", xattr=True)])
    assert not beer.lookup_in("beer", [SD.exists("_sync", xattr=True)]).exists(0)


def test_macros_are_filled_in(beer):
    changed = beer.mutate_in(
        "beer",
        [
            SD.upsert("meta.cas", MutationMacro.cas(), xattr=True, create_parents=True),
            SD.upsert("meta.seqno", MutationMacro.seq_no(), xattr=True),
            SD.upsert("meta.crc", MutationMacro.value_crc32c(), xattr=True),
        ],
    )
    meta = beer.lookup_in("beer", [SD.get("meta", xattr=True)]).content_as[dict](0)
    assert SD.convert_macro_cas_to_cas(meta["cas"]) == changed.cas
    assert int(meta["seqno"], 16) == changed.mutation_token().sequence_number
    assert len(bytes.fromhex(meta["crc"].removeprefix("0x"))) == 4


def test_virtual_attributes_describe_a_document(beer, now):
    cas = beer.touch("beer", timedelta(hours=1)).cas
    macros = [LookupInMacro.cas, LookupInMacro.expiry_time, LookupInMacro.is_deleted, LookupInMacro.value_size_bytes]
    found = beer.lookup_in("beer", [SD.get(macro(), xattr=True) for macro in [*macros, LookupInMacro.document]])
    assert int(found.content_as[str](0), 16) == cas
    assert found.content_as[int](1) == pytest.approx(now() + 3600, abs=60)
    assert found.content_as[bool](2) is False
    assert found.content_as[int](3) > 0
    assert found.content_as[dict](4)["CAS"] == found.content_as[str](0)


def test_document_that_is_not_json_is_refused(collection):
    from couchbase.options import UpsertOptions
    from couchbase.transcoder import RawBinaryTranscoder

    collection.upsert("raw", b"\x00\x01", UpsertOptions(transcoder=RawBinaryTranscoder()))
    found = collection.lookup_in("raw", [SD.get("name")])
    with pytest.raises(Exception, match=r"(?i)json"):
        found.content_as[str](0)


def test_counter_of_another_value_is_refused(beer):
    with pytest.raises((InvalidValueException, PathMismatchException)):
        beer.mutate_in("beer", [SD.increment("tags", 1)])


def test_data_structures_work(collection):
    lines = collection.couchbase_list("list")
    lines.append("b")
    lines.prepend("a")
    assert (list(lines), lines.size()) == (["a", "b"], 2)
    mapped = collection.couchbase_map("map")
    mapped.add("k", 1)
    assert (mapped.get("k"), mapped.size()) == (1, 1)
    values = collection.couchbase_set("set")
    values.add("a")
    values.add("a")
    assert (values.contains("a"), values.size()) == (True, 1)
    queue = collection.couchbase_queue("queue")
    queue.push("first")
    queue.push("second")
    assert [queue.pop(), queue.pop()] == ["first", "second"]
