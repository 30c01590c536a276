"""`penstock workload`."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, TextIO

import typer

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Url, Username, address_of, app, examples
from penstock.cli.base.json_lines import BadLine, open_input, read_keys
from penstock.cli.base.show import json_line
from penstock.cli.bucket.random_changes import Mix, Tally, Workload, live_keys
from penstock.cli.bucket.samples import sample_documents
from penstock.client.connect.address import DEFAULT_URL, Address
from penstock.errors import UsageError

__all__ = ["run_until_stopped"]

_STOP_SECONDS = 2.0
"""How long a bunch of changes may still take once a signal has come: the node may be gone."""


@app.command(
    rich_help_panel=Panel.DATA,
    epilog=examples(
        "penstock workload --docs beer.jsonl --count 10000",
        "penstock workload --rate 500 --duration 60",
        "penstock workload --changes 1600 --mix 1000:500:100 --json",
    ),
)
def workload(
    *,
    docs: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write sample documents here, - for standard output.")
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Documents to write.", show_default="10000")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The same seed gives the same.", show_default="0 with --docs, else another each time"
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=0, metavar="PER_SECOND", help="Changes a second; 0: all the node takes.", show_default="200"),
    ] = None,
    duration: Annotated[float | None, typer.Option(min=0, metavar="SECONDS", help="Stop after this time.")] = None,
    changes: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after this many changes.")] = None,
    mix: Annotated[
        str | None, typer.Option(metavar="U:D:I", help="Shares of updates, deletes, inserts.", show_default="8:1:1")
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines with the keys to work on: strings, or objects with a field `key`.",
            show_default="all keys of the bucket",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Write sample documents to a file, or change the documents of a bucket.

    With --docs it writes breweries and their beers as JSON lines:
    {"id": …, "doc": {…}}.

    Without, it updates, deletes and inserts documents at a steady rate until a
    limit, SIGINT (Ctrl-C) or SIGTERM, and then sums up.
    Each document is changed once before any is changed again.
    An update counts up the field `revision`.
    """
    changing = {"--rate": rate, "--duration": duration, "--changes": changes, "--mix": mix, "--keys": keys}
    if docs is not None:
        _refuse("--docs", changing)
        _write_documents(docs, 10_000 if count is None else count, seed or 0)
        return
    if count is not None:
        raise UsageError("--count says how many documents --docs writes; for changes there is --changes")
    plan = _Plan(Mix.parse(mix or "8:1:1"), 200.0 if rate is None else rate, seed, changes, duration, keys)
    tally = asyncio.run(_change(address_of(url, username, password), plan, quiet=as_json))
    summary = {**asdict(tally), "changes": tally.changes, "rate": round(tally.rate, 1)}
    print(json_line(summary) if as_json else tally)


def _refuse(mode: str, given: Mapping[str, object]) -> None:
    wrong = [name for name, option in given.items() if option is not None]
    if wrong:
        raise UsageError(f"{wrong[0]} is for changes to a bucket, and {mode} only writes a file; leave one of them out")


def _write_documents(path: str, count: int, seed: int) -> None:
    with _open_output(path) as file:
        for key, document in sample_documents(count, seed):
            file.write(json.dumps({"id": key, "doc": document}, ensure_ascii=False) + "\n")


@contextmanager
def _open_output(path: str) -> Iterator[TextIO]:
    if path == "-":
        yield sys.stdout
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(path).open("w", encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"{path} cannot be written ({reason}), expected a file, or -") from error
        yield file


@dataclass(frozen=True)
class _Plan:
    mix: Mix
    rate: float
    seed: int | None
    changes: int | None
    seconds: float | None
    keys: str | None


async def _change(address: Address, plan: _Plan, *, quiet: bool) -> Tally:
    from penstock.client.bucket import Bucket

    chosen = None if plan.keys is None else _keys_of(plan.keys)
    async with Bucket(address) as bucket:
        keys = await live_keys(bucket) if chosen is None else chosen
        engine = Workload(bucket, keys, mix=plan.mix, rate=plan.rate, seed=plan.seed)
        with _progress(hidden=quiet) as report:
            await run_until_stopped(engine, changes=plan.changes, seconds=plan.seconds, report=report)
    return engine.tally


def _keys_of(path: str) -> list[bytes]:
    keys: dict[bytes, None] = {}
    with open_input(path) as source:
        for key in read_keys(source, "key"):
            if isinstance(key, BadLine):
                raise UsageError(f"{path} line {key.line}: {key.reason}")
            keys[key] = None
    return list(keys)


async def run_until_stopped(
    engine: Workload, *, changes: int | None, seconds: float | None, report: Callable[[Tally], None]
) -> None:
    """Run a workload to its limits or to SIGINT or SIGTERM, which let the changes under way finish if they can."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(engine.run(stop, changes=changes, seconds=seconds, report=report))

    def end() -> None:
        stop.set()
        loop.call_later(_STOP_SECONDS, running.cancel)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    try:
        await asyncio.wait([running])
        if not running.cancelled():
            running.result()
    finally:
        running.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextmanager
def _progress(*, hidden: bool) -> Iterator[Callable[[Tally], None]]:
    """Give a function that shows, on a terminal, how far the workload is."""
    if hidden or not sys.stderr.isatty():
        yield lambda tally: None
        return
    from rich.console import Console

    with Console(stderr=True).status("Changing documents; Ctrl-C stops.") as status:
        yield lambda tally: status.update(f"{tally}; Ctrl-C stops.")
