"""`penstock check`: verify and repair the files of buckets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.base.app import AsJson, Panel, app, format_examples
from penstock.cli.base.exit_codes import ExitCode
from penstock.cli.base.show import format_json_line, print_text
from penstock.cli.base.work_display import Quiet, show_status
from penstock.client.topology.missing_vbuckets import format_ranges
from penstock.errors import StoreDamaged, UsageError
from penstock.names import format_count

if TYPE_CHECKING:
    from penstock.store.recovery.repair_plan import DamageLoss, LostChanges
    from penstock.store.recovery.repair_run import CheckReport

_LISTED = 8
"""Vbuckets that are listed one by one."""


@app.command(
    rich_help_panel=Panel.NODE,
    epilog=format_examples(
        "penstock check ./data", "penstock check ./data/beer --json", "penstock check ./data/beer --repair"
    ),
)
def check(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Directory of a bucket, or data directory of a node."),
    ],
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair damaged buckets; replaced files are kept in DIR/damaged.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Verify the files of buckets, and report damage.

    No node may have the buckets open. Every record and every part of a segment is
    verified. For each damage, the report lists the changes that a repair would
    lose: their number, vbuckets and seqnos, as far as they are known. The exit
    code is 0 if all buckets are intact, 1 if not.

    With --repair, prints the same report and then repairs the buckets. The log is
    cut before its first bad record, because later records may depend on it. Of a
    segment, the changes in bad parts are lost, or all changes if it no longer
    describes its contents. Consumers that have seen lost changes roll back to the changes that
    are left, or start again from zero where that point is unknown.

    With --json, each line is a bucket with its vbuckets and damages; a repair and
    a restored file add a line each.
    """
    code = ExitCode.SUCCESS
    for path in _find_buckets(directory):
        if not _check_bucket(path, repair=repair, as_json=as_json, is_quiet=quiet):
            code = ExitCode.FAILURE
    if code:
        raise typer.Exit(code)


def _find_buckets(path: Path) -> list[Path]:
    """Return the bucket directories at or below a path. Raises UsageError if there is none."""
    from penstock.store.disk.bucket_files import Directory
    from penstock.store.recovery.bucket_directory import has_bucket

    if has_bucket(Directory(path)):
        return [path]
    found = sorted(inner for inner in path.glob("*") if inner.is_dir() and has_bucket(Directory(inner)))
    if not found:
        problem = "has no bucket" if path.is_dir() else "is no directory"
        raise UsageError(f"{path} {problem}, expected the directory of a bucket or a node's data directory")
    return found


def _check_bucket(path: Path, *, repair: bool, as_json: bool, is_quiet: bool) -> bool:
    """Return whether a bucket is intact, after its repair if `repair` is set."""
    from penstock.node.transport.machine import Machine
    from penstock.store.disk.bucket_files import Directory
    from penstock.store.recovery import repair_run as repairing

    files = Directory(path)
    try:
        record = repairing.lock_for_repair(files)
    except StoreDamaged:
        if not repair:
            raise
        record = repairing.restore_record(files)
        restored = {"directory": str(path), "restored": "bucket.json"}
        print_text(format_json_line(restored) if as_json else f"{path}: bucket.json was restored from its copy")
    try:
        if "repair" in record:
            if not repair:
                raise UsageError(f"{path}: a repair was interrupted; finish it with `penstock check --repair`")
            record = repairing.finish_repair(files, record)
        with show_status(f"Checking {path}", is_quiet=is_quiet or as_json):
            report = repairing.check_bucket(files, record, clock=time.time_ns, new_vbuuid=Machine().make_vbuuid)
        print_text(
            format_json_line(_make_object(path, report)) if as_json else "\n".join(_format_report(path, report)),
        )
        if not report.losses:
            return True
        if not repair:
            return False
        aside = path / repairing.repair_bucket(files, report)
        done = {"directory": str(path), "repaired": True, "replaced": str(aside)}
        print_text(format_json_line(done) if as_json else f"  repaired; the replaced files are in {aside}")
        return True
    finally:
        files.unlock()


# As JSON


def _make_object(path: Path, report: CheckReport) -> dict[str, Any]:
    found, record = report.found, report.record
    shown: dict[str, Any] = {
        "directory": str(path),
        "bucket": record["name"],
        "uuid": record["uuid"],
        "whole": not report.losses,
        "clean": found.is_clean,
        "segments": len(found.sealed),
        "log_files": len(found.logs),
        "changes": sum(left.changes for left in report.remaining),
        "documents": sum(left.documents for left in report.remaining),
        "damage": [_make_loss_object(loss) for loss in report.losses],
        "vbuckets": [
            {**left._asdict(), "state": left.state.name.lower() if left.state is not None else None}
            for left in report.remaining
        ],
    }
    if found.torn is not None:
        shown["torn"] = {"file": found.torn.name, "offset": found.torn.offset, "bytes": found.torn.nbytes}
    return shown


