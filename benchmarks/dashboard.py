"""The cost of the dashboard: the node's CPU time for its samples, and the frames of the page in a browser.

The node has a separate process, 1024 vbuckets and 200 consumers, each with one stream. A viewer is a connection that
reads the stream of documents. The node has nothing else to do meanwhile, so the growth of its CPU time is the viewer's.
The page then shows the same node in a browser while documents are stored. `requestAnimationFrame` gives the time
between two of its frames. `make others` installs the browser.
"""

from __future__ import annotations

import http.client
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from benchmarks.process import Process
from benchmarks.report import Report, make_parser

FRAMES = """seconds => new Promise(done => {
  const times = [];
  const note = at => {
    times.push(at);
    if (at - times[0] < 1000 * seconds) requestAnimationFrame(note);
    else done(times.slice(1).map((time, number) => time - times[number]));
  };
  requestAnimationFrame(note);
})"""


@contextmanager
def viewing(port: int) -> Iterator[None]:
    """Read the stream of documents in a thread while the block runs."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/_penstock/events")
    answer = connection.getresponse()
    answer.readline()

    def read() -> None:
        while answer.readline():
            pass

    reader = Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        if connection.sock is not None:
            connection.sock.close()


def measure_share(process: Process, seconds: float) -> float:
    """Return the part of a processor that a process uses."""
    began, used = time.monotonic(), process.read_cpu_seconds()
    time.sleep(seconds)
    return (process.read_cpu_seconds() - used) / (time.monotonic() - began)


def measure_frames(url: str, seconds: float) -> list[float]:
    """Return the milliseconds between two frames of the page."""
    from tests.compat.browser import open_browser, open_page

    with open_browser() as browser, open_page(browser, url) as shown:
        found: list[float] = shown.page.evaluate(FRAMES, seconds)
        return sorted(found)


def main() -> None:
    parser = make_parser("cost of the dashboard")
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of each measurement")
    chosen = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.compat.dashboard_scene import open_consumer, store_documents, stored_without_end
    from tests.compat.serving import Serving
    from tests.node.wire_client import connected

    report = Report(f"The dashboard of {chosen.vbuckets} vbuckets and {chosen.streams} streams", chosen)
    with ExitStack() as stack:
        serving: Any = stack.enter_context(Serving.running("--bucket", "beer", "--vbuckets", chosen.vbuckets))
        process, port = Process(serving.ready["pid"], serving.kv_port, serving.ready), serving.ready["http_port"]
        url = f"{serving.url}/beer"
        store_documents(url, 20 * chosen.vbuckets)
        for number in range(chosen.streams):
            client = stack.enter_context(connected(serving, "beer"))
            open_consumer(client, f"consumer-{number}", [number % chosen.vbuckets], window=10_000)
        for viewers in (0, 1, 10):
            with ExitStack() as watching:
                for _ in range(viewers):
                    watching.enter_context(viewing(port))
                share = measure_share(process, chosen.seconds)
            report.add_row(f"{viewers} viewers", f"{100 * share:.2f} % of a processor")
        with stored_without_end(url, among=20 * chosen.vbuckets):
            frames = measure_frames(f"http://127.0.0.1:{port}/_penstock", chosen.seconds)
        figures = (
            f"{1000 / statistics.mean(frames):.0f} frames/s; between two frames {statistics.median(frames):.1f} ms"
        )
        late, worst = frames[int(0.95 * len(frames))], frames[-1]
        report.add_row(
            "page while documents are stored", f"{figures}, 95 % within {late:.1f} ms, at most {worst:.1f} ms"
        )
    report.finish()


if __name__ == "__main__":
    main()
