"""Declared options: the results of one field's declaration, and the errors for invalid values."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import pytest

from penstock.cli.base.option_parameters import add_options
from penstock.errors import UsageError
from penstock.options import (
    BOOLEAN,
    FILE,
    INTEGER,
    POSITIVE,
    SECONDS,
    SIZE,
    TEXT,
    check_limits,
    format_option,
    given_options,
    list_of,
    list_options,
    member_of,
    nonempty,
    number,
    one_of,
    option,
    read_options,
    read_shared_values,
    shared_option,
    text_list,
    to_external_name,
    whole_number,
)
from penstock.spark.dependents.checks import check_declared_name, validate_name
from penstock.spark.pipeline.definition.definition import CurrentSettings
from penstock.toml_tables import TomlPlace, build_dataclass, parse_table


class Taste(StrEnum):
    """Words of an option."""

    SWEET = "sweet"
    DRY = "dry"


@dataclass(frozen=True, kw_only=True)
class Brewing:
    """Some options, and a field that is none."""

    given_in: ClassVar[str] = "the recipe"

    hop_grams: float = option(number(0, 500), "grams of hops", default=40.0)
    days_open: int = option(whole_number(1, 30), "days in the open vat", default=7)
    mash_seconds: float = option(number(0, scale=60), "minutes of mashing", default=3600.0, flag="--mash-minutes")
    taste: Taste = option(member_of(Taste), "the taste", default=Taste.DRY)
    yeast: str = option(nonempty("a name"), "the yeast", default="", shown="of the house")
    label: str | None = option(FILE, "the picture", default=None, environment="LABEL")
    malts: tuple[str, ...] = option(text_list(), "the malts", default=(), shown="pale")
    secret: str = option(TEXT, "what makes it good", default="nothing", secret=True)
    filtered: bool = option(BOOLEAN, "without yeast", default=False)
    inner: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Options of which only those that are given count."""

    glasses: int = option(POSITIVE, "how many", default=1)
    ice: bool = option(BOOLEAN, "with ice", default=False)


@dataclass(frozen=True, kw_only=True)
class Bottling:
    """Options that are another class's, and of its own."""

    taste: Taste | None = shared_option(Brewing, example="sweet")
    days_open: int | None = shared_option(Brewing, doc="days on the shelf", shown="a week")
    glasses: int | None = shared_option(Serving)
    bottles: int = option(POSITIVE, "how many", default=1)
    crates: tuple[int, ...] | None = option(list_of(whole_number(1, 9)), "which crates", default=None, flag="--crate")


@dataclass(frozen=True, kw_only=True)
class Order:
    """A table of a file with the options of another class."""

    given: Mapping[str, str] = given_options(Brewing, without=("secret",))
    number: int = option(whole_number(1, 9), "of the order")
    label: str = "own"


def test_a_field_gives_all_names():
    names = {name: (each.external_name, each.flag) for name, each in list_options(Brewing).items()}
    assert names["hop_grams"] == ("hopGrams", "--hop-grams")
    assert names["mash_seconds"] == ("mashSeconds", "--mash-minutes")
    assert "inner" not in names
    assert to_external_name("a_bc_d") == "aBcD"


def test_defaults_in_words():
    words = {name: each.default_text for name, each in list_options(Brewing).items()}
    assert (words["hop_grams"], words["mash_seconds"], words["filtered"]) == ("40", "60", "false")
    assert (words["taste"], words["yeast"], words["label"]) == ("dry", "of the house", "LABEL of the environment")


def test_shared_option_is_declared_once():
    declared = list_options(Bottling)
    assert declared["taste"].doc == "the taste"
    assert declared["taste"].default_text == "of the recipe, else dry"
    assert (declared["days_open"].doc, declared["days_open"].default_text) == (
        "days on the shelf",
        "of the recipe, else a week",
    )
    assert declared["glasses"].default_text == "1"
    assert read_shared_values(Bottling(taste=Taste.SWEET, bottles=3), Brewing) == {"taste": Taste.SWEET}


def test_texts_become_values():
    given = {"hopGrams": "1e2", "taste": "sweet", "malts": "pale,black", "filtered": "true", "yeast": "wild"}
    assert Brewing(**read_options(Brewing, given, "here")) == Brewing(
        hop_grams=100.0, taste=Taste.SWEET, malts=("pale", "black"), filtered=True, yeast="wild"
    )
    assert read_options(Bottling, {"crates": "3,1"}, "here") == {"crates": (3, 1)}
    assert read_options(Brewing, {"HOPGRAMS": "3"}, "here", any_case=True) == {"hop_grams": 3.0}
    assert "nothing" not in repr(Brewing())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"hopGrams": "501"}, "option hopGrams is '501', expected a number from 0 to 500"),
        ({"hopGrams": "nan"}, "option hopGrams is 'nan', expected a number from 0 to 500"),
        ({"hopGrams": "1_0"}, "option hopGrams is '1_0', expected a number from 0 to 500"),
        ({"daysOpen": "2.5"}, "option daysOpen is '2.5', expected a whole number from 1 to 30"),
        ({"daysOpen": "٣"}, "option daysOpen is '٣', expected a whole number from 1 to 30"),
        ({"mashSeconds": "-1"}, "option mashSeconds is '-1', expected a number from 0"),
        ({"taste": "sour"}, "option taste is 'sour', expected one of sweet, dry"),
        ({"yeast": ""}, "option yeast is empty, expected a name"),
        ({"label": ""}, "option label is empty, expected a file"),
        ({"filtered": "yes"}, "option filtered is 'yes', expected true or false"),
        ({"hopgrams": "1"}, "unknown option 'hopgrams' in the cellar; known are hopGrams, daysOpen, mashSeconds"),
        ({"inner": "1"}, "unknown option 'inner' in the cellar"),
    ],
)
def test_invalid_value_raises_one_sentence(given, sentence):
    with pytest.raises(UsageError) as raised:
        read_options(Brewing, given, "in the cellar")
    assert str(raised.value).startswith(sentence)


