"""Text that people bring: byte order marks, other encodings, line ends."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import text_files
from penstock.errors import UsageError
from penstock.text_files import LineReader, decode_text, read_text_file, split_lines

MARK = b"\xef\xbb\xbf"

OTHER_ENCODINGS = [
    ("héllo".encode("utf-16"), "byte 1, 0xff, begins the byte order mark of UTF-16"),
    (b"\xfe\xff" + "héllo".encode("utf-16-be"), "byte 1, 0xfe, begins the byte order mark of UTF-16"),
    ("héllo".encode("utf-32"), "byte 1, 0xff, begins the byte order mark of UTF-32"),
    (b"\0\0\xfe\xff" + "héllo".encode("utf-32-be"), "byte 1, 0x00, begins the byte order mark of UTF-32"),
    ("hello".encode("utf-16-le"), "byte 2 is 0x00, as in UTF-16 or UTF-32"),
    ("hello".encode("utf-16-be"), "byte 1 is 0x00, as in UTF-16 or UTF-32"),
    ("hello".encode("utf-32-le"), "byte 2 is 0x00, as in UTF-16 or UTF-32"),
]


@pytest.mark.parametrize(
    ("content", "reason"), [*OTHER_ENCODINGS, ("hé".encode("latin-1"), "byte 2, 0xe9, is not UTF-8")]
)
def test_other_encodings_are_refused(content, reason, tmp_path):
    with pytest.raises(UsageError, match=f"^file: {reason}; expected a list in UTF-8$"):
        decode_text(content, "file", "a list")
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(UsageError, match=reason):
        read_text_file(tmp_path / "list", "a list", 100)


@pytest.mark.parametrize(("content", "reason"), OTHER_ENCODINGS)
def test_lines_of_other_encodings_are_refused_at_the_first(content, reason):
    with pytest.raises(UsageError, match=f"^file: {reason}; expected lines of JSON in UTF-8$"):
        next(iter(LineReader(io.BytesIO(content), "file")))


def test_secret_bytes_are_not_shown():
    with pytest.raises(UsageError, match=r"^file: byte 2 is not UTF-8; expected a password in UTF-8$"):
        decode_text("pé".encode("latin-1"), "file", "a password", is_secret=True)


@given(st.lists(st.text(st.characters(exclude_characters="\r\n\ufeff", codec="utf-8")), max_size=5), st.data())
def test_lines_of_joined_files_are_the_lines_of_each(lines, data):
    """With any ends and marks, both readers return the lines: every other character is content."""
    ends = [data.draw(st.sampled_from(["\n", "\r\n"])) for _ in lines]
    marks = [data.draw(st.sampled_from(["", "\ufeff", "\ufeff\ufeff"])) for _ in lines]
    content = "".join(map("".join, zip(marks, lines, ends, strict=True))).encode()
    if b"\0" not in content[:4]:
        assert split_lines(decode_text(content, "file", "lines")) == lines
        reader = LineReader(io.BytesIO(content), "file")
        assert [line.decode().removesuffix("\n").removesuffix("\r") for line in reader] == lines
        assert reader.nbytes == len(content)


@given(st.binary(max_size=40))
def test_any_bytes_are_text_or_refused(content):
    try:
        text = decode_text(content, "file", "lines")
    except UsageError:
        return
    assert text.encode() == b"\n".join(line.removeprefix(MARK) for line in content.split(b"\n")) or MARK * 2 in content


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".", "Is a directory, expected a list"),
        ("none", "No such file or directory, expected a list"),
        ("a\0b", "embedded null byte, expected a list"),
        ("x" * 300, "File name too long, expected a list"),
        ("long", "more than 4 bytes, expected a list"),
    ],
)
def test_file_without_text_is_refused(name, reason, tmp_path):
    (tmp_path / "long").write_text("12345")
    with pytest.raises(UsageError, match=reason):
        read_text_file(str(tmp_path / name), "a list", 4)


def test_too_long_line_is_refused(monkeypatch):
    monkeypatch.setattr(text_files, "MOST_LINE_BYTES", 8)
    reader = iter(LineReader(io.BytesIO(b"1234567\n12345678\n"), "file"))
    assert next(reader) == b"1234567\n"
    with pytest.raises(UsageError, match="file line 2: more than 8 bytes, the limit"):
        next(reader)
