"""`penstock workload`: write sample documents, or change documents at a steady rate."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Url, Username, app, format_examples, resolve_address
from penstock.cli.base.interrupt import run_until_signal
from penstock.cli.base.json_lines import BadLine, open_input, read_keys
from penstock.cli.base.option_parameters import add_options
from penstock.cli.base.show import format_json_line, print_text
from penstock.cli.base.work_display import Quiet, show_status
from penstock.cli.bucket.random_changes import ChangeMix, Workload, WorkloadTally, read_live_keys
from penstock.cli.bucket.samples import make_samples
from penstock.client.connect.address import DEFAULT_URL, Address
from penstock.errors import UsageError
from penstock.options import FILE, INTEGER, POSITIVE, nonempty, number, option, whole_number
from penstock.text_files import LineReader

_STOP_SECONDS = 2.0
"""Time for the changes under way after a signal: the node may not answer any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    """The options of `penstock workload`."""

    docs: str | None = option(FILE, "write sample documents to this file; - writes standard output", default=None)
    count: int = option(whole_number(0), "number of documents that --docs writes", default=10_000)
    seed: int | None = option(INTEGER, "seed of the random choices", default=None, shown="0 with --docs, else random")
    rate: float = option(number(0, metavar="PER_SECOND"), "changes per second; 0: as many as possible", default=200.0)
    duration: float | None = option(number(0), "stop after this many seconds", default=None)
    changes: int | None = option(POSITIVE, "stop after this many changes", default=None)
    mix: str = option(nonempty(metavar="U:D:I"), "ratio of updates, deletes and inserts", default="8:1:1")
    keys: str | None = option(
        FILE,
        "file of JSON lines with the keys to change: strings, or objects with a field `key`",
        default=None,
        shown="all keys of the bucket",
    )


@app.command(
    rich_help_panel=Panel.DATA,
    epilog=format_examples(
        "penstock workload --docs beer.jsonl --count 10000",
        "penstock workload --rate 500 --duration 60",
        "penstock workload --changes 1600 --mix 1000:500:100 --json",
    ),
)
@add_options("chosen", WorkloadPlan, only_given=True)
def workload(
    *,
    chosen: dict[str, Any],
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write sample documents to a file, or change the documents of a bucket.

    With --docs, writes breweries and their beers as JSON lines:
    {"id": …, "doc": {…}}.

    Without --docs, updates, deletes and inserts documents at a steady rate until
    a limit, SIGINT (Ctrl-C) or SIGTERM, and then prints a summary. Every document
    is changed once before any is changed again. An update increments the field
    `revision`.
    """
    plan = WorkloadPlan(**chosen)
    if plan.docs is not None:
        _refuse_changes(chosen)
        _write_documents(plan.docs, plan.count, plan.seed or 0)
        return
    if "count" in chosen:
        raise UsageError("--count without --docs; use --changes to limit the changes")
    tally = asyncio.run(_run_workload(resolve_address(url, username, password), plan, quiet=quiet or as_json))
    summary = {**asdict(tally), "changes": tally.changes, "rate": round(tally.rate, 1)}
    print_text(format_json_line(summary) if as_json else tally)


def _refuse_changes(given: Mapping[str, object]) -> None:
    """Raise UsageError if --docs is combined with an option for changes."""
    if wrong := [name for name in given if name not in ("docs", "count", "seed")]:
        raise UsageError(f"--{wrong[0]} cannot be combined with --docs: it applies to changes of a bucket")


def _write_documents(path: str, count: int, seed: int) -> None:
    with _open_output(path) as file:
        for key, document in make_samples(count, seed):
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


async def _run_workload(address: Address, plan: WorkloadPlan, *, quiet: bool) -> WorkloadTally:
    from penstock.client.bucket import Bucket

    mix = ChangeMix.parse(plan.mix)
    chosen = None if plan.keys is None else _read_key_file(plan.keys)
    async with Bucket(address) as bucket:
        keys = await read_live_keys(bucket) if chosen is None else chosen
        engine = Workload(bucket, keys, mix=mix, rate=plan.rate, seed=plan.seed)
        with show_status("Changing documents; Ctrl-C stops.", is_quiet=quiet) as show:

            def report(tally: WorkloadTally) -> None:
                show(f"{tally}{_describe_rest(tally, plan)}; Ctrl-C stops.")

            await run_until_stopped(engine, changes=plan.changes, seconds=plan.duration, report=report)
    return engine.tally


def _describe_rest(tally: WorkloadTally, plan: WorkloadPlan) -> str:
    """Return the time that is left, or nothing if the plan has no limit."""
    left = [] if plan.duration is None else [plan.duration - tally.seconds]
    if plan.changes is not None and tally.rate:
        left.append((plan.changes - tally.changes) / tally.rate)
    return f", {max(min(left), 0):.0f} s left" if left else ""


def _read_key_file(path: str) -> list[bytes]:
    keys: dict[bytes, None] = {}
    with open_input(path) as source:
        for key in read_keys(LineReader(source, path), "key"):
            if isinstance(key, BadLine):
                raise UsageError(f"{path} line {key.line}: {key.reason}")
            keys[key] = None
    return list(keys)


async def run_until_stopped(
    engine: Workload, *, changes: int | None, seconds: float | None, report: Callable[[WorkloadTally], None]
) -> None:
    """Run a workload until its limits, SIGINT or SIGTERM. Changes under way get _STOP_SECONDS to finish."""
    await run_until_signal(
        lambda stop: engine.run(stop, changes=changes, seconds=seconds, report=report), _STOP_SECONDS
    )
