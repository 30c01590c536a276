"""Numbers in text of others are ASCII digits, at every door."""

from collections.abc import Callable

import pytest

from penstock.client.connect.address import parse_address
from penstock.client.filters.change_filter import ChangeFilter
from penstock.client.signals.web_listener import read_listener
from penstock.digits import read_digits, read_hex_digits, read_u64
from penstock.errors import StatusError, UsageError
from penstock.node.http.pages.forms import make_number_parser
from penstock.node.stats.key_stats import parse_id
from penstock.node.stats.stat_group import parse_vbucket
from penstock.spark.lake.maintenance.lake_retention import parse_retention
from penstock.spark.runtime.changelog_sink import open_lake

ARABIC, WIDE = "\N{ARABIC-INDIC DIGIT FIVE}", "\N{FULLWIDTH DIGIT FIVE}"
ODD = [
    " 5",
    "5 ",
    "5\n",
    "+5",
    "1_0",
    "5.0",
    "1e1",
    "0x5",
    ARABIC,
    WIDE,
    "²",
    "⑤",
    "nan",
    "9" * 5000,
]


@pytest.mark.parametrize("text", ["", "-5", *ODD])
def test_other_text_is_no_number(text: str) -> None:
    assert read_digits(text, 2**64) is None
    with pytest.raises(ValueError, match="is not a number from 0 to 2"):
        read_u64(text)


def test_digits_are_numbers_within_limits() -> None:
    assert [read_digits(text, 10, 1) for text in ("0", "1", "007", "10", "11")] == [None, 1, 7, 10, None]
    assert (read_u64("18446744073709551615"), read_digits("18446744073709551616", 2**64 - 1)) == (2**64 - 1, None)
    assert (read_hex_digits("fF"), read_hex_digits("0" * 16)) == (255, 0)
    assert {read_hex_digits(text) for text in ("0" * 17, "", "0x1", "1_0", " 1", ARABIC, "-1")} == {None}


DOORS: dict[str, Callable[[str], object]] = {
    "port": lambda text: parse_address(f"couchbase://h:{text}/b"),
    "number option": lambda text: parse_address(f"couchbase://h/b?operationTimeout={text}"),
    "page": lambda text: read_listener(text, None),
    "filter": lambda text: ChangeFilter(None, f"a[{text}] = 1"),
    "retention": lambda text: parse_retention(f"{text}days"),
    "lake": lambda text: open_lake({"path": "/tmp", "vbuckets": text}, "format"),
    "form": make_number_parser(0, 100),
    "vbucket of statistics": lambda text: parse_vbucket("vbucket", text),
    "id of statistics": lambda text: parse_id(f"0x{text}"),
}
ALSO_READ = {("number option", "5.0"), ("number option", "1e1")}
ALSO_READ |= {("filter", " 5"), ("filter", "5 "), ("filter", "5\n"), ("retention", "5 "), ("retention", "5\n")}
ALSO_READ |= {("retention", " 5"), ("id of statistics", "1e1")}


@pytest.mark.parametrize("text", ODD, ids=[ascii(text)[:12] for text in ODD])
@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_other_text(door: str, text: str) -> None:
    if (door, text) in ALSO_READ:
        DOORS[door](text)
        return
    with pytest.raises((UsageError, StatusError, ValueError)) as caught:
        DOORS[door](text)
    assert isinstance(caught.value, UsageError | StatusError) or "expected" in str(caught.value)


@pytest.mark.parametrize("door", DOORS)
def test_every_door_reads_digits(door: str) -> None:
    DOORS[door]("5")
