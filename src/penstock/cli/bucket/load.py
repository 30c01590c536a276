"""`penstock load`: store the documents of a file."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Url, Username, app, format_examples, resolve_address
from penstock.cli.base.exit_codes import ExitCode
from penstock.cli.base.json_lines import BadLine, LoadedDocument, open_input, read_documents
from penstock.cli.base.show import format_json_line, print_text, warn
from penstock.cli.base.work_display import show_transfer
from penstock.client.connect.address import DEFAULT_URL, Address
from penstock.errors import (
    Error,
    InvalidArguments,
    KeyExists,
    Locked,
    NotStored,
    SyncWriteInProgress,
    TooBig,
    Unreachable,
)
from penstock.text_files import LineReader

if TYPE_CHECKING:
    from penstock.client.bucket import Bucket

_CHUNK_DOCUMENTS, _CHUNK_BYTES = 2048, 8 * 1024 * 1024
"""Limits of one call: enough to keep many requests under way, and small enough to hold two chunks in memory."""
_REFUSALS = (InvalidArguments, KeyExists, Locked, NotStored, SyncWriteInProgress, TooBig)
"""Refusals of one document, while the node stores others."""


@dataclass
class LoadResult:
    """The result of loading a file.

    Attributes:
        loaded: documents that the node has acknowledged.
        skipped: lines without a document, or with a refused one.
        stopped_at_line: the line without a document that ended the loading, from 1; None if none did.
    """

    loaded: int = 0
    skipped: int = 0
    seconds: float = 0.0
    stopped_at_line: int | None = None

    def __str__(self) -> str:
        text = f"{self.loaded} documents loaded, {self.skipped} skipped, {self.seconds:.1f} s"
        if self.stopped_at_line is None:
            return text
        return f"{text}; stopped at line {self.stopped_at_line}, later lines were not loaded"


@app.command(
    rich_help_panel=Panel.DATA,
    epilog=format_examples(
        "penstock load beer.jsonl --key id --value doc",
        "zcat events.jsonl.gz | penstock load - --key event_id --on-error skip",
    ),
)
def load(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="File of JSON lines, one object per line; - reads standard input.")
    ],
    *,
    key: Annotated[str, typer.Option(metavar="FIELD", help="Field that holds the key: a string or an integer.")],
    value: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Field that holds the document.", show_default="the whole object"),
    ] = None,
    expiry: Annotated[
        int,
        typer.Option(
            min=0,
            max=2**32 - 1,
            metavar="SECONDS",
            help="Expiry: seconds from now, or Unix time if above 50 years. 0: never.",
        ),
    ] = 0,
    on_error: Annotated[
        Literal["skip", "stop"],
        typer.Option(
            help="Action for a line without a document, or with one that the node refuses: report it, and stop or skip."
        ),
    ] = "stop",
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress and print no summary.")] = False,
    as_json: AsJson = False,
) -> None:
    """Store the documents of a file of JSON lines in a bucket.

    Documents are stored as compact JSON in UTF-8, with their fields in the order
    of the file. Numbers and repeated fields stay as they are in the file. Blank
    lines are ignored. Existing documents are replaced.
    """
    from penstock.client.dumps.bucket_dump import TransferProgress

    done, address = LoadResult(), resolve_address(url, username, password)

    def report(bad: BadLine) -> bool:
        warn(f"{file} line {bad.line}: {bad.reason}")
        return on_error == "skip"

    with open_input(file) as source:
        lines = LineReader(source, "standard input" if file == "-" else file)

        shown = show_transfer(
            "standard input" if file == "-" else os.path.basename(file),
            lambda: TransferProgress(done.loaded, lines.nbytes, lines.total),
            is_quiet=quiet or as_json,
            noun="documents",
        )
        try:
            asyncio.run(_load(address, read_documents(lines, key, value), done, report, expiry=expiry, shown=shown))
        finally:
            # Also after a failure or Ctrl-C: the documents counted here are in the bucket.
            if done.seconds and (as_json or not quiet):
                print_text(format_json_line(asdict(done)) if as_json else done)
    if done.stopped_at_line is not None:
        raise typer.Exit(ExitCode.FAILURE)


async def _load(
    address: Address,
    documents: Iterable[LoadedDocument | BadLine],
    done: LoadResult,
    report: Callable[[BadLine], bool],
    *,
    expiry: int,
    shown: AbstractAsyncContextManager[None],
) -> None:
    from penstock.client.bucket import Bucket

    async with Bucket(address) as bucket:
        started = time.monotonic()
        try:
            async with shown:
                await load_documents(bucket, documents, done, report, expiry=expiry)
        finally:
            done.seconds = max(round(time.monotonic() - started, 3), 0.001)


async def load_documents(
    bucket: Bucket,
    documents: Iterable[LoadedDocument | BadLine],
    done: LoadResult,
    report: Callable[[BadLine], bool],
    *,
    expiry: int = 0,
) -> None:
    """Store documents in their order. Raises the node's refusal of a document if `report` does not continue after it.

    Args:
        bucket: the connected bucket.
        documents: documents and lines without one.
        done: counts the documents that the node has acknowledged, and the skipped lines.
        report: called for each line without a document, or with a refused one; returns whether to continue after it.
        expiry: as in Bucket.upsert.
    """
    chunk: list[LoadedDocument] = []
    nbytes = 0
    for document in documents:
        if isinstance(document, BadLine):
            if report(document):
                done.skipped += 1
                continue
            done.stopped_at_line = document.line
            break
        chunk.append(document)
        nbytes += len(document.value)
        if len(chunk) == _CHUNK_DOCUMENTS or nbytes >= _CHUNK_BYTES:
            await _store_chunk(bucket, chunk, done, report, expiry)
            chunk.clear()
            nbytes = 0
    await _store_chunk(bucket, chunk, done, report, expiry)


async def _store_chunk(
    bucket: Bucket, chunk: Sequence[LoadedDocument], done: LoadResult, report: Callable[[BadLine], bool], expiry: int
) -> None:
    """Store documents together, or one by one if the node refuses one of them."""
    try:
        done.loaded += len(await bucket.upsert_many(((each.key, each.value) for each in chunk), expiry=expiry))
        return
    except Error as error:
        if not _is_refusal(error):
            raise
    # It is unknown which of the others are stored: a second upsert changes nothing.
    for each in chunk:
        try:
            await bucket.upsert(each.key, each.value, expiry=expiry)
        except Error as error:
            if not _is_refusal(error) or not report(BadLine(each.line, str(error.__cause__ or error))):
                raise
            done.skipped += 1
        else:
            done.loaded += 1


def _is_refusal(error: Error) -> bool:
    """Return whether an error concerns one document, also after the client has tried it again for a while."""
    return isinstance(error.__cause__ if isinstance(error, Unreachable) else error, _REFUSALS)
