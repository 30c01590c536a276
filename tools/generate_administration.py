"""Write docs/administration.md from the node's tables; with --check only say whether it would change."""

from __future__ import annotations

import sys
from pathlib import Path

from generated import publish

from penstock.node.auth import Privilege, RoleName
from penstock.node.auth.roles import GRANTS
from penstock.node.commands.bucket_parameters import PARAMETERS, WITHOUT_EFFECT
from penstock.node.server.dispatch import every_command
from penstock.node.session.command_table import Needs
from penstock.node.stats.stat_group import Argument, StatGroup
from penstock.node.stats.stat_groups import GROUPS, MISSING

TARGET = Path(__file__).parent.parent / "docs" / "administration.md"

OPENING = """\
# Administration of a node

<!-- Made by tools/generate_administration.py from the code; edit that. -->

`cbepctl` and other tools send these commands over the key-value port. Each command is for the selected bucket. The user
needs the privilege to manage buckets.

## Persistence

STOP_PERSISTENCE (`cbepctl HOST:PORT stop`) writes no more changes of a bucket to disk:

- Changes stay in memory, and consumers receive them. `persisted_seqno` stands still.
- STAT shows `ep_flusher_state` as `paused`; `ep_queue_size` counts the changes that are not on disk.
- A crash loses exactly these changes. Consumers that have received them are told to roll back. A clean stop of the node
  writes the changes first.
- Requests that wait for persistence end with ETMPFAIL after the persistence timeout. COMPACT_DB ends with ETMPFAIL.
- When 256 MiB or four log files wait for the disk, whichever is more, changes end with ETMPFAIL.

START_PERSISTENCE (`cbepctl HOST:PORT start`) writes all of them. Either command answers EINVAL if persistence is
already stopped or started, and for a bucket in memory.

EVICT_KEY removes nothing: the node reads values on disk through memory-mapped files and keeps no cache. It answers
`Already ejected.` for a document on disk, and KEY_EEXISTS for a document that is not on disk yet.

COMPACT_DB (`cbepctl HOST:PORT compact VBUCKET TS SEQNO DROP`) rewrites all files of the bucket. It drops tombstones of
that vbucket which are older than TS, up to SEQNO if that is not 0, and all of them if DROP is 1. The newest change of a
vbucket or collection stays. A stream that has yet to send a dropped tombstone ends with reason ROLLBACK.

## Memory

`--memory BYTES`, `max_size`, or `ramQuotaMB` over HTTP is the quota of a bucket for what `mem_used` counts:

- In the background, compaction drops dead frames: deleted documents and old versions. At most about a fifth of all
  frames is dead. Above 85 % of the quota a smaller part suffices.
- A bucket on disk keeps in memory its keys, 8 bytes for each change in its files, and the changes that wait for the
  disk. Values are read from the files. So a bucket with large values can be many times its quota.
- Above the quota changes end with ETMPFAIL while compaction or a commit is about to free memory, otherwise with ENOMEM.
  Deletions and a flush are still taken.
- Tombstones stay in memory too, for the purge age (`--purge-age`).
- An ephemeral bucket with `evictionPolicy=nruEviction` (HTTP) deletes documents above 85 % of the quota, down to 75 %:
  those that were changed longest ago, whether or not they were read since. Streams carry these deletions, and
  `vb_active_auto_delete_count` counts them. While memory is short their tombstones stay for a minute at most.
  With `noEviction`, the default, it refuses changes.

## Parameters

SET_PARAM (`cbepctl HOST:PORT set TYPE NAME VALUE`) sets a parameter of a bucket until the node stops.
"""

IGNORED = """\
Parameters that begin with {prefixes} are accepted and
change nothing: they tune background tasks that a node does not run. Every other parameter is refused: EINVAL, or
KEY_ENOENT for types checkpoint_param and replication_param.
"""


def parameters() -> str:
    lines = ["| parameter | type | value | sets |", "| --- | --- | --- | --- |"]
    for name, parameter in sorted(PARAMETERS.items()):
        types = ", ".join(f"{kind.name.lower()}_param" for kind in sorted(parameter.types))
        value = "`true` or `false`" if parameter.highest == 1 else f"{parameter.lowest} to {parameter.highest}"
        lines.append(f"| `{name}` | {types} | {value} | {parameter.effect} |")
    prefixes = ", ".join(f"`{prefix}`" for prefix in WITHOUT_EFFECT)
    return "\n".join(lines) + f"\n\n{IGNORED.format(prefixes=prefixes)}"


