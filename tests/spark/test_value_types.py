"""Times, dates and decimals in values: the same in all readers, and compared with Spark's from_json."""

import json
import random
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from penstock.client.blocking import read_changes
from penstock.spark import Lake, append_changes
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
from penstock.spark.tables.spark_fields import select_fields
from penstock.spark.values.json_types import from_ddl
from tests.spark.running import catch_up

pytestmark = pytest.mark.spark

PIECES = [
    ["2026-11-28", "2026-02-29", "0001-01-01", "9999-12-31", "0000-01-01", "1582-10-10",
     "2026-1-2", "2026", " 2026-11-28", "10000-01-01"],
    ["", "T09:30", "T09:30:15", " 23:59:59", "T24:00:00", "T09:30:60", "T09", "t09:30:15"],
    ["", "", ".5", ".123456789", "."],
    ["", "Z", "z", "+01:00", "-0330", "+18", "+18:01", "+01:60", " Europe/Berlin"],
]  # fmt: skip
ISO = re.compile(r"(?!0000)\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?)?")
NO_SECONDS = re.compile(r".*[T ]\d\d:\d\d(Z|[+-].*)")
NANOSECONDS = re.compile(r"\.\d{6}0*[1-9]")
BEYOND = re.compile(r"0001-01-01.*\+.*|9999-12-31.*-0330")
"""Texts whose time in UTC is outside of the years 1 to 9999."""
TYPES = "t TIMESTAMP, d DATE, n DECIMAL(5, 2), w DECIMAL(38, 18), a ARRAY<STRUCT<t: TIMESTAMP, n: DECIMAL(5, 2)>>"


