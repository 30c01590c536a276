"""`penstock check`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.base.app import AsJson, Panel, app, examples
from penstock.cli.base.show import json_line
from penstock.client.topology.missing import ranges_of
from penstock.errors import StoreDamaged, UsageError

if TYPE_CHECKING:
    from penstock.store.recovery.repair_plan import Loss, Lost
    from penstock.store.recovery.repair_run import Report

_LISTED = 8
"""Vbuckets that are named one by one."""


@app.command(
    rich_help_panel=Panel.NODE,
    epilog=examples(
        "penstock check ./data", "penstock check ./data/beer --json", "penstock check ./data/beer --repair"
    ),
)
def check(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A bucket's directory, or a node's data directory with all of its buckets."),
    ],
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Make a bucket of what is left; what is replaced is kept in DIR/damaged.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read all that buckets have on disk, and say what is there and what is damaged.

    No node may have them open. Every record and every part of a segment is verified. For each damage it says what a
    repair would lose: how many changes of which vbuckets, with their seqnos, as far as anybody can tell. The exit code
    is 0 if all is whole, 1 if not.

    With --repair it says the same first, and then does it. The log ends in front of its first bad record: what comes
    behind may depend on it. Of a segment, what lies in bad parts is lost, and all of it if it does not say what it
    holds. Where a vbucket has lost something, consumers that have seen more are told to roll back to what is left; if
    that cannot be said exactly they start over. The files that were replaced are kept in the directory `damaged`.

    With --json a line is a bucket, with each vbucket and each damage; a repair adds a line, a restored file another.
    """
    code = 0
    for path in _buckets(directory):
        if not _check(path, repair=repair, as_json=as_json):
            code = 1
    if code:
        raise typer.Exit(code)


def _buckets(path: Path) -> list[Path]:
    """Return the directories of buckets. Raises UsageError if there is none."""
    from penstock.store.disk.bucket_files import Directory
    from penstock.store.recovery.bucket_directory import is_there

    if is_there(Directory(path)):
        return [path]
    found = sorted(inner for inner in path.glob("*") if inner.is_dir() and is_there(Directory(inner)))
    if not found:
        what = "has no bucket in it" if path.is_dir() else "is no directory"
        raise UsageError(f"{path} {what}, expected one of a bucket, or of a node's buckets")
    return found


def _check(path: Path, *, repair: bool, as_json: bool) -> bool:
    """Check one bucket and repair it, if that is wanted; tell whether it is whole in the end."""
    from penstock.node.buckets.bucket_storage import new_vbuuid
    from penstock.store.disk.bucket_files import Directory
    from penstock.store.recovery import repair_run as repairing

    files = Directory(path)
    try:
        said = repairing.enter(files)
    except StoreDamaged:
        if not repair:
            raise
        said = repairing.restore(files)
        restored = {"directory": str(path), "restored": "bucket.json"}
        print(json_line(restored) if as_json else f"{path}: bucket.json was restored from its copy", flush=True)
    try:
        if "repair" in said:
            if not repair:
                raise UsageError(f"{path}: a repair was interrupted; `penstock check --repair` ends it")
            said = repairing.finish(files, said)
        report = repairing.check(files, said, clock=time.time_ns, new_vbuuid=new_vbuuid)
        print(json_line(_as_object(path, report)) if as_json else "\n".join(_lines(path, report)), flush=True)
        if not report.losses:
            return True
        if not repair:
            return False
        aside = path / repairing.repair(files, report)
        done = {"directory": str(path), "repaired": True, "replaced": str(aside)}
        print(json_line(done) if as_json else f"  repaired; what was replaced is in {aside}")
        return True
    finally:
        files.unlock()


# As JSON