STATISTICS = """\
## Statistics

STAT (`penstock stats GROUP`, `cbstats HOST:PORT GROUP`) shows a group of statistics. Names are those of kv_engine. A
value that a node does not have is missing, never invented. `[X]` may be left out. Users need the privilege to read
statistics.
"""

STATISTICS_END = """\
The groups `dcp`, `upr` and `tap` take options as a JSON object in the value of the request, with datatype JSON:

- `{"stream_format": "json"}` shows one JSON value for each stream, `"skip"` shows no streams.
- `{"filter": {"user": NAME, "port": NUMBER}}` shows only the connections of that user and port.

What some names mean here:

- `items_sent` and `total_bytes_sent` of a connection include streams that have ended.
- `backfill_sent` of a stream counts changes that existed when the stream began, `memory_phase` counts later ones.
- `mem_used` is what keys, rows and frames of the bucket occupy in memory. Files that are mapped into memory are not
  part of it: the system takes their pages back when it needs them. Neither are segments that compaction has replaced
  and that open streams still read: `mem_used` and the quota do not count them, the process has them in memory.
- `ep_oom_errors` counts changes that were refused with ENOMEM, `ep_tmp_oom_errors` those with ETMPFAIL, at the quota.
- `ep_queue_size` is 0 when all changes are on disk.
- `reset` sets counters of the bucket to 0, but not the totals of connections.

Groups that kv_engine has and a node does not have answer NOT_SUPPORTED; unknown groups answer KEY_ENOENT:
"""


def statistics() -> str:
    rows = "\n".join(
        f"| {_call(name, group)} | {group.doc}{_privilege(group)} |" for name, group in sorted(GROUPS.items())
    )
    missing = "\n".join(f"- `{name}`: {group.doc}." for name, group in sorted(MISSING.items()))
    return f"{STATISTICS}\n| group | shows |\n| --- | --- |\n{rows}\n\n{STATISTICS_END}\n{missing}\n"


def _call(name: str, group: StatGroup) -> str:
    usage = f"[{group.usage}]" if group.argument is Argument.OPTIONAL else group.usage
    return f"`{name} {usage}`".replace(" `", "`") if name else "(none)"


def _privilege(group: StatGroup) -> str:
    return "; needs the privilege to change settings" if group.privilege is not Privilege.SIMPLE_STATS else ""


PRIVILEGES = """\
## Privileges

Every command of the key-value port, the privileges that it needs, and the roles that have them. A role for one scope or
collection has the privileges for documents there only. A user has the privileges of all roles together. Commands that
a node does not serve are not listed.
"""


def privileges() -> str:
    by_needs: dict[Needs, list[str]] = {}
    for command in every_command():
        by_needs.setdefault(command.needs, []).append(command.code.name)
    lines = ["| privileges | roles | commands |", "| --- | --- | --- |"]
    for needs in sorted(by_needs, key=_order):
        commands = " ".join(sorted(by_needs[needs]))
        lines.append(f"| {_needs(needs)} | {_roles(needs)} | {commands} |")
    return f"{PRIVILEGES}\n" + "\n".join(lines) + "\n"


def _order(needs: Needs) -> list[int]:
    """Return a key that sorts what needs least to the front."""
    return [] if needs is None else [0, *sorted(privilege.value for privilege in needs)]


def _needs(needs: Needs) -> str:
    if needs is None:
        return "none, and no login"
    return ", ".join(privilege.name for privilege in Privilege if privilege in needs) or "none"


def _roles(needs: Needs) -> str:
    able = [role for role, grant in GRANTS.items() if needs is None or needs <= grant.documents | grant.bucket]
    return "all" if len(able) == len(RoleName) else ", ".join(f"`{role}`" for role in able)


def main() -> int:
    return publish(TARGET, f"{OPENING}\n{parameters()}\n{statistics()}\n{privileges()}")


if __name__ == "__main__":
    sys.exit(main())
