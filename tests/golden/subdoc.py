"""The sub-document commands."""

from penstock.wire.codec.layout import Message
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.subdoc import (
    LookupReply,
    MultiLookup,
    MultiMutation,
    MutationReply,
    SubdocLookup,
    SubdocMutation,
    pack_lookup_results,
    pack_lookup_specs,
    pack_mutation_results,
    pack_mutation_specs,
)

Row = tuple[str, Message, str]

_LOOKUPS = {0xC5: "get", 0xC6: "exists", 0xD2: "get count"}

_MUTATIONS = {
    0xC7: "dict add",
    0xC8: "dict upsert",
    0xCA: "replace",
    0xCB: "array push last",
    0xCC: "array push first",
    0xCD: "array insert",
    0xCE: "array add unique",
    0xCF: "counter",
}
_REMOVALS = {0xC9: "delete", 0xD3: "replace body with xattr"}

LOOKUPS: list[Row] = [
    row
    for opcode, name in _LOOKUPS.items()
    for row in (
        (
            f"{name} at a path",
            SubdocLookup.for_path(b"a.b", vbucket=7, opaque=9, key=b"doc"),
            f"80{opcode:02x}0003 03000007 00000009 00000009 0000000000000000 0003 00 646f63 612e62",
        ),
        (
            f"{name} at an attribute, of a deleted document",
            SubdocLookup.for_path(b"_a[0]", opaque=9, key=b"doc", flags=4, doc_flags=4),
            f"80{opcode:02x}0003 04000000 0000000c 00000009 0000000000000000 0005 04 04 646f63 5f615b305d",
        ),
    )
]

MUTATIONS: list[Row] = [
    row
    for opcode, name in _MUTATIONS.items()
    for row in (
        (
            name,
            SubdocMutation.for_path(b"a.b", b"12", vbucket=7, opaque=9, cas=42, key=b"doc"),
            f"80{opcode:02x}0003 03000007 0000000b 00000009 000000000000002a 0003 00 646f63 612e62 3132",
        ),
        (
            f"{name}, flags of the document",
            SubdocMutation.for_path(b"a.b", b"12", opaque=9, key=b"doc", flags=1, doc_flags=1),
            f"80{opcode:02x}0003 04000000 0000000c 00000009 0000000000000000 0003 01 01 646f63 612e62 3132",
        ),
        (
            f"{name}, expiry",
            SubdocMutation.for_path(b"a.b", b"12", opaque=9, key=b"doc", expiry=3600),
            f"80{opcode:02x}0003 07000000 0000000f 00000009 0000000000000000 0003 00 00000e10 646f63 612e62 3132",
        ),
        (
            f"{name}, expiry and flags of the document",
            SubdocMutation.for_path(b"a", b"12", opaque=9, key=b"doc", flags=0x14, expiry=0, doc_flags=2),
            f"80{opcode:02x}0003 08000000 0000000e 00000009 0000000000000000 0001 14 00000000 02 646f63 61 3132",
        ),
    )
]

REMOVALS: list[Row] = [
    row
    for opcode, name in _REMOVALS.items()
    for row in (
        (
            name,
            SubdocMutation.for_path(b"a.b", vbucket=7, opaque=9, cas=42, key=b"doc"),
            f"80{opcode:02x}0003 03000007 00000009 00000009 000000000000002a 0003 00 646f63 612e62",
        ),
        (
            f"{name}, flags of the document",
            SubdocMutation.for_path(b"a.b", opaque=9, key=b"doc", flags=4, doc_flags=4),
            f"80{opcode:02x}0003 04000000 0000000a 00000009 0000000000000000 0003 04 04 646f63 612e62",
        ),
        (
            f"{name}, expiry",
            SubdocMutation.for_path(b"a.b", opaque=9, key=b"doc", expiry=3600),
            f"80{opcode:02x}0003 07000000 0000000d 00000009 0000000000000000 0003 00 00000e10 646f63 612e62",
        ),
        (
            f"{name}, expiry and flags of the document",
            SubdocMutation.for_path(b"a", opaque=9, key=b"doc", flags=4, expiry=0, doc_flags=4),
            f"80{opcode:02x}0003 08000000 0000000c 00000009 0000000000000000 0001 04 00000000 04 646f63 61",
        ),
    )
]

_SPECS = [(Opcode.SUBDOC_GET, 4, b"_a"), (Opcode.SUBDOC_EXISTS, 0, b"b"), (Opcode.GET, 0, b"")]
_SPECS_HEX = "c5 04 0002 5f61 c6 00 0001 62 00 00 0000"

