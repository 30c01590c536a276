"""Histograms of durations, with powers of two of microseconds as bounds."""

import pytest

from penstock.node.buckets.histogram import Histogram

SECONDS = [
    (0.0, "work_0,1"),
    (0.000_001, "work_1,2"),
    (0.000_003, "work_2,4"),
    (0.001, "work_512,1024"),
    (1.0, "work_524288,1048576"),
]


@pytest.mark.parametrize(("seconds", "name"), SECONDS)
def test_duration_is_counted_between_two_powers_of_two(seconds, name):
    histogram = Histogram()
    histogram.record(seconds)
    assert list(histogram.list_stats("work")) == [(name, 1)]


def test_histograms_are_merged_and_reset():
    histograms = [Histogram(), Histogram(), Histogram()]
    for histogram, seconds in zip(histograms, (0.000_003, 0.000_003, 0.001), strict=True):
        histogram.record(seconds)
    merged = Histogram.merge(histograms)
    assert list(merged.list_stats("work")) == [("work_2,4", 2), ("work_512,1024", 1)]
    assert merged.count == 3
    assert merged.total == pytest.approx(0.001_006)
    histograms[0].reset()
    assert list(histograms[0].list_stats("work")) == []
    assert (histograms[0].count, histograms[0].total, histograms[0].last) == (0, 0.0, 0.0)