def _as_object(path: Path, report: Report) -> dict[str, Any]:
    found, said = report.found, report.said
    shown: dict[str, Any] = {
        "directory": str(path),
        "bucket": said["name"],
        "uuid": said["uuid"],
        "whole": not report.losses,
        "clean": found.clean,
        "segments": len(found.sealed),
        "log_files": len(found.logs),
        "changes": sum(left.changes for left in report.left),
        "documents": sum(left.documents for left in report.left),
        "damage": [_loss(loss) for loss in report.losses],
        "vbuckets": [
            {**left._asdict(), "state": left.state.name.lower() if left.state is not None else None}
            for left in report.left
        ],
    }
    if found.torn is not None:
        shown["torn"] = {"file": found.torn.name, "offset": found.torn.offset, "bytes": found.torn.nbytes}
    return shown


def _loss(loss: Loss) -> dict[str, Any]:
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


def _lines(path: Path, report: Report) -> Iterator[str]:
    found, torn = report.found, report.found.torn
    files = f"{_number(len(found.sealed), 'segment')} and {_number(len(found.logs), 'log file')}"
    there = (
        f"{_number(sum(left.changes for left in report.left), 'change')} and "
        f"{_number(sum(left.documents for left in report.left), 'document')} "
        f"in {sum(left.changes > 0 for left in report.left)} of {_number(len(report.left), 'vbucket')}"
    )
    if report.losses:
        yield f"{path}: bucket {report.said['name']} is damaged; {files}"
        for loss in report.losses:
            yield f"  {loss.damage}"
            yield f"    lost with that: {_lost(loss)}"
        yield f"  left by a repair: {there}"
        if report.plan.starts_over:
            yield "  a segment is younger than that: documents that the lost changes had changed may be gone altogether"
        yield from _rollbacks(report)
    else:
        yield f"{path}: bucket {report.said['name']} is whole: {there}; {files}"
    if torn is not None:
        end = "the end of a stop that was not clean"
        yield f"  {torn.name}: {torn.nbytes} bytes from offset {torn.offset} on are {end}"


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _lost(loss: Loss) -> str:
    counted = [lost for lost in loss.lost if lost.changes is not None]
    parts = []
    if counted:
        changes = sum(lost.changes or 0 for lost in counted)
        parts.append(f"{_number(changes, 'change')}: {_listed(map(_counted, counted))}")
    unknown = [lost for lost in loss.lost if lost.changes is None]
    if unknown:
        parts.append(f"whatever changes there were in {_listed(map(_unknown, unknown))}")
    if loss.notes:
        parts.append(_number(loss.notes, "note") + " about vbuckets")
    if not loss.damage.nbytes and not unknown:
        parts.append("whatever was in what is missing")
    if loss.unreadable:
        parts.append(f"what {_number(loss.unreadable, 'byte')} said that cannot be read")
    return "; ".join(parts) or "no change"


def _counted(lost: Lost) -> str:
    return f"vbucket {lost.vbucket} {lost.changes}, seqnos {lost.first_seqno} to {lost.last_seqno}"


def _unknown(lost: Lost) -> str:
    end = "on" if lost.last_seqno is None else f"to {lost.last_seqno}"
    return f"vbucket {lost.vbucket} from seqno {lost.first_seqno} {end}"


def _listed(texts: Iterable[str]) -> str:
    all_of_them = list(texts)
    rest = len(all_of_them) - _LISTED
    return ", ".join(all_of_them[:_LISTED]) + (f", and {rest} more vbuckets" if rest > 0 else "")


def _rollbacks(report: Report) -> Iterator[str]:
    """Say what consumers are told after a repair."""
    lost = {lost.vbucket for loss in report.losses for lost in loss.lost}
    told = [left for left in report.left if left.rollback is not None and (left.changes or left.vbucket in lost)]
    anew = [left.vbucket for left in told if left.rollback == 0]
    newest = [left.vbucket for left in told if left.rollback == left.high_seqno != 0]
    between = [left for left in told if left.rollback not in {0, left.high_seqno}]
    if anew:
        yield f"  consumers start over in vbuckets {ranges_of(anew)}"
    if newest:
        yield f"  consumers that have seen more go back to the newest change left in vbuckets {ranges_of(newest)}"
    if between:
        back = _listed(f"vbucket {left.vbucket} to {left.rollback}" for left in between)
        yield f"  consumers that have seen more go back in {back}"