_CHANGES = [(Opcode.SUBDOC_DICT_UPSERT, 0x15, b"_a", b"1"), (Opcode.SUBDOC_DELETE, 0, b"b", b"")]
_CHANGES_HEX = "c8 15 0002 00000001 5f61 31 c9 00 0001 00000000 62"

SEVERAL: list[Row] = [
    (
        "three lookups",
        MultiLookup(vbucket=7, opaque=9, key=b"doc", value=pack_lookup_specs(_SPECS)),
        f"80d00003 00000007 00000012 00000009 0000000000000000 646f63 {_SPECS_HEX}",
    ),
    (
        "three lookups in a deleted document",
        MultiLookup(opaque=9, key=b"doc", doc_flags=4, value=pack_lookup_specs(_SPECS)),
        f"80d00003 01000000 00000013 00000009 0000000000000000 04 646f63 {_SPECS_HEX}",
    ),
    (
        "two changes",
        MultiMutation(vbucket=7, opaque=9, cas=42, key=b"doc", value=pack_mutation_specs(_CHANGES)),
        f"80d10003 00000007 00000017 00000009 000000000000002a 646f63 {_CHANGES_HEX}",
    ),
    (
        "two changes of a new document",
        MultiMutation(opaque=9, key=b"doc", doc_flags=2, value=pack_mutation_specs(_CHANGES)),
        f"80d10003 01000000 00000018 00000009 0000000000000000 02 646f63 {_CHANGES_HEX}",
    ),
    (
        "two changes, expiry",
        MultiMutation(opaque=9, key=b"doc", expiry=3600, value=pack_mutation_specs(_CHANGES)),
        f"80d10003 04000000 0000001b 00000009 0000000000000000 00000e10 646f63 {_CHANGES_HEX}",
    ),
    (
        "two changes of a new document, expiry",
        MultiMutation(opaque=9, key=b"doc", expiry=3600, doc_flags=1, value=pack_mutation_specs(_CHANGES)),
        f"80d10003 05000000 0000001c 00000009 0000000000000000 00000e10 01 646f63 {_CHANGES_HEX}",
    ),
    (
        "two changes, expiry and flags",
        MultiMutation(opaque=9, key=b"doc", expiry=0, user_flags=0x2000000, value=pack_mutation_specs(_CHANGES)),
        f"80d10003 08000000 0000001f 00000009 0000000000000000 00000000 02000000 646f63 {_CHANGES_HEX}",
    ),
    (
        "two changes of a deleted document in a transaction",
        MultiMutation(
            opaque=9, key=b"doc", expiry=0, user_flags=0x2000000, doc_flags=4, value=pack_mutation_specs(_CHANGES)
        ),
        f"80d10003 09000000 00000020 00000009 0000000000000000 00000000 02000000 04 646f63 {_CHANGES_HEX}",
    ),
]

REPLIES: list[Row] = [
    (
        "what a path leads to",
        LookupReply(opaque=9, cas=42, value=b"12"),
        "81c50000 00000000 00000002 00000009 000000000000002a 3132",
    ),
    (
        "a path that leads nowhere",
        LookupReply(opaque=9, status=0xC0),
        "81c60000 000000c0 00000000 00000009 0000000000000000",
    ),
    (
        "what three lookups found, one nothing",
        LookupReply(
            opaque=9, cas=42, status=0xCC, value=pack_lookup_results([(0, b"1"), (0xC0, b""), (0, b'{"_a":1}')])
        ),
        "81d00000 000000cc 0000001b 00000009 000000000000002a "
        "0000 00000001 31 00c0 00000000 0000 00000008 7b225f61223a317d",
    ),
    (
        "changed",
        MutationReply(opaque=9, cas=43),
        "81c80000 00000000 00000000 00000009 000000000000002b",
    ),
    (
        "the number as it is now, with the mutation's token",
        MutationReply(opaque=9, cas=43, vbuuid=0xABCD, seqno=17, value=b"12"),
        "81cf0000 10000000 00000012 00000009 000000000000002b 000000000000abcd 0000000000000011 3132",
    ),
    (
        "the number as it is now, of two changes",
        MutationReply(opaque=9, cas=43, vbuuid=0xABCD, seqno=17, value=pack_mutation_results([(1, 0, b"12")])),
        "81d10000 10000000 00000019 00000009 000000000000002b 000000000000abcd 0000000000000011 01 0000 00000002 3132",
    ),
    (
        "the second change failed",
        MutationReply(opaque=9, status=0xCC, value=pack_mutation_results([(1, 0xC0, b"")])),
        "81d10000 000000cc 00000003 00000009 0000000000000000 01 00c0",
    ),
]

ROWS: list[Row] = [*LOOKUPS, *MUTATIONS, *REMOVALS, *SEVERAL, *REPLIES]