def make_values() -> list[str]:
    """Return scalars as JSON: texts of times, some of them odd, and numbers."""
    chance = random.Random(7)
    texts = {"".join(map(chance.choice, PIECES)) for _ in range(600)}
    digits = [
        "".join(chance.choices("0123456789", k=chance.randint(1, chance.choice([2, 40])))).lstrip("0") or "0"
        for _ in range(150)
    ]
    numbers = [f"{chance.choice(['', '-'])}{each}" for each in digits]
    numbers += [
        f"{number[: chance.randint(1, 7)]}.{chance.choice(digits)[:20]}" for number in numbers if number[-1:] != "-"
    ]
    numbers = [each for each in numbers if re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?", each)]
    return [*map(json.dumps, sorted(texts)), '"1.5"', '"17"', "true", "[1]", "{}", "1e2", "25E-1", "-0.0", *numbers]


def explain_time(value: str, ours: object, theirs: object) -> bool:
    """Return whether two times are equal, or differ in a documented way."""
    text = value.strip('"')
    if ours is None:
        is_odd = not ISO.fullmatch(text) or NANOSECONDS.search(text) or BEYOND.fullmatch(text)
        return theirs is None or text == value or bool(is_odd)
    is_small = text != text.upper()
    return ours == theirs or (theirs is None and (is_small or bool(NO_SECONDS.fullmatch(text))))


def explain_date(value: str, ours: object, theirs: object) -> bool:
    text = value.strip('"')
    return ours == theirs or (ours is None and not re.fullmatch(r"(?!0000)\d{4}-\d\d-\d\d", text))


def explain_decimal(value: str, ours: object, theirs: object, scale: int) -> bool:
    if ours is None and theirs is not None:
        return value.startswith('"') or (Fraction(value) * 10**scale).denominator > 1
    return ours == theirs


def test_differences_to_from_json_are_the_documented_ones(spark):
    values = make_values()
    template = '{"t":%s,"d":%s,"n":%s,"w":%s,"a":[{"t":%s,"n":%s}]}'
    rows = [(value, (template % ((value,) * 6)).encode()) for value in values]
    frame = spark.createDataFrame(rows, "text string, value binary")
    names = from_ddl(TYPES).names
    ours = select_fields(frame, ["text", "value"], "value", from_ddl(TYPES), names)
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")  # has no effect on either
    try:
        theirs = F.from_json(F.col("value").cast("string"), TYPES, {"timeZone": "UTC"})
        micros = [F.unix_micros(column).alias(name) for column, name in ((F.col("t"), "t"), (F.col("x.t"), "xt"))]
        both = ours.withColumn("x", theirs)
        columns = [
            *micros,
            *(
                F.col(f"{side}{name}").cast("string").alias(f"{side}{name}".replace(".", ""))
                for side in ("", "x.")
                for name in "dnw"
            ),
        ]
        found = (
            both.select("text", *columns, F.expr("a[0].t = t AND a[0].n <=> n").alias("inner")).toArrow().to_pylist()
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [row["text"] for row in found] == values
    odd = [
        row
        for row in found
        if not explain_time(row["text"], row["t"], row["xt"])
        or not explain_date(row["text"], row["d"], row["xd"])
        or not explain_decimal(row["text"], row["n"], row["xn"], 2)
        or not explain_decimal(row["text"], row["w"], row["xw"], 18)
        or row["inner"] is False
    ]
    assert odd == []
    assert all(sum(row[name] is not None for row in found) > 20 for name in ("t", "n", "w", "xt", "xn"))


SCHEMA = "at TIMESTAMP, days ARRAY<DATE>, price DECIMAL(20, 2), o STRUCT<at: TIMESTAMP>"
DOCUMENTS = {
    "early": b'{"at":"2026-11-28T09:30:00+01:00","days":["2026-12-24","soon"],"price":12345678901234567.89}',
    "late": b'{"at":"2026-11-28T08:30:00.25","days":["2026-12-24"],"price":1.5e2,"o":{"at":"2026-11-28"}}',
    "bad": b'{"at":"2026-02-30","days":"2026-12-24","price":0.005,"o":{"at":7}}',
    "none": b"no JSON",
}
CHRISTMAS, SATURDAY = date(2026, 12, 24), datetime(2026, 11, 28, tzinfo=UTC)
FIELDS = {
    "early": (SATURDAY.replace(hour=8, minute=30), [CHRISTMAS, None], Decimal("12345678901234567.89"), None),
    "late": (
        SATURDAY.replace(hour=8, minute=30, microsecond=250_000),
        [CHRISTMAS],
        Decimal("150.00"),
        {"at": SATURDAY},
    ),
    "bad": (None, None, None, {"at": None}),
    "none": (None, None, None, None),
}
REST = {"early": '{"days":["2026-12-24","soon"]}', "late": None, "bad": DOCUMENTS["bad"].decode(), "none": "no JSON"}
WHERE = "at >= TIMESTAMP'2026-11-28 08:30:00Z' AND price > 149.99 AND days[0] = DATE'2026-12-24'"


def read_rows(rows: pa.Table) -> dict[str, tuple[object, ...]]:
    """Return the fields of rows, and their rest, by key."""
    return {row["key"]: (*(row[name] for name in from_ddl(SCHEMA).names), row["_rest"]) for row in rows.to_pylist()}


def test_all_readers_give_the_same_times_dates_and_decimals(spark, lake, documents, tmp_path):
    documents.store(DOCUMENTS)
    catch_up(spark, documents.url, lake)
    iceberg = Lake(tmp_path / "iceberg", "iceberg")
    append_changes(iceberg, "by hand", 0, read_changes(documents.url, stop="now"), vbuckets=16)
    expected = {key: (*fields, REST[key]) for key, fields in FIELDS.items()}
    for each in (lake, iceberg):
        assert read_rows(each.json_view(SCHEMA)) == expected
        assert read_rows(each.json_frame(spark, SCHEMA).toArrow()) == expected
        options = {"table": "json", "valueSchema": SCHEMA}
        frame = spark.read.format("penstock-lake").options(**options).load(str(each.path))
        assert read_rows(frame.toArrow()) == expected
    options = {"url": documents.url, "valueFormat": "json", "valueSchema": SCHEMA}
    changes = (
        spark.read.format("dcp")
        .options(**options)
        .load()
        .selectExpr("CAST(key AS STRING)", "value.*", "value_rest AS _rest")
    )
    assert read_rows(changes.toArrow()) == expected
    chosen = Lake(tmp_path / "chosen")
    catch_up(spark, documents.url, chosen, where=WHERE, value_schema=SCHEMA)
    assert sorted(chosen.current(["key"])["key"].to_pylist()) == ["early", "late"]
    index = SecondaryIndex(chosen, "by_day", "days", "date")
    assert sorted(index.range(CHRISTMAS, "2026-12-24")["key"].to_pylist()) == ["early", "late"]
