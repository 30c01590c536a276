"""`penstock positions`: list, show, move, copy, reset and import the saved positions of consumers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Url, Username, app, format_examples, resolve_address
from penstock.cli.base.show import format_json_line, format_name, print_text
from penstock.cli.base.work_display import show_status
from penstock.cli.bucket.position_places import STORE_HELP, StorePlace, list_stores, needs_bucket, open_store
from penstock.client.connect.address import DEFAULT_URL, Address
from penstock.client.topology.missing_vbuckets import format_ranges
from penstock.errors import Error, UsageError

if TYPE_CHECKING:
    from penstock.client.bucket import Bucket
    from penstock.client.feeds.stream_position import Position
    from penstock.client.groups.group_report import GroupMemberReport
    from penstock.client.positions.position_store import PositionStore
    from penstock.client.positions.saved_positions import SavedPositions
    from penstock.client.streams.stream_choice import FirstStart

commands = typer.Typer(help="Manage the saved positions of consumers.", no_args_is_help=False, rich_markup_mode="rich")
app.add_typer(commands, name="positions", rich_help_panel=Panel.DATA)


class PositionFormat(StrEnum):
    """The formats that can be imported."""

    JAVA = "java-dcp-client"
    GO = "go-dcp"
    KAFKA = "kafka"


_GO_ATTRIBUTE = "cbgo"
_GROUP = "group:"

Replace = Annotated[bool, typer.Option("--replace", help="Replace the positions that the target store has.")]


@commands.callback(invoke_without_command=True)
def positions(context: typer.Context) -> None:  # noqa: D103 - a docstring would replace the group's help
    if context.invoked_subcommand is None:
        print(context.get_help())


@commands.command(
    "list",
    epilog=format_examples("penstock positions list beer.positions", "penstock positions list sqlite:app.db --json"),
)
def list_positions(
    stores: Annotated[list[str], typer.Argument(metavar="STORE...", help=f"Stores of positions: {STORE_HELP}")],
    *,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """List saved positions: one line for each consumer.

    An SQLite database without a name lists all its consumers. seqnos is the sum
    over all vbuckets. With --json, each line is an object.
    """

    async def run() -> None:
        async with _connect(resolve_address(url, username, password), stores) as bucket:
            for place in stores:
                for store in await list_stores(place, bucket):
                    print_text(_format_summary(store, await store.read(), as_json=as_json))

    asyncio.run(run())


@commands.command(
    "show",
    epilog=format_examples("penstock positions show beer.positions", "penstock positions show document:indexer --json"),
)
def show_positions(
    store: StorePlace,
    *,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the saved position of each vbucket.

    With --json, prints the JSON that all stores keep.
    """
    from penstock.client.positions.saved_positions import encode_positions

    async def run() -> None:
        async with _connect(resolve_address(url, username, password), [store]) as bucket:
            saved = await _read_existing(open_store(store, bucket))
            print_text(encode_positions(saved).decode() if as_json else _format_positions(saved))

    asyncio.run(run())


