"""Sub-document operations: tables of texts before and after, then random texts compared with the model."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StatusError
from penstock.store.subdoc.edit import EDITS, READS, creates_array
from penstock.store.subdoc.path import Path, parse_path
from penstock.store.subdoc.text import JsonText
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from tests.store.subdoc import model

GET, EXISTS, GET_COUNT = Opcode.SUBDOC_GET, Opcode.SUBDOC_EXISTS, Opcode.SUBDOC_GET_COUNT
DICT_ADD, DICT_UPSERT, REPLACE = Opcode.SUBDOC_DICT_ADD, Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_REPLACE
DELETE, COUNTER = Opcode.SUBDOC_DELETE, Opcode.SUBDOC_COUNTER
PUSH_LAST, PUSH_FIRST = Opcode.SUBDOC_ARRAY_PUSH_LAST, Opcode.SUBDOC_ARRAY_PUSH_FIRST
INSERT, ADD_UNIQUE = Opcode.SUBDOC_ARRAY_INSERT, Opcode.SUBDOC_ARRAY_ADD_UNIQUE

ENOENT, MISMATCH, EINVAL = Status.SUBDOC_PATH_ENOENT, Status.SUBDOC_PATH_MISMATCH, Status.SUBDOC_PATH_EINVAL
EEXISTS, CANTINSERT = Status.SUBDOC_PATH_EEXISTS, Status.SUBDOC_VALUE_CANTINSERT
ETOODEEP, DELTA, ERANGE = Status.SUBDOC_VALUE_ETOODEEP, Status.SUBDOC_DELTA_EINVAL, Status.SUBDOC_NUM_ERANGE

HIGHEST, LOWEST = 2**63 - 1, -(2**63)


def run_read_at(opcode: int, document: str, path: Path) -> str:
    return READS[opcode](JsonText(document.encode(), [path]), path).decode()


def run_read(opcode: Opcode, document: str, path: str) -> str:
    return run_read_at(opcode, document, parse_path(path.encode()))


def run_edit_at(opcode: int, document: str, path: Path, value: bytes, mkdir_p: bool) -> tuple[str, str]:
    """Return the changed text and the answer."""
    text = JsonText(document.encode(), [path])
    answer = EDITS[opcode](text, path, value, mkdir_p)
    assert JsonText(text.read()).read() == text.read()
    return text.read().decode(), answer.decode()


def run_edit(opcode: Opcode, document: str, path: str, value: str = "", mkdir_p: bool = False) -> str:
    edited, answer = run_edit_at(opcode, document, parse_path(path.encode()), value.encode(), mkdir_p)
    assert bool(answer) == (opcode == COUNTER)
    return edited


def find_refusal(do: Any, *arguments: Any) -> int:
    with pytest.raises(StatusError) as caught:
        do(*arguments)
    assert str(caught.value)
    return caught.value.status


BIG = "123456789012345678901234567890.10e+5"

READINGS = [
    (GET, '{"a":1,"b":[1,{"c":null}]}', "b[1].c", "null"),
    (GET, ' { "a" : { "b" : [ 1 , 2 ] } } ', "a", '{ "b" : [ 1 , 2 ] }'),
    (GET, ' { "a" : { "b" : [ 1 , 2 ] } } ', "a.b[1]", "2"),
    (GET, "[ 1, 2, 3,    4    ]", "[-1]", "4"),
    (GET, "[1,[2,[3,4]]]", "[-1].[-1][-1]", "4"),
    (GET, f'{{"n":{BIG}}}', "n", BIG),
    (GET, '{"a":1,"a":2}', "a", "1"),
    (GET, '{"\\u0061\\u00e4":1}', "aä", "1"),
    (GET, '{"q\\"":1,"\\/":2}', 'q\\"', "1"),
    (GET, '{"q\\"":1,"\\/":2}', "/", "2"),
    (GET, '{"größe":"ü𝄞"}', "größe", '"ü𝄞"'),
    (GET, '{"a.b":{"c[0]":1}}', "`a.b`.`c[0]`", "1"),
    (GET, '["]",{"}":"{"}]', "[1].}", '"{"'),
    (GET, " [] ", "", "[]"),
    (GET, "5", "", "5"),
    (EXISTS, '{"a":null}', "a", ""),
    (GET_COUNT, '{"a":{"b":1,"c":[]}}', "a", "2"),
    (GET_COUNT, '{"a":[1,[2,3],{}]}', "a", "3"),
    (GET_COUNT, " [ ] ", "", "0"),
    (GET_COUNT, "{ }", "", "0"),
    (GET_COUNT, "[1,[2,3]]", "[-1]", "2"),
]


@pytest.mark.parametrize(("opcode", "document", "path", "found"), READINGS)
def test_valid_reads_return_the_text(opcode: Opcode, document: str, path: str, found: str) -> None:
    assert run_read(opcode, document, path) == found


NOT_READ = [
    (GET, '{"a":1}', "b", ENOENT),
    (GET, '{"a":1}', "b.c[0]", ENOENT),
    (GET, '{"a":1}', "a.b", MISMATCH),
    (GET, '{"a":"b"}', "a[0]", MISMATCH),
    (GET, '{"a":[]}', "a.b", MISMATCH),
    (GET, '{"a":{}}', "a[0]", MISMATCH),
    (GET, '{"a":{}}', "a[-1]", MISMATCH),
    (GET, "[]", "[0]", ENOENT),
    (GET, "[]", "[-1]", ENOENT),
    (GET, "[1]", "[1]", ENOENT),
    (GET, "[1]", "[99999999999999999999]", ENOENT),
    (GET, "1", "a", MISMATCH),
    (EXISTS, '{"a":{}}', "a.b", ENOENT),
    (GET_COUNT, '{"a":1}', "a", MISMATCH),
    (GET_COUNT, '{"a":1}', "b", ENOENT),
    (GET_COUNT, '"a"', "", MISMATCH),
]


@pytest.mark.parametrize(("opcode", "document", "path", "status"), NOT_READ)
def test_invalid_reads_are_refused(opcode: Opcode, document: str, path: str, status: Status) -> None:
    assert find_refusal(run_read, opcode, document, path) == status


P = True  # with MKDIR_P

EDITINGS: list[tuple[Any, ...]] = [
    (DICT_ADD, "{}", "a", "1", '{"a":1}'),
    (DICT_ADD, '{ "a" : 1 }', "b", "[ 2 ]", '{ "a" : 1 ,"b":[ 2 ]}'),
    (DICT_ADD, f'[{{"a":{BIG}}}, 5]', "[0].b", " 2 ", f'[{{"a":{BIG},"b": 2 }}, 5]'),
    (DICT_ADD, "{}", "a.b.c", "1", '{"a":{"b":{"c":1}}}', P),
    (DICT_ADD, '{"a":{"z":0}}', "a.b.c", "1", '{"a":{"z":0,"b":{"c":1}}}', P),
    (DICT_ADD, "{}", "`a.b`.c``d", "1", '{"a.b":{"c`d":1}}', P),
    (DICT_ADD, "{}", 'a\\"\\n', "1", '{"a\\"\\n":1}'),
    (DICT_UPSERT, '{"a": 1 , "b": 2}', "a", '"x"', '{"a": "x" , "b": 2}'),
    (DICT_UPSERT, '{"a": 1 , "b": 2}', "b", '"x"', '{"a": 1 , "b": "x"}'),
    (DICT_UPSERT, "{}", "ä", '"ü"', '{"ä":"ü"}'),
    (DICT_UPSERT, '{"\\u0061":1}', "a", "2", '{"\\u0061":2}'),
    (REPLACE, '{"a":[1, 2 ,3]}', "a[1]", "{}", '{"a":[1, {} ,3]}'),
    (REPLACE, '{"a":[1, 2 ,3 ]}', "a[-1]", "{}", '{"a":[1, 2 ,{} ]}'),
    (REPLACE, '{"a":1}', "a", "null", '{"a":null}'),
    (DELETE, "[1,2]", "[0]", "", "[2]"),
    (DELETE, "[1,2]", "[1]", "", "[1]"),
    (DELETE, "[1]", "[-1]", "", "[]"),
    (DELETE, "[ 1 , 2 , 3 ]", "[1]", "", "[ 1 ,  3 ]"),
    (DELETE, "[ 1 , 2 , 3 ]", "[2]", "", "[ 1 , 2  ]"),
    (DELETE, "[ 1 ]", "[0]", "", "[  ]"),
    (DELETE, '{"a" : 1, "b" : 2}', "a", "", '{ "b" : 2}'),
    (DELETE, '{"a" : 1, "b" : 2}', "b", "", '{"a" : 1}'),
    (DELETE, '{"a":{"b":1},"c":2}', "a.b", "", '{"a":{},"c":2}'),
    (DELETE, '{"a":"x,","b,":1}', "`b,`", "", '{"a":"x,"}'),
    (DELETE, '{"a":1,"a":2}', "a", "", '{"a":2}'),
    (PUSH_LAST, "[]", "", "1", "[1]"),
    (PUSH_LAST, " [ ] ", "", "1", " [ 1] "),
    (PUSH_LAST, " [ 1 ] ", "", "2 , [3]", " [ 1 ,2 , [3]] "),
    (PUSH_LAST, '{"a":[[],[1]]}', "a[-1]", "2", '{"a":[[],[1,2]]}'),
    (PUSH_LAST, "{}", "a.b", "1,2", '{"a":{"b":[1,2]}}', P),
    (PUSH_FIRST, "[]", "", "1", "[1]"),
    (PUSH_FIRST, "[ ]", "", "1", "[1 ]"),
    (PUSH_FIRST, "[ 2 ]", "", "0,1", "[ 0,1,2 ]"),
    (PUSH_FIRST, '{"a":[2]}', "a", '"1"', '{"a":["1",2]}'),
    (PUSH_FIRST, "{}", "a", "1", '{"a":[1]}', P),
    (INSERT, "[1,2,4]", "[2]", "3", "[1,2,3,4]"),
    (INSERT, "[ 1 ]", "[0]", "-1,0", "[ -1,0,1 ]"),
    (INSERT, "[1]", "[1]", "2", "[1,2]"),
    (INSERT, "[ ]", "[0]", "1", "[ 1]"),
    (INSERT, '{"a":[[1]]}', "a[-1][1]", "2", '{"a":[[1,2]]}'),
    (ADD_UNIQUE, "[1]", "", "2", "[1,2]"),
    (ADD_UNIQUE, '["1"]', "", "1", '["1",1]'),
    (ADD_UNIQUE, '["23"]', "", "1234", '["23",1234]'),
    (ADD_UNIQUE, "[1]", "", "1.0", "[1,1.0]"),
    (ADD_UNIQUE, "[]", "", ' "a" ', '[ "a" ]'),
    (ADD_UNIQUE, "[[1]]", "[-1]", "2", "[[1,2]]"),
    (ADD_UNIQUE, "{}", "a", "null", '{"a":[null]}', P),
    (COUNTER, '{"n": 1 }', "n", "-3", '{"n": -2 }'),
    (COUNTER, "{}", "n", "7", '{"n":7}'),
    (COUNTER, "{}", "a.n", "-7", '{"a":{"n":-7}}', P),
    (COUNTER, "[-20]", "[0]", "1", "[-19]"),
    (COUNTER, '{"n":-0}', "n", "1", '{"n":1}'),
    (COUNTER, f'{{"n":{HIGHEST - 1}}}', "n", "1", f'{{"n":{HIGHEST}}}'),
    (COUNTER, f'{{"n":{LOWEST + 1}}}', "n", "-1", f'{{"n":{LOWEST}}}'),
    (COUNTER, '{"n":0}', "n", str(LOWEST), f'{{"n":{LOWEST}}}'),
    (COUNTER, '{"n":0}', "n", str(HIGHEST), f'{{"n":{HIGHEST}}}'),
    (COUNTER, f'{{"n":{LOWEST}}}', "n", str(HIGHEST), '{"n":-1}'),
]


@pytest.mark.parametrize("row", EDITINGS, ids=lambda row: f"{row[0].name}-{row[1]}-{row[2]}")
def test_valid_edits_change_the_text(row: tuple[Any, ...]) -> None:
    opcode, before, path, value, after, *mkdir_p = row
    assert run_edit(opcode, before, path, value, bool(mkdir_p)) == after
    if path and not mkdir_p and opcode not in (DICT_ADD, INSERT):  # MKDIR_P changes nothing then
        assert run_edit(opcode, before, path, value, P) == after


NOT_EDITED: list[tuple[Any, ...]] = [
    (DICT_ADD, '{"a":1}', "a", "2", EEXISTS),
    (DICT_ADD, "{}", "a.b", "1", ENOENT),
    (DICT_ADD, "[]", "a", "1", MISMATCH),
    (DICT_ADD, '{"a":1}', "a.b", "1", MISMATCH, P),
    (DICT_ADD, '{"a":[]}', "a.b", "1", MISMATCH, P),
    (DICT_ADD, "{}", "a[0].b", "1", ENOENT, P),
    (DICT_ADD, '{"a":[]}', "a[0].b", "1", ENOENT, P),
    (DICT_UPSERT, "[1]", "[0]", "1", EINVAL),
    (DICT_UPSERT, "[]", "[0]", "1", EINVAL),
    (DICT_UPSERT, "[1]", "[-1]", "1", EINVAL),
    (DICT_UPSERT, "{}", "", "1", EINVAL),
    (REPLACE, "{}", "a", "1", ENOENT),
    (REPLACE, "[]", "[0]", "1", ENOENT, P),
    (REPLACE, "[]", "", "1", EINVAL),
    (DELETE, "{}", "a", "", ENOENT),
    (DELETE, "[]", "[-1]", "", ENOENT),
    (DELETE, "{}", "", "", EINVAL),
    (PUSH_LAST, "{}", "", "1", MISMATCH),
    (PUSH_LAST, '"a"', "", "1", MISMATCH),
    (PUSH_LAST, "{}", "a", "1", ENOENT),
    (PUSH_LAST, '{"a":[]}', "a[0]", "1", ENOENT, P),
    (PUSH_LAST, '{"a":1}', "a", "1", MISMATCH, P),
    (PUSH_LAST, "[null]", "a.b", "1", MISMATCH, P),
    (PUSH_FIRST, "{}", "", "1", MISMATCH),
    (PUSH_FIRST, "{}", "a", "1", ENOENT),
    (PUSH_FIRST, '{"a":{}}', "a", "1", MISMATCH),
    (INSERT, "[]", "[1]", "1", ENOENT),
    (INSERT, "[1]", "[-1]", "1", EINVAL),
    (INSERT, "{}", "a", "1", EINVAL),
    (INSERT, "[]", "", "1", EINVAL),
    (INSERT, "{}", "[0]", "1", MISMATCH),
    (INSERT, "{}", "a[0]", "1", ENOENT, P),
    (ADD_UNIQUE, "[1]", "", "1", EEXISTS),
    (ADD_UNIQUE, "[ 1 ]", "", " 1 ", EEXISTS),
    (ADD_UNIQUE, "[1,[]]", "", "1", EEXISTS),
    (ADD_UNIQUE, "[[],1]", "", "1", MISMATCH),
    (ADD_UNIQUE, "[{}]", "", "1", MISMATCH),
    (ADD_UNIQUE, "[]", "", "[]", CANTINSERT),
    (ADD_UNIQUE, "[]", "", " {}", CANTINSERT),
    (ADD_UNIQUE, "[]", "", "1,2", CANTINSERT),
    (ADD_UNIQUE, "{}", "", "1", MISMATCH),
    (COUNTER, '{"n":1.0}', "n", "1", MISMATCH),
    (COUNTER, '{"n":1e3}', "n", "1", MISMATCH),
    (COUNTER, '{"n":"1"}', "n", "1", MISMATCH),
    (COUNTER, '{"n":null}', "n", "1", MISMATCH),
    (COUNTER, '{"n":[]}', "n", "1", MISMATCH),
    (COUNTER, '{"n":1}', "n.m", "1", MISMATCH),
    (COUNTER, "{}", "a.n", "1", ENOENT),
    (COUNTER, "[]", "[0]", "1", ENOENT, P),
    (COUNTER, "5", "", "1", EINVAL),
    (COUNTER, f'{{"n":{HIGHEST + 1}}}', "n", "-1", ERANGE),
    (COUNTER, f'{{"n":{LOWEST - 1}}}', "n", "1", ERANGE),
    (COUNTER, f'{{"n":{"9" * 5000}}}', "n", "1", ERANGE),
    (COUNTER, f'{{"n":{HIGHEST}}}', "n", "1", CANTINSERT),
    (COUNTER, f'{{"n":{LOWEST}}}', "n", "-1", CANTINSERT),
]


@pytest.mark.parametrize("row", NOT_EDITED, ids=lambda row: f"{row[0].name}-{row[1][:20]}-{row[2]}")
def test_invalid_edits_are_refused(row: tuple[Any, ...]) -> None:
    opcode, document, path, value, status, *mkdir_p = row
    assert find_refusal(run_edit, opcode, document, path, value, bool(mkdir_p)) == status


@pytest.mark.parametrize(
    "delta", ["", "0", "-0", "01", "+1", " 1", "1 ", "1.0", "1e3", "x", "-", "½", str(2**63), "9" * 99]
)
def test_invalid_delta_is_refused(delta: str) -> None:
    assert find_refusal(run_edit, COUNTER, "{}", "n", delta) == DELTA


@pytest.mark.parametrize(
    "value", ["", " ", "x", "1,2", '1,"b":2', "1}", "[1", "1]", '{"a"}', "2.", "NaN", '"\n"', "1 2"]
)
@pytest.mark.parametrize("opcode", [DICT_ADD, DICT_UPSERT, REPLACE, ADD_UNIQUE])
def test_invalid_value_is_refused(opcode: Opcode, value: str) -> None:
    assert find_refusal(run_edit, opcode, '{"a":1}', "a", value) == CANTINSERT


@pytest.mark.parametrize(
    "value", ["", " ", "x", "1,", ",1", "1],[2", "1]", "[1", "1,,2", "1 2", "Infinity", '"a', "]["]
)
@pytest.mark.parametrize(("opcode", "path"), [(PUSH_LAST, ""), (PUSH_FIRST, ""), (INSERT, "[0]")])
def test_invalid_values_are_refused(opcode: Opcode, path: str, value: str) -> None:
    assert find_refusal(run_edit, opcode, "[]", path, value) == CANTINSERT


def test_values_are_utf_8() -> None:
    for opcode, path in ((DICT_ADD, b"a"), (PUSH_LAST, b""), (COUNTER, b"a")):
        status = DELTA if opcode == COUNTER else CANTINSERT
        assert find_refusal(run_edit_at, opcode, "{}", parse_path(path), b'"\xff"', False) == status


def make_nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_no_document_becomes_too_deep() -> None:
    innermost = "[0]" * 31
    assert run_edit(REPLACE, make_nested(31) + " ", innermost[3:], "[[]]")
    assert find_refusal(run_edit, REPLACE, make_nested(31), innermost[3:], "[[[]]]") == ETOODEEP
    assert run_edit(PUSH_LAST, make_nested(32), innermost, "1,2")
    assert find_refusal(run_edit, PUSH_LAST, make_nested(32), innermost, "1,[]") == ETOODEEP
    assert find_refusal(run_edit, PUSH_FIRST, make_nested(32), innermost, "{}") == ETOODEEP
    assert run_edit(INSERT, make_nested(32), "[0]" * 32, "1")
    assert find_refusal(run_edit, INSERT, make_nested(32), "[0]" * 32, "[]") == ETOODEEP
    assert run_edit(DICT_ADD, "{}", ".".join("a" * 32), "1", P)
    assert find_refusal(run_edit, DICT_ADD, "{}", ".".join("a" * 32), "{}", P) == ETOODEEP
    assert run_edit(PUSH_LAST, "{}", ".".join("a" * 31), "1", P)
    assert find_refusal(run_edit, PUSH_LAST, "{}", ".".join("a" * 32), "1", P) == ETOODEEP
    assert find_refusal(run_edit, DICT_ADD, "{}", "a", make_nested(100_000)) == ETOODEEP


def test_new_document_is_an_array_or_an_object() -> None:
    assert creates_array(PUSH_LAST, b"")
    assert creates_array(PUSH_LAST, b"[0]")
    assert creates_array(DICT_UPSERT, b"[0]")
    assert not creates_array(PUSH_FIRST, b"a[0]")
    assert not creates_array(DICT_UPSERT, b"")


# Comparisons with the model

AROUND = ' {"a" : [ 1.50E+1,{}] ,\t"within" :%s , "\\u0062\\/":"\\u00e4ä" , "c":123456789012345678901234567890 }\n'
"""Text around a document of the tests, which no operation may change."""


def place_below(path: bytes) -> Path:
    return parse_path(b"within" + (b"." if path and path[:1] != b"[" else b"") + path)


KEYS = st.sampled_from(["a", "b", "a.b", "`", '"', "ü", "[0]", "\\"])
PRIMITIVES = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([2**63 - 2, 2**70, 1.5, "", ",", '"a"'])
DOCUMENTS = st.recursive(
    st.lists(PRIMITIVES, max_size=3) | st.dictionaries(KEYS, PRIMITIVES, max_size=3),
    lambda inner: st.lists(inner | PRIMITIVES, max_size=3) | st.dictionaries(KEYS, inner | PRIMITIVES, max_size=3),
    max_leaves=12,
)
ANY_PATH = st.lists(KEYS | st.sampled_from([0, 1, 2, -1]), max_size=3)


@st.composite
def paths_into(draw: st.DrawFn, value: Any) -> list[str | int]:
    """Draw a path into a value; most of the paths lead to a value."""
    path: list[str | int] = []
    while isinstance(value, list | dict) and value and draw(st.integers(0, 3)):
        component = draw(st.sampled_from(list(value) if isinstance(value, dict) else [*range(len(value)), -1]))
        path.append(component)
        value = value[component]
    return path + (draw(ANY_PATH) if draw(st.booleans()) else [])


def write_path(path: list[str | int]) -> bytes:
    parts = []
    for component in path:
        if isinstance(component, int):
            parts.append(f"[{component}]")
        else:
            text = json.dumps(component, ensure_ascii=False)[1:-1].replace("`", "``")
            parts.append(f".`{text}`")
    return "".join(parts).removeprefix(".").encode()


def try_operation(do: Any, *arguments: Any) -> Any:
    """Return the result of a function, or the Status of its refusal."""
    try:
        return do(*arguments)
    except (StatusError, model.OperationRefused) as error:
        return Status(error.status)


SPACES = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: "), (",\r\n ", ":")])


@given(st.data())
def test_operations_match_the_model(data: st.DataObject) -> None:
    document = data.draw(DOCUMENTS)
    path = data.draw(paths_into(document))
    opcode = data.draw(st.sampled_from(sorted(EDITS)))
    mkdir_p = data.draw(st.booleans())
    new: list[Any]
    if opcode == COUNTER:
        new = [data.draw(st.sampled_from([1, -1, 5, HIGHEST, LOWEST]))]
    else:
        several = opcode in (PUSH_LAST, PUSH_FIRST, INSERT)
        new = data.draw(st.lists(DOCUMENTS | PRIMITIVES, min_size=1, max_size=3 if several else 1))
    text = json.dumps(document, separators=data.draw(SPACES), ensure_ascii=data.draw(st.booleans()))
    value = ",".join(map(json.dumps, new)).encode()
    expected = try_operation(model.apply_operation, Opcode(opcode), document, path, new, mkdir_p)
    if isinstance(expected, Status):
        assert find_refusal(run_edit_at, opcode, text, parse_path(write_path(path)), value, mkdir_p) == expected
        return
    edited, answer = run_edit_at(opcode, text, parse_path(write_path(path)), value, mkdir_p)
    assert json.loads(edited) == expected
    assert run_edit_at(opcode, AROUND % text, place_below(write_path(path)), value, mkdir_p)[0] == AROUND % edited
    if opcode == COUNTER:
        assert answer == json.dumps(model.follow_path(expected, path))


@given(st.data())
def test_reads_match_the_model(data: st.DataObject) -> None:
    document = data.draw(DOCUMENTS)
    path = data.draw(paths_into(document))
    text = json.dumps(document, separators=data.draw(SPACES))
    found = try_operation(model.find_value, document, path)
    if isinstance(found, Status):
        for opcode in (GET, EXISTS, GET_COUNT):
            assert find_refusal(run_read_at, opcode, text, parse_path(write_path(path))) == found
        return
    assert json.loads(run_read_at(GET, text, parse_path(write_path(path)))) == found
    assert run_read_at(EXISTS, text, parse_path(write_path(path))) == ""
    if isinstance(found, list | dict):
        assert run_read_at(GET_COUNT, text, parse_path(write_path(path))) == str(len(found))
    else:
        assert find_refusal(run_read_at, GET_COUNT, text, parse_path(write_path(path))) == MISMATCH


DOCUMENTED = {each for each in Status if 0xC0 <= each <= 0xCA}
SOUP = st.text('[]{}":, \n\\ab1-.`', max_size=24).map(str.encode) | st.binary(max_size=12)


def edit_text(document: bytes, path: bytes, value: bytes, opcode: int, mkdir_p: bool) -> bytes:
    text = JsonText(document)
    EDITS[opcode](text, parse_path(path), value, mkdir_p)
    return text.read()


@given(SOUP, SOUP, SOUP, st.sampled_from(sorted(EDITS)), st.booleans())
def test_garbage_is_refused_with_a_status(document: bytes, path: bytes, value: bytes, opcode: int, p: bool) -> None:
    after = try_operation(edit_text, document, path, value, opcode, p)
    assert after in DOCUMENTED or JsonText(after).read() == after