def test_kinds_of_options():
    assert [SIZE.read("s", text) for text in ("5", "1k", "2M", "3g")] == [5, 1 << 10, 2 << 20, 3 << 30]
    assert one_of("a", "b").value == Literal["a", "b"]
    assert one_of(*Taste).read("taste", "dry") is Taste.DRY
    with pytest.raises(UsageError, match="option n is '0', expected a whole number above 0"):
        POSITIVE.read("n", "0")
    with pytest.raises(UsageError, match=f"option n is '{10**18}', expected .* above 0, at most {10**18 - 1}"):
        POSITIVE.read("n", str(10**18))
    with pytest.raises(UsageError, match="of at most 18 digits"):
        SIZE.read("s", "1" * 19)
    with pytest.raises(UsageError, match=r"option n is '86401', expected a number from 0\.001 to 86400\.0"):
        SECONDS.read("n", "86401")
    with pytest.raises(UsageError, match="option n is 'x', expected a whole number"):
        INTEGER.read("n", "x")
    assert [format_option(value) for value in (True, ("a", "b"), 2.5)] == ["true", "a,b", "2.5"]


def test_numbers_of_objects_have_the_same_limits():
    check_limits(Brewing())
    with pytest.raises(UsageError, match=r"^hop_grams is 501, expected 0 to 500$"):
        check_limits(Brewing(hop_grams=501))


def test_options_are_keys_of_a_table(tmp_path):
    place = TomlPlace(str(tmp_path / "beer.toml"), "[order]")
    found = parse_table(Order, place, {"number": 1, "hop_grams": 3, "malts": ["pale", "black"], "filtered": True})
    assert found.given == {"hop_grams": "3.0", "malts": "pale,black", "filtered": "true"}
    assert found == build_dataclass(
        Order, {"number": 1, "hop_grams": 3.0, "malts": ("pale", "black"), "filtered": True}
    )
    assert parse_table(Order, place, {"number": 1, "label": "mine"}) == Order(number=1, label="mine")
    with pytest.raises(UsageError, match=r"\[order\] has an unknown key 'secret'; known are"):
        parse_table(Order, place, {"number": 1, "secret": "x"})
    with pytest.raises(UsageError, match=r"\[order\] has no number"):
        parse_table(Order, place, {})
    with pytest.raises(UsageError, match=r"\[order\] taste is 'sour', expected 'sweet' or 'dry'"):
        parse_table(Order, place, {"number": 1, "taste": "sour"})


def test_options_are_parameters_of_a_command():
    found: list[dict[str, Any]] = []

    @add_options("beer", Brewing)
    @add_options("chosen", Serving, only_given=True)
    def brew(*, beer: dict[str, Any], chosen: dict[str, Any], loud: bool = False) -> None:
        found.extend((beer, chosen, {"loud": loud}))

    parameters = inspect.signature(brew).parameters
    assert parameters["hop_grams"].default == 40.0
    assert parameters["glasses"].default is None
    assert list(parameters)[-1] == "loud"
    chosen = {name: each.default for name, each in parameters.items()} | {"mash_seconds": 5, "glasses": 2}
    brew(**chosen)
    beer, serving, rest = found
    assert (beer["mash_seconds"], beer["days_open"], "label" in beer) == (300, 7, False)
    assert (serving, rest) == ({"glasses": 2}, {"loud": False})


def test_a_list_is_given_several_times():
    @add_options("chosen", Bottling)
    def bottle(*, chosen: dict[str, Any]) -> None:
        assert chosen == {"crates": [1, 3], "bottles": 1}

    annotation = inspect.signature(bottle).parameters["crates"].annotation
    assert get_args(annotation)[0] == list[int] | None
    bottle(taste=None, days_open=None, glasses=None, bottles=1, crates=[1, 3])


def test_limits_of_large_numbers_are_exact():
    with pytest.raises(UsageError, match=f"merge_rows is {10**12 + 1}, expected 1 to {10**12}$"):
        CurrentSettings(merge_rows=10**12 + 1)


@pytest.mark.parametrize("name", ["-a", "_a", "", "a" * 65, "a.b"])
def test_refused_name_does_not_match_the_expectation(name):
    expected = "expected 1 to 64 letters, digits, - and _, the first no - or _"
    for check in (validate_name, partial(check_declared_name, "sink")):
        with pytest.raises(UsageError, match=expected):
            check(name)
