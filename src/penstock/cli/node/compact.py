"""`penstock compact`: compact the files of a bucket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Url, Username, app, format_examples, resolve_address
from penstock.cli.base.show import format_json_line, print_text
from penstock.cli.base.work_display import Quiet, show_status
from penstock.client.connect.address import DEFAULT_URL, Address
from penstock.errors import Error, NotSupported, UsageError

_TIMEOUT_SECONDS = 24 * 60 * 60.0  # seconds; a terabyte takes hours


class CompactionResult(NamedTuple):
    """The size of a bucket's files.

    Attributes:
        before: bytes before the compaction.
        after: bytes after the compaction.
    """

    bucket: str
    before: int
    after: int


@app.command(
    rich_help_panel=Panel.NODE,
    epilog=format_examples("penstock compact", "penstock compact --data-dir ./data --bucket beer --json"),
)
def compact(
    *,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Data directory of a stopped node, instead of --url."),
    ] = None,
    bucket: Annotated[
        str | None, typer.Option(metavar="NAME", help="Bucket in --data-dir.", show_default="default")
    ] = None,
    purge_age: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="With --data-dir: remove tombstones older than this.")
    ] = 259_200,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compact all files of a bucket.

    A node compacts a file by itself when half of it is overwritten or deleted;
    this command compacts every file at once. The node continues to serve, and
    removes tombstones older than its `serve --purge-age`. With --json, prints
    {"bucket": …, "bytes_before": …, "bytes_after": …}.
    """
    if data_dir is None:
        if bucket is not None:
            raise UsageError("--bucket needs --data-dir; for a running node, --url contains the bucket")
        address = resolve_address(url, username, password)
        with show_status(f"Compacting {address}", is_quiet=quiet or as_json):
            done = asyncio.run(_compact_on_node(address))
    else:
        with show_status(f"Compacting {data_dir / (bucket or 'default')}", is_quiet=quiet or as_json):
            done = _compact_files(data_dir, bucket or "default", purge_age)
    if as_json:
        print_text(format_json_line({"bucket": done.bucket, "bytes_before": done.before, "bytes_after": done.after}))
    else:
        print_text(f"{done.bucket}: {done.before:,} bytes, now {done.after:,} bytes.")


async def _compact_on_node(address: Address) -> CompactionResult:
    """Return the sizes of a bucket's files before and after a running node has compacted them."""
    from penstock.client.bucket import Bucket
    from penstock.client.connect.client_session import open_session
    from penstock.client.connect.retry import run_with_retry
    from penstock.client.connect.stat_numbers import read_number
    from penstock.wire.messages.observe import CompactDb

    async with Bucket(address) as bucket:
        before = await bucket.stats()
        link = (await run_with_retry(lambda: open_session(address), address, lambda: True)).link
        try:
            await link.request(CompactDb(), _TIMEOUT_SECONDS)
        except NotSupported as error:
            raise UsageError(f"{bucket.address} cannot be compacted: it is kept in memory") from error
        finally:
            await link.close()
        after = await bucket.stats()
    sizes = (read_number("ep_db_file_size", stats.get("ep_db_file_size", "0")) for stats in (before, after))
    return CompactionResult(bucket.address.bucket, *sizes)


def _compact_files(data_dir: Path, name: str, purge_age: float) -> CompactionResult:
    """Compact the files of a stopped node in this process.

    Returns:
        The sizes of the files before and after.

    Raises:
        UsageError: there is no such bucket, or BucketStore.open refuses it.
        Error: the disk is full.
    """
    import time

    from penstock.node.buckets.bucket_storage import count_file_bytes
    from penstock.node.transport.machine import Machine
    from penstock.store.bucket_store import BucketStore
    from penstock.store.definition.bucket_settings import BucketSettings
    from penstock.store.disk.bucket_files import Directory
    from penstock.store.recovery.bucket_directory import read_record

    path = data_dir / name
    record = read_record(Directory(path)) if path.is_dir() else None
    if record is None:
        raise UsageError(f"no bucket {name!r} in {data_dir}")
    before, settings = count_file_bytes(path), BucketSettings(purge_age=purge_age)
    bucket = BucketStore.open(
        path, name, vbuckets=record["vbuckets"], clock=time.time_ns, new_vbuuid=Machine().make_vbuuid, settings=settings
    )
    try:
        bucket.log.room.seal_active()
        bucket.log.commits.run()
        while (piece := bucket.compactor.next_piece(everything=True)) is not None:
            piece.run()
            piece.finish()
            if piece.problem:
                raise Error(f"{path}: {piece.problem}")
            bucket.log.commits.run()
    finally:
        bucket.close()
    if bucket.log.room.fault is not None:
        raise Error(f"{path}: {bucket.log.room.fault}")
    return CompactionResult(name, before, count_file_bytes(path))
