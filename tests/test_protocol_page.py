"""The examples and the links of docs/protocol.md, which is made from the layouts."""

import re
from pathlib import Path

from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import cut_frame, read_frame_length
from penstock.wire.messages.describe import describe_frame

PAGE = (Path(__file__).parent.parent / "docs" / "protocol.md").read_text(encoding="utf-8")
CHAPTERS = {"TAP": Dialect.TAP, "UPR draft": Dialect.UPR_DRAFT, "UPR": Dialect.UPR, "DCP": Dialect.DCP}
SECTION = re.compile(r"^### (?P<title>[^\n]+)\n(?P<text>.*?)(?=^##)", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OCTETS = re.compile(r"^ *(?P<offset>\d+)  (?P<octets>(?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  |$)", re.MULTILINE)


def examples() -> list[tuple[str, Dialect, str]]:
    """Return (heading, dialect, lines) of each example."""
    found = []
    for chapter in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        dialect = CHAPTERS.get(chapter.partition("\n")[0], Dialect.DCP)
        for section in SECTION.finditer(f"{chapter}\n##"):
            found += [(section["title"], dialect, lines) for lines in EXAMPLE.findall(section["text"])]
    return found


EXAMPLES = examples()


def test_each_example_is_the_message_of_its_heading():
    for title, dialect, lines in EXAMPLES:
        data = b""
        for line in OCTETS.finditer(lines):
            assert int(line["offset"]) == len(data), title
            data += bytes.fromhex(line["octets"])
        assert read_frame_length(data, 0) == len(data), title
        described = describe_frame(cut_frame(memoryview(data), 0), dialect)
        assert described.fault is None, title
        assert described.reply == (data[0] in (0x81, 0x83)), title
        if not re.fullmatch(r"[A-Z][a-z]+\w*", title):  # a reply to many commands
            assert described.name in title or title == "DRAFT_NOT_MY_VBUCKET"


def test_there_are_examples_of_every_dialect():
    assert {dialect for _, dialect, _ in EXAMPLES} == set(Dialect)
    assert len(EXAMPLES) > 90


def test_every_link_leads_to_a_heading():
    anchors = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    }
    links = set(re.findall(r"\]\(#([^)]+)\)", PAGE))
    assert links
    assert links <= anchors
