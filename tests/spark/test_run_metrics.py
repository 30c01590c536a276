"""Readiness of a run of a pipeline, as its server of metrics reports it."""

from dataclasses import replace

import pytest

from penstock.spark.pipeline.run.run_metrics import PipelineMetrics
from penstock.spark.pipeline.state.run_progress import DependentProgress, SourceProgress

READY = SourceProgress("beer", lag=0, dependents=(DependentProgress("current", "current"),))
FAILED = DependentProgress("cache", "invalidate", error="secret", failures=2)


@pytest.mark.parametrize(
    ("progress", "problems"),
    [
        (READY, []),
        (replace(READY, lag=10_000), []),
        (replace(READY, lag=None), ["source beer: the lag is not known"]),
        (replace(READY, missing_vbuckets=(1, 3)), ["source beer: 2 vbuckets wait for their nodes"]),
        (replace(READY, dependents=(FAILED,)), ["source beer: invalidate cache has failed 2 times in a row"]),
    ],
)
def test_run_is_ready_while_all_sources_are_connected_and_nothing_fails(progress, problems):
    metrics = PipelineMetrics(["beer", "wine"])
    metrics.update(replace(READY, source="wine"))
    assert metrics.find_problems() == ["no progress yet"]
    metrics.update(progress)
    assert metrics.find_problems() == problems


def test_source_without_a_name_is_ready():
    metrics = PipelineMetrics([None])
    metrics.update(replace(READY, source=None, lag=None))
    assert metrics.find_problems() == ["the lag is not known"]
