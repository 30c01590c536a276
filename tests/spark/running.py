"""A pipeline that runs while a test changes the bucket."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from penstock.spark import Lake
from penstock.spark.pipeline.definition.definition import define_bucket_pipeline
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from penstock.spark.pipeline.state.run_progress import SourceProgress
from tests.patience import PATIENCE


class Running:
    """A pipeline that runs in a thread, with methods that wait for its progress."""

    def __init__(self) -> None:
        self.finish = threading.Event()
        self.done: Future[tuple[SourceProgress, ...]] = Future()
        self._moved = threading.Condition()
        self._progress = SourceProgress()

    def report(self, progress: SourceProgress) -> None:
        with self._moved:
            self._progress = progress
            self._moved.notify_all()

    def reached(self, rows: int) -> None:
        self.until(lambda: self._progress.rows >= rows)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is checked whenever the pipeline reports progress."""
        with self._moved:
            assert self._moved.wait_for(lambda: self.done.done() or condition(), PATIENCE), self._progress
        if self.done.done():
            self.done.result()

    def ended(self, done: Future[tuple[SourceProgress, ...]]) -> None:
        with self._moved:
            self._moved.notify_all()


@contextmanager
def running(spark, url: str, lake: Lake, **source) -> Iterator[Running]:
    """Follow a bucket while the block lasts, and then until everything is in the lake."""
    run_, wanted = Running(), define_bucket_pipeline(str(lake.path), url=url, trigger_seconds=0.2, **source)
    with ThreadPoolExecutor(1) as pool:
        run_.done = pool.submit(run_pipeline, wanted, spark=spark, report=run_.report, finish=run_.finish)
        run_.done.add_done_callback(run_.ended)
        try:
            yield run_
        finally:
            run_.finish.set()
            run_.done.result(PATIENCE)


def catch_up(spark, url, lake, **source) -> SourceProgress:
    """Run a pipeline up to the current end of a bucket."""
    (progress,) = run_pipeline(
        define_bucket_pipeline(str(lake.path), url=url, **source), available_now=True, spark=spark
    )
    return progress
