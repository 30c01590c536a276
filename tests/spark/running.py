"""A pipeline that runs while a test changes the bucket."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from penstock.spark.lake import Lake
from penstock.spark.pipeline.run import Progress, Settings, run

SECONDS = 120.0


class Running:
    """A pipeline that runs in a thread. `reached` waits for its progress."""

    def __init__(self) -> None:
        self.finish = threading.Event()
        self.done: Future[Progress] = Future()
        self._moved = threading.Condition()
        self._progress = Progress()

    def report(self, progress: Progress) -> None:
        with self._moved:
            self._progress = progress
            self._moved.notify_all()

    def reached(self, rows: int) -> None:
        self.until(lambda: self._progress.rows >= rows)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so, looking whenever the pipeline tells where it stands."""
        with self._moved:
            assert self._moved.wait_for(lambda: self.done.done() or condition(), SECONDS), self._progress
        if self.done.done():
            self.done.result()

    def ended(self, done: Future[Progress]) -> None:
        with self._moved:
            self._moved.notify_all()


@contextmanager
def running(spark, url: str, lake: Lake, **settings) -> Iterator[Running]:
    """Follow a bucket while the block lasts, and then until everything is in the lake."""
    run_, wanted = Running(), Settings(url, str(lake.path), trigger_seconds=0.2, **settings)
    with ThreadPoolExecutor(1) as pool:
        run_.done = pool.submit(run, wanted, spark=spark, report=run_.report, finish=run_.finish)
        run_.done.add_done_callback(run_.ended)
        try:
            yield run_
        finally:
            run_.finish.set()
            run_.done.result(SECONDS)


def catch_up(spark, url, lake, **settings):
    return run(Settings(url, str(lake.path), available_now=True, **settings), spark=spark)
