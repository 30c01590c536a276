import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StatusError
from penstock.store.subdoc import scan
from penstock.store.subdoc.path import KeyComponent, Path, parse_path
from penstock.store.subdoc.text import JsonText, count_levels, locate
from penstock.wire.codec.statuses import Status
from penstock.wire.values.json_value import detect_json

JSON = [
    *(b"{}", b"[]", b" {} ", b"\t\n\r [ ]", b"1", b"-0", b"1e5", b"1.5E-3", b'"a"', b"null", b"true", b"false"),
    *(b'"\\ud800"', b'"\\u0000\\/"', '"ü𝄞"'.encode(), b"9" * 5000, b"1." + b"9" * 5000, b"1e99999", b'{"":[{}]}'),
    b'{"a":1,"a":2}',
]
NO_JSON = [
    *(b"", b" ", b"{", b"}", b"[1,]", b'{"a":1,}', b"[1 2]", b'{"a" 1}', b"{a:1}", b"{'a':1}", b"[,1]", b"{1:2}"),
    *(b"01", b"1.", b".5", b"1e", b"+1", b"--1", b"0x1", b"1_0", b"NaN", b"[Infinity]", b"-Infinity", b"[NaN]"),
    *(b"nul", b"True", b"tru", b'"', b'"a', b'"\n"', b'"\x00"', b'"\\x"', b'"\\u12"', b"{}{}", b"{} x", b"//\n{}"),
    *(b"\xff", b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b"\xef\xbb\xbf{}", b"\x00", b"{}\x00", b"\x0b1", b"\xa01"),
    *('"a"'.encode("utf-16"), "[\uff11]".encode(), "[1]\u2028".encode()),
]


@pytest.mark.parametrize("document", JSON)
def test_json_text_is_accepted(document: bytes) -> None:
    assert JsonText(document).read() == document
    assert detect_json(document)


@pytest.mark.parametrize("document", NO_JSON)
def test_other_text_is_refused(document: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        JsonText(document)
    assert caught.value.status == Status.SUBDOC_DOC_NOTJSON
    assert not detect_json(document)


@pytest.mark.parametrize(
    "document",
    [
        b"[" * 33 + b"]" * 33,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 33 + b"1" + b"}" * 33,
        b'[[[],{}],"]]\\"]",' + b"[" * 32 + b"]" * 33,
    ],
)
def test_too_deep_document_is_refused(document: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        JsonText(document)
    assert caught.value.status == Status.SUBDOC_DOC_E2DEEP


@pytest.mark.parametrize(
    "document", [b"[" * 32 + b"1" + b"]" * 32, b'["' + b"[" * 99 + b'"]', b'["\\"' + b"{" * 99 + b'","\\\\",[[]]]']
)
def test_deepest_document_is_accepted(document: bytes) -> None:
    assert JsonText(document).read() == document


def count_nesting(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(count_nesting, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(count_nesting, value), default=0)
    return 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('[]{}\\"a', max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('[{"\\', max_size=2), inner, max_size=3),
    max_leaves=30,
)


@given(VALUES)
def test_nesting_levels_are_counted(value: object) -> None:
    document = json.dumps(value).encode()
    assert count_levels(document) == scan.locate(document, ())[0] == count_nesting(value)


@given(st.binary(max_size=20) | st.text('[]{}",:1 \\en-.', max_size=20).map(str.encode))
def test_json_detection_matches_the_standard_library(document: bytes) -> None:
    try:
        json.loads(document.decode(), parse_constant=int)  # int refuses NaN and Infinity
        expected = True
    except ValueError:
        expected = False
    assert bool(detect_json(document)) == expected
    assert (count_levels(document) >= 0) == expected


# The extension module, if it is built, compared with the same functions in Python.


def make_component(text: str) -> KeyComponent:
    return KeyComponent(json.loads(f'"{text}"'), text)


NAMES = st.sampled_from(["a", "b", "ab", "ä", "𝄞", '\\"', "\\\\", "", "]", "long enough for a word of eight"])
STEPS = st.builds(make_component, NAMES) | st.integers(-1, 3)
PATHS: st.SearchStrategy[tuple[Path, ...]] = st.lists(
    st.lists(STEPS, max_size=4).map(tuple), max_size=16, unique=True
).map(tuple)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(NAMES.map(lambda text: json.loads(f'"{text}"')), inner, max_size=4)
    ),
    max_leaves=40,
)