@commands.command(
    "members",
    epilog=format_examples("penstock positions members indexer", "penstock positions members indexer --json"),
)
def show_members(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")],
    *,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the members of a group of consumers: their leases and vbuckets.

    A member counts as dead if it shows no sign of life for its lease. The time
    of the last sign is that of the server. With --json, each line is an object.
    """

    async def run() -> None:
        from penstock.client.groups.group_report import read_members

        async with _connect_bucket(resolve_address(url, username, password)) as bucket:
            members = await read_members(bucket, group.removeprefix(_GROUP))
            if not members and not as_json:
                print_text(f"group:{format_name(group.removeprefix(_GROUP))}: no members")
            for member in members:
                print_text(_format_member(member, as_json=as_json))

    asyncio.run(run())


@commands.command(
    "move",
    epilog=format_examples(
        "penstock positions move beer.positions --to now",
        "penstock positions move document:indexer --to 2026-11-23T08:00:00Z",
    ),
)
def move_positions(
    store: StorePlace,
    *,
    to: Annotated[str, typer.Option(metavar="WHERE", help="beginning, now, or a time such as 2026-11-23T08:00:00Z.")],
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Move saved positions, so that the consumer continues elsewhere. Stop the consumer first.

    A time is in UTC unless it names a zone. The consumer then gets all changes
    that are not older. The search reads the keys of the whole history. It fails
    if deletions since that time were purged, or if the changes have no times.
    """

    async def run() -> None:
        async with _connect_bucket(resolve_address(url, username, password)) as bucket:
            await _move_positions(open_store(store, bucket), bucket, to, as_json=as_json)

    asyncio.run(run())


async def _move_positions(place: PositionStore, bucket: Bucket, to: str, *, as_json: bool) -> None:
    """Replace the positions in a store by those at the beginning, the end or a time, and print them."""
    from penstock.client.positions.position_checks import check_bucket

    saved = await place.read()
    current = await _describe_bucket(bucket)
    if saved is not None:
        check_bucket(saved, current.uuid, current.vbuckets, str(place))
        current = replace(current, notes=saved.notes)
    with show_status(f"Searching {bucket.address}", is_quiet=as_json):
        moved = replace(current, by_vbucket=await _find_positions(bucket, to))
    await place.write(moved)
    print_text(_format_summary(place, moved, as_json=as_json))


@commands.command(
    "copy",
    epilog=format_examples(
        "penstock positions copy beer.positions document:indexer", "penstock positions copy beer.positions spark:offset"
    ),
)
def copy_positions(
    source: Annotated[str, typer.Argument(metavar="FROM", help=f"Store to read: {STORE_HELP}")],
    target: Annotated[str, typer.Argument(metavar="TO", help=f"Store to write: {STORE_HELP}")],
    *,
    is_replacing: Replace = False,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Copy saved positions from one store to another.

    A file for spark: is an offset for the option startingOffsets.
    """

    async def run() -> None:
        async with _connect(resolve_address(url, username, password), [source, target]) as bucket:
            saved = await _read_existing(open_store(source, bucket))
            await _write_new(open_store(target, bucket), saved, is_replacing=is_replacing, as_json=as_json)

    asyncio.run(run())


@commands.command(
    "reset",
    epilog=format_examples(
        "penstock positions reset beer.positions", "penstock positions reset beer.positions --at 2026-11-23T08:00:00Z"
    ),
)
def reset_positions(
    store: StorePlace,
    *,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Set the positions to this time, as `positions move` does.")
    ] = None,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove saved positions. The consumer then starts as if it had never run. Stop the consumer first."""

    async def run() -> None:
        async with _connect(resolve_address(url, username, password), [store], always=at is not None) as bucket:
            place = open_store(store, bucket)
            if at is not None and bucket is not None:
                await _move_positions(place, bucket, at, as_json=as_json)
                return
            await place.remove()
            print_text(format_json_line({"reset": str(place)}) if as_json else f"Reset {format_name(str(place))}.")

    asyncio.run(run())


@commands.command(
    "import",
    epilog=format_examples(
        "penstock positions import state.json beer.positions --format java-dcp-client",
        "penstock positions import group:orders beer.positions --format go-dcp",
        "curl localhost:8083/connectors/cb/offsets | penstock positions import - beer.positions --format kafka",
    ),
)
def import_positions(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="File to read; - for standard input; group:NAME for go-dcp's checkpoints in the bucket.",
        ),
    ],
    store: StorePlace,
    *,
    position_format: Annotated[PositionFormat, typer.Option("--format", help="The program that wrote the positions.")],
    is_replacing: Replace = False,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Import the positions of another consumer of the bucket.

    java-dcp-client: its session state as JSON. go-dcp: its file of metadata, or
    with group:NAME the documents of a group in the bucket. kafka: the reply to
    GET /connectors/NAME/offsets, or lines of the offsets topic with their keys.
    The positions must belong to the bucket of --url.
    """

    async def run() -> None:
        from penstock.client.positions.imported_positions import READERS
        from penstock.client.positions.server_checks import check_positions

        async with _connect_bucket(resolve_address(url, username, password)) as bucket:
            current = await _describe_bucket(bucket)
            data = await _read_source(source, position_format, bucket)
            found = READERS[position_format.value](data, bucket.address.bucket, current.uuid)
            saved = replace(current, by_vbucket=found)
            outside = [vbucket for vbucket in found if vbucket >= current.vbuckets]
            if not found or outside:
                raise UsageError(
                    f"{source}: found {f'vbucket {outside[0]}' if outside else 'no position of this bucket'}, "
                    f"expected positions of vbuckets below {current.vbuckets}"
                )
            await check_positions(bucket, saved, source)
            await _write_new(open_store(store, bucket), saved, is_replacing=is_replacing, as_json=as_json)

    asyncio.run(run())


@asynccontextmanager
async def _connect_bucket(address: Address) -> AsyncIterator[Bucket]:
    from penstock.client.bucket import Bucket

    async with Bucket(address) as bucket:
        yield bucket


@asynccontextmanager
async def _connect(address: Address, places: Sequence[str], *, always: bool = False) -> AsyncIterator[Bucket | None]:
    """Connect to the bucket if a store is in it, or always.

    Yields:
        The bucket, None if no store needs it.
    """
    if always or any(map(needs_bucket, places)):
        async with _connect_bucket(address) as bucket:
            yield bucket
    else:
        yield None


async def _describe_bucket(bucket: Bucket) -> SavedPositions:
    """Return positions at the beginning of a bucket."""
    from penstock.client.positions.saved_positions import SavedPositions

    found = await bucket.cluster()
    return SavedPositions(bucket=bucket.address.bucket, uuid=found.uuid, vbuckets=found.vbuckets)


async def _find_positions(bucket: Bucket, to: str) -> dict[int, Position]:
    from penstock.client.streams.time_search import parse_time

    if to == "beginning":
        return {}
    start: FirstStart = "now" if to == "now" else parse_time(to)
    return (await bucket.stream(start, protocol="dcp")).positions


async def _read_existing(store: PositionStore) -> SavedPositions:
    """Return the positions in a store. Raises Error if there are none."""
    saved = await store.read()
    if saved is None:
        raise Error(f"{store} has no positions")
    return saved


async def _write_new(store: PositionStore, saved: SavedPositions, *, is_replacing: bool, as_json: bool) -> None:
    """Write positions to a store, and print them. Raises UsageError if it has positions that must stay."""
    if await store.read() is not None and not is_replacing:
        raise UsageError(f"{store} has positions already, expected none; --replace replaces them")
    await store.write(saved)
    print_text(_format_summary(store, saved, as_json=as_json))


async def _read_source(source: str, position_format: PositionFormat, bucket: Bucket) -> bytes:
    """Return the JSON to import. Raises UsageError if it cannot be read."""
    if source.startswith(_GROUP):
        if position_format is not PositionFormat.GO:
            raise UsageError(f"{source}: found --format {position_format.value}, expected go-dcp for a group")
        return await _read_group(source.removeprefix(_GROUP), bucket)
    return _read_file(source)


def _read_file(source: str) -> bytes:
    """Return a file, or standard input for `-`. Raises UsageError if it cannot be read."""
    if source == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(source).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"{source} cannot be read ({error.strerror}), expected a file, - or group:NAME") from error


async def _read_group(group: str, bucket: Bucket) -> bytes:
    """Return the checkpoints of a go-dcp group as JSON. Raises Error if the bucket has none."""
    from penstock.client.positions.imported_positions import make_checkpoint_key

    keys = [make_checkpoint_key(group, vbucket) for vbucket in range(bucket.vbuckets)]
    found = await bucket.attributes.read_many(keys, attribute=_GO_ATTRIBUTE)
    documents = {key: each.value for key, each in zip(keys, found, strict=True) if each is not None and each.value}
    if not documents:
        raise Error(f"{bucket.address} has no checkpoints of the group {group!r}, such as {keys[0]}")
    return b"{" + b",".join(b'"%s":%s' % (key.encode(), value) for key, value in documents.items()) + b"}"


def _format_summary(store: PositionStore, saved: SavedPositions | None, *, as_json: bool) -> str:
    if saved is None:
        return (
            format_json_line({"store": str(store), "positions": 0})
            if as_json
            else f"{format_name(str(store))}: no positions"
        )
    seqnos = sum(each.seqno for each in saved.by_vbucket.values())
    content: dict[str, Any] = {
        "store": str(store),
        "bucket": saved.bucket,
        "uuid": saved.uuid,
        "vbuckets": saved.vbuckets,
        "positions": len(saved.by_vbucket),
        "seqnos": seqnos,
    }
    if as_json:
        return format_json_line(content)
    name = f"bucket {format_name(saved.bucket)}" if saved.bucket else "bucket unknown"
    uuid = f", uuid {saved.uuid}" if saved.uuid else ""
    place = format_name(str(store))
    return f"{place}: {name}{uuid}, {len(saved.by_vbucket)} of {saved.vbuckets} vbuckets, {seqnos} seqnos"


def _format_member(member: GroupMemberReport, *, as_json: bool) -> str:
    beat = None if member.beat is None else member.beat.isoformat()
    if as_json:
        return format_json_line({**asdict(member), "beat": beat})
    moves = [f"{word} {format_ranges(each, ',')}" for word, each in _list_moves(member) if each]
    owned = format_ranges(member.vbuckets, ",") or "none"
    words = [f"vbuckets {owned}", *moves, f"lease {member.lease_seconds:g} s", f"last sign {beat or 'none'}"]
    return f"{format_name(member.name)}: {', '.join(words)}"


def _list_moves(member: GroupMemberReport) -> list[tuple[str, tuple[int, ...]]]:
    return [("leaving", member.leaving), ("coming", member.coming)]


def _format_positions(saved: SavedPositions) -> str:
    lines = [f"{'vb':>5} {'seqno':>12} {'vbuuid':>20} {'snapshot':>25} {'history':>7} {'manifest':>8}"]
    for vbucket, each in sorted(saved.by_vbucket.items()):
        snapshot = f"{each.snap_start}-{each.snap_end}"
        lines.append(
            f"{vbucket:5} {each.seqno:12} {each.vbuuid:20} {snapshot:>25} {each.history:7} {each.manifest_uid:8}"
        )
    return "\n".join(lines)
