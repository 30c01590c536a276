import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StatusError
from penstock.store.subdoc.path import format_path, parse_path
from penstock.wire.codec.statuses import Status

PATHS = [
    (b"", []),
    (b"a", ["a"]),
    (b"a.b.c", ["a", "b", "c"]),
    (b"a[0][12].b[-1]", ["a", 0, 12, "b", -1]),
    (b"[1].[2].[-1]", [1, 2, -1]),
    (b"[007]", [7]),
    (b"a b.c-d", ["a b", "c-d"]),
    ("größe.数".encode(), ["größe", "数"]),
    (b"`a.b`.`c[0]`", ["a.b", "c[0]"]),
    (b"`a``b`", ["a`b"]),
    (b"a``b", ["a`b"]),
    (b"pre`.`post", ["pre.post"]),
    (b"````", ["`"]),
    (b"`a```", ["a`"]),
    (b'a\\"b', ['a"b']),
    (b'`a\\"b.c`', ['a"b.c']),
    (b"tab\\there\\\\", ["tab\there\\"]),
    (b"$document.CAS", ["$document", "CAS"]),
]


@pytest.mark.parametrize(("path", "components"), PATHS)
def test_path_is_split_into_components(path: bytes, components: list[str | int]) -> None:
    assert [each if isinstance(each, int) else each.name for each in parse_path(path)] == components


WRONG = [
    *(b".", b"..", b".a", b"a.", b"a..b", b"[0].", b"a.b."),
    *(b"[", b"]", b"[]", b"[a]", b"[-2]", b"[-0]", b"[+1]", b"[1", b"1]", b"[ 1]", b"[1.0]", b"a[0]b", b"a]", b"[-1"),
    *(b"`", b"a`b", b"``", b"`a", b"`a`.`", b"`a``"),
    *(b'"a"', b'a"b', b"a\nb", b"a\0", b"`a\tb`", b"a\\", b"a\\x", b"a\\u0041", b"`a\\`"),
    *(b"\xff", b"a.\xc3", b"\xed\xa0\x80"),
]


@pytest.mark.parametrize("path", WRONG)
def test_invalid_path_is_refused(path: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        parse_path(path)
    assert caught.value.status == Status.SUBDOC_PATH_EINVAL


def test_a_path_has_limits() -> None:
    assert len(parse_path(b".".join([b"a"] * 32))) == 32
    assert len(parse_path(b"[0]" * 32)) == 32
    assert parse_path(b"a" * 1024)
    for path in (b".".join([b"a"] * 33), b"[0]" * 33, b"a" * 1025, b"[" + b"9" * 5000 + b"]"):
        with pytest.raises(StatusError) as caught:
            parse_path(path)
        assert caught.value.status == Status.SUBDOC_PATH_E2BIG


def format_components(path: bytes) -> list[str]:
    """Return the text of each component, nothing for an invalid path."""
    try:
        return [str(each) if isinstance(each, int) else each.text for each in parse_path(path)]
    except StatusError as error:
        return [] if error.status == Status.SUBDOC_PATH_EINVAL else [""]


@given(st.binary(max_size=40) | st.text('a.[]`0-1\\"', max_size=20).map(str.encode))
def test_any_bytes_are_a_path_or_refused(path: bytes) -> None:
    assert all(format_components(path))


def test_a_path_is_shown_in_messages() -> None:
    assert format_path(parse_path(b"a[0].b[-1]")) == "a[0].b[-1]"
    assert format_path(()) == "''"