@pytest.mark.long
@given(TREES, PATHS, st.booleans(), st.sampled_from([(",", ":"), (" ,\n", "\t:\r\n ")]))
def test_both_implementations_locate_the_same_places(
    tree: object, paths: tuple[Path, ...], plain: bool, marks: tuple[str, str]
) -> None:
    document = f" {json.dumps(tree, ensure_ascii=plain, separators=marks)}\n".encode()
    assert locate(document, paths) == scan.locate(document, paths)


@given(st.data())
def test_both_implementations_agree_on_damaged_text(data: st.DataObject) -> None:
    document = bytearray(json.dumps(data.draw(TREES), ensure_ascii=data.draw(st.booleans())).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(document)))
        document[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from(
                [b"", b"\\", b'"', b"\x00", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9d\x84\x9e", b",", b"[", b"}", b"0"]
            )
        )
    text, paths = bytes(document), data.draw(PATHS)
    assert locate(text, paths) == scan.locate(text, paths)


TWICE = [
    (b'{"a":1,"\\u0061":2}', (make_component("a"),)),
    (b'{"\\ud834\\udd1e":1}', (make_component("𝄞"),)),
    (b'{"\\ud834":1,"\\udd1e":2,"\\u00e4\\/":3}', (make_component("ä/"),)),
    (b'{"\\u00E4":[{"a":[]},{"a":[7]}]}', (make_component("ä"), -1, make_component("a"), 0)),
    (b"[[[1],[2]],[[3],[4,5]]]", (-1, -1, -1)),
    (b"[[1],2]", (-1, 0)),
    (b"[[1],2]", (-1,)),
    (b"[2,[]]", (-1, -1)),
    (b"[2,[]]", (2**40,)),
]


@pytest.mark.parametrize(("document", "path"), TWICE)
def test_both_implementations_locate_the_same_place(document: bytes, path: Path) -> None:
    assert locate(document, (path,)) == scan.locate(document, (path,))


def test_deep_last_elements_are_located_in_one_pass() -> None:
    levels = 30
    document = b"[1," * levels + b"0" + b',"x"' * 100 + b"]" * levels
    paths = tuple((-1,) * length for length in range(16, levels + 1))
    assert locate(document, paths[:15]) == scan.locate(document, paths[:15])


def test_array_is_extended_several_times() -> None:
    path, other = parse_path(b"a"), parse_path(b"b")
    text = JsonText(b'{"a":[ ],"b":[1]}', [path, other])
    place = text.find(path)
    for new in (b"1", b"2,3", b"[4]"):
        longer = text.find_to_append(path)
        assert (longer.at, longer.end) == (place.at, place.end)  # the text was not read again
        text.append(path, longer, new)
    text.append(other, text.find_to_append(other), b"2")
    assert text.read() == b'{"a":[ 1,2,3,[4]],"b":[1,2]}'


@given(st.lists(st.sampled_from([b"1", b'"a"', b"null", b"[]", b"{}"]), max_size=5), st.sampled_from([b"1", b'"b"']))
def test_first_matching_or_nested_element_is_found(items: list[bytes], item: bytes) -> None:
    document = b'{"a":[ ' + b" , ".join(items) + b" ]}"
    text = JsonText(document)
    at = text.find_item(document.index(b"["), item)
    assert at == scan.find_item(document, document.index(b"["), item)
    wanted = [document.index(b"[") + 2 + sum(len(each) + 3 for each in items[:n]) for n, each in enumerate(items)]
    expected = [where for where, each in zip(wanted, items, strict=True) if each == item or each in (b"[]", b"{}")]
    assert at == (expected[0] if expected else -1)