def _make_loss_object(loss: DamageLoss) -> dict[str, Any]:
    return {
        "file": loss.damage.file,
        "offset": loss.damage.offset,
        "bytes": loss.damage.nbytes,
        "reason": loss.damage.reason,
        "lost": [lost._asdict() for lost in loss.lost],
        "lost_notes": loss.notes,
        "unreadable_bytes": loss.unreadable,
    }


# As text


def _format_report(path: Path, report: CheckReport) -> Iterator[str]:
    found, torn = report.found, report.found.torn
    files = f"{format_count(len(found.sealed), 'segment')} and {format_count(len(found.logs), 'log file')}"
    there = (
        f"{format_count(sum(left.changes for left in report.remaining), 'change')} and "
        f"{format_count(sum(left.documents for left in report.remaining), 'document')} "
        f"in {sum(left.changes > 0 for left in report.remaining)} of {format_count(len(report.remaining), 'vbucket')}"
    )
    if report.losses:
        yield f"{path}: bucket {report.record['name']} is damaged; {files}"
        for loss in report.losses:
            yield f"  {loss.damage}"
            yield f"    lost with that: {_describe_loss(loss)}"
        yield f"  left by a repair: {there}"
        if report.plan.starts_over:
            yield "  a segment is newer than the lost changes: documents that they changed may be missing completely"
        yield from _describe_rollbacks(report)
    else:
        yield f"{path}: bucket {report.record['name']} is whole: {there}; {files}"
    if torn is not None:
        yield f"  {torn.name}: {torn.nbytes} bytes from offset {torn.offset} are an incomplete last write"


def _describe_loss(loss: DamageLoss) -> str:
    counted = [lost for lost in loss.lost if lost.changes is not None]
    parts = []
    if counted:
        changes = sum(lost.changes or 0 for lost in counted)
        parts.append(f"{format_count(changes, 'change')}: {_join_listed(map(_describe_counted, counted))}")
    unknown = [lost for lost in loss.lost if lost.changes is None]
    if unknown:
        parts.append(f"all changes in {_join_listed(map(_describe_unknown, unknown))}")
    if loss.notes:
        parts.append(format_count(loss.notes, "note") + " about vbuckets")
    if not loss.damage.nbytes and not unknown:
        parts.append("all contents of the missing file")
    if loss.unreadable:
        parts.append(f"{format_count(loss.unreadable, 'unreadable byte')}")
    return "; ".join(parts) or "no change"


def _describe_counted(lost: LostChanges) -> str:
    return f"vbucket {lost.vbucket} {lost.changes}, seqnos {lost.first_seqno} to {lost.last_seqno}"


def _describe_unknown(lost: LostChanges) -> str:
    end = "on" if lost.last_seqno is None else f"to {lost.last_seqno}"
    return f"vbucket {lost.vbucket} from seqno {lost.first_seqno} {end}"


def _join_listed(texts: Iterable[str]) -> str:
    all_of_them = list(texts)
    rest = len(all_of_them) - _LISTED
    return ", ".join(all_of_them[:_LISTED]) + (f", and {rest} more vbuckets" if rest > 0 else "")


def _describe_rollbacks(report: CheckReport) -> Iterator[str]:
    """Yield a line for each kind of rollback that consumers get after the repair."""
    lost = {lost.vbucket for loss in report.losses for lost in loss.lost}
    rolled_back = [
        left for left in report.remaining if left.rollback is not None and (left.changes or left.vbucket in lost)
    ]
    restarted = [left.vbucket for left in rolled_back if left.rollback == 0]
    newest = [left.vbucket for left in rolled_back if left.rollback == left.high_seqno != 0]
    between = [left for left in rolled_back if left.rollback not in {0, left.high_seqno}]
    if restarted:
        yield f"  consumers start over in vbuckets {format_ranges(restarted)}"
    if newest:
        yield f"  consumers that have seen more go back to the newest change left in vbuckets {format_ranges(newest)}"
    if between:
        back = _join_listed(f"vbucket {left.vbucket} to {left.rollback}" for left in between)
        yield f"  consumers that have seen more go back in {back}"
