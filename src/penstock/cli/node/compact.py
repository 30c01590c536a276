"""`penstock compact`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Url, Username, address_of, app, examples
from penstock.cli.base.show import json_line
from penstock.client.connect.address import DEFAULT_URL, Address
from penstock.errors import Error, NotSupported, UsageError

_PATIENCE = 24 * 60 * 60.0  # seconds; a terabyte takes hours


class Compacted(NamedTuple):
    """The bytes of a bucket's files, before and after."""

    bucket: str
    before: int
    after: int


@app.command(
    rich_help_panel=Panel.NODE,
    epilog=examples("penstock compact", "penstock compact --data-dir ./data --bucket beer --json"),
)
def compact(
    *,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The data directory of a node that is stopped, instead of --url."),
    ] = None,
    bucket: Annotated[
        str | None, typer.Option(metavar="NAME", help="The bucket in --data-dir.", show_default="default")
    ] = None,
    purge_age: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="With --data-dir: deletions that are older are forgotten.")
    ] = 259_200,
    as_json: AsJson = False,
) -> None:
    """Make the files of a bucket as small as they can be.

    A node does this by itself as soon as half of a file is overwritten or deleted; this does it at once, and for every
    file. It goes on serving meanwhile, and forgets deletions at the age that `serve --purge-age` has said. With --json
    the output is {"bucket": …, "bytes_before": …, "bytes_after": …}.
    """
    if data_dir is None:
        if bucket is not None:
            raise UsageError("--bucket without --data-dir: the bucket of a running node is named in --url")
        done = asyncio.run(_ask(address_of(url, username, password)))
    else:
        done = _compact(data_dir, bucket or "default", purge_age)
    if as_json:
        print(json_line({"bucket": done.bucket, "bytes_before": done.before, "bytes_after": done.after}))
    else:
        print(f"{done.bucket}: {done.before:,} bytes, now {done.after:,} bytes.")


async def _ask(address: Address) -> Compacted:
    """Let a node do it, and return when it has."""
    from penstock.client.bucket import Bucket
    from penstock.client.connect.client_session import open_session
    from penstock.client.connect.retry import retrying
    from penstock.client.connect.stat_numbers import read_number
    from penstock.wire.messages.observe import CompactDb

    async with Bucket(address) as bucket:
        before = await bucket.stats()
        link = (await retrying(lambda: open_session(address), address, lambda: True)).link
        try:
            await link.request(CompactDb(), _PATIENCE)
        except NotSupported as error:
            raise UsageError(f"{bucket.address} cannot be compacted: it is kept in memory") from error
        finally:
            await link.close()
        after = await bucket.stats()
    sizes = (read_number("ep_db_file_size", stats.get("ep_db_file_size", "0")) for stats in (before, after))
    return Compacted(bucket.address.bucket, *sizes)


def _compact(data_dir: Path, name: str, purge_age: float) -> Compacted:
    """Do it here.

    Raises UsageError where there is no such bucket, and as BucketStore.open does; Error for a full disk.
    """
    import time

    from penstock.node.buckets.bucket_storage import file_bytes, new_vbuuid
    from penstock.store.bucket_store import BucketStore
    from penstock.store.definition.bucket_settings import Settings
    from penstock.store.disk.bucket_files import Directory
    from penstock.store.recovery.bucket_directory import said_by

    path = data_dir / name
    said = said_by(Directory(path)) if path.is_dir() else None
    if said is None:
        raise UsageError(f"no bucket {name!r} in {data_dir}")
    before, settings = file_bytes(path), Settings(purge_age=purge_age)
    bucket = BucketStore.open(
        path, name, vbuckets=said["vbuckets"], clock=time.time_ns, new_vbuuid=new_vbuuid, settings=settings
    )
    try:
        bucket.log.room.seal()
        bucket.log.commits.run()
        while (piece := bucket.compactor.next_piece(everything=True)) is not None:
            piece.run()
            piece.finish()
            if piece.error is not None:
                raise Error(f"{path}: the disk does not take it: {piece.error.strerror or piece.error}")
            bucket.log.commits.run()
    finally:
        bucket.close()
    if bucket.log.room.fault is not None:
        raise Error(f"{path}: {bucket.log.room.fault}")
    return Compacted(name, before, file_bytes(path))
