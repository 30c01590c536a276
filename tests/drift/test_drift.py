"""A short month of schema drift: five days, without Spark."""

import re

import pytest

from tests.drift.drift_run import run_month
from tests.drift.month import SHORT

pytestmark = [pytest.mark.process, pytest.mark.long]


def test_tables_equal_the_bucket_in_all_readers_after_each_day(tmp_path):
    lines = [*run_month(str(tmp_path), is_short=True, with_spark=False)]
    assert [line[8:] for line in lines if line.startswith("day")] == [day.title for day in SHORT]
    orders = [re.findall(r"\d+", line)[:4] for line in lines if line.startswith("        orders ")]
    assert [int(columns) for _, columns, _, _ in orders] == [18, 19, 19, 19, 19]
    misfits = [int(count) for _, _, count, _ in orders]
    assert misfits[:2] == [0, 0]
    assert misfits[3] > misfits[2] > 0
    assert misfits[4] != misfits[3]
