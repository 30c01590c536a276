"""Write docs/administration.md from the node's tables; with --check only say whether it would change."""

from __future__ import annotations

from generated import publish, table

from penstock.node.auth import Privilege, RoleName
from penstock.node.auth.roles import ROLE_GRANTS
from penstock.node.commands.bucket_parameters import IGNORED_PREFIXES, PARAMETERS
from penstock.node.server.dispatch import list_commands
from penstock.node.session.command_table import Needs
from penstock.node.stats.stat_group import Argument, StatGroup
from penstock.node.stats.stat_groups import GROUPS, MISSING

OPENING = """\
# Administration of a node

<!-- Made by tools/generate_administration.py from the code; edit that. -->

`cbepctl` and other tools send these commands over the key-value port. Each command is for the selected bucket. The user
needs the privilege to manage buckets.

## Persistence

STOP_PERSISTENCE (`cbepctl HOST:PORT stop`) writes no more changes of a bucket to disk:

- Changes stay in memory, and consumers receive them. `persisted_seqno` stands still.
- STAT shows `ep_flusher_state` as `paused`; `ep_queue_size` counts the changes that are not on disk.
- A crash loses exactly these changes. Consumers that have received them roll back. A clean stop of the node writes the
  changes first.
- Requests that wait for persistence end with ETMPFAIL after the persistence timeout. COMPACT_DB ends with ETMPFAIL.
- When 256 MiB or four log files wait for the disk, whichever is more, changes end with ETMPFAIL.

START_PERSISTENCE (`cbepctl HOST:PORT start`) writes all of them. Either command answers EINVAL if persistence is
already stopped or started, and for a bucket in memory.

EVICT_KEY removes nothing: the node reads values on disk through memory-mapped files and keeps no cache. It answers
`Already ejected.` for a document on disk, and KEY_EEXISTS for a document that is not on disk yet.

COMPACT_DB (`cbepctl HOST:PORT compact VBUCKET TS SEQNO DROP`) rewrites all files of the bucket. It drops tombstones of
that vbucket that are older than TS, up to SEQNO if that is not 0. It drops all of them if DROP is 1. The newest change
of a vbucket or collection stays. A stream that has yet to send a dropped tombstone ends with reason ROLLBACK.

## Change history

A bucket can keep the older versions of its documents for some time, or until so many bytes of the log have followed:

- `penstock serve --retention 86400 --retention-bytes 10000000000`, for new buckets;
- `historyRetentionSeconds` and `historyRetentionBytes` of a bucket with `storageBackend=magma`, over HTTP. 0 is no
  limit. If both are 0, the bucket keeps no older versions;
- `history_retention_seconds` and `history_retention_bytes` as [parameters](#parameters) of an open bucket.

A DCP consumer that asks for `change_streams` gets all versions of the documents in collections with `history`. New
collections have it if `historyRetentionCollectionDefault` is true. `PATCH` of a collection changes it. Others are
deduplicated. STAT `vbucket-details` has `history_start_seqno`: the seqno from which on all versions are there. A
stream from further back begins with a deduplicated part. `penstock tail --url 'couchbase://HOST/BUCKET?changeHistory=true'`
prints every version.

## Memory

`--memory BYTES`, `max_size`, or `ramQuotaMB` over HTTP is the quota of a bucket; `mem_used` counts against it:

- In the background, compaction drops dead frames: deleted documents and old versions. At most about a fifth of all
  frames is dead. Above 85 % of the quota a smaller part suffices.
- A bucket on disk keeps in memory its keys, 8 bytes for each change in its files, and the changes that wait for the
  disk. Values are read from the files. So a bucket with large values can be many times its quota.
- Above the quota changes end with ETMPFAIL while compaction or a commit is about to free memory, otherwise with ENOMEM.
  Deletions and a flush are still taken.
- Tombstones stay in memory too, for the purge age (`--purge-age`).
- An ephemeral bucket with `evictionPolicy=nruEviction` (HTTP) deletes documents above 85 % of the quota, down to 75 %.
  It begins with the documents that were changed longest ago; reads do not count. Streams carry these deletions, and
  `vb_active_auto_delete_count` counts them. While memory is short their tombstones stay for a minute at most. With
  `noEviction`, the default, it refuses changes.

## Parameters

SET_PARAM (`cbepctl HOST:PORT set TYPE NAME VALUE`) sets a parameter of a bucket until the node stops.
"""

IGNORED = """\
Parameters that begin with {prefixes} are accepted and
change nothing: they tune background tasks that a node does not run. Every other parameter is refused: EINVAL, or
KEY_ENOENT for types checkpoint_param and replication_param.
"""


def parameters() -> str:
    rows = []
    for name, parameter in sorted(PARAMETERS.items()):
        types = ", ".join(f"{kind.name.lower()}_param" for kind in sorted(parameter.types))
        value = "`true` or `false`" if parameter.highest == 1 else f"{parameter.lowest} to {parameter.highest}"
        rows.append((f"`{name}`", types, value, parameter.effect))
    prefixes = ", ".join(f"`{prefix}`" for prefix in IGNORED_PREFIXES)
    return f"{table(('parameter', 'type', 'value', 'sets'), rows)}\n{IGNORED.format(prefixes=prefixes)}"


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

The meaning of some names:

- `items_sent` and `total_bytes_sent` of a connection include streams that have ended.
- `backfill_sent` of a stream counts changes that existed when the stream began, `memory_phase` counts later ones.
- `mem_used` is the memory of the keys, rows and frames of the bucket. Files that are mapped into memory are not part of
  it: the system takes their pages back when it needs them. Segments that compaction has replaced and that open streams
  still read are in memory too. `mem_used` and the quota do not count them.
- `ep_oom_errors` counts changes that were refused with ENOMEM, `ep_tmp_oom_errors` those with ETMPFAIL, at the quota.
- `ep_queue_size` is 0 when all changes are on disk.
- `reset` sets counters of the bucket to 0, but not the totals of connections.

Groups that kv_engine has and a node does not have answer NOT_SUPPORTED; unknown groups answer KEY_ENOENT:
"""


def statistics() -> str:
    rows = [(_call(name, group), f"{group.doc}{_privilege(group)}") for name, group in sorted(GROUPS.items())]
    missing = "\n".join(f"- `{name}`: {group.doc}." for name, group in sorted(MISSING.items()))
    return f"{STATISTICS}\n{table(('group', 'shows'), rows)}\n{STATISTICS_END}\n{missing}\n"


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
    for command in list_commands():
        by_needs.setdefault(command.needs, []).append(command.code.name)
    rows = []
    for needs in sorted(by_needs, key=_order):
        commands = " ".join(sorted(by_needs[needs]))
        rows.append((_needs(needs), _roles(needs), commands))
    return f"{PRIVILEGES}\n{table(('privileges', 'roles', 'commands'), rows)}"


def _order(needs: Needs) -> list[int]:
    """Return a key that sorts the fewest privileges to the front."""
    return [] if needs is None else [0, *sorted(privilege.value for privilege in needs)]


def _needs(needs: Needs) -> str:
    if needs is None:
        return "none, and no login"
    return ", ".join(privilege.name for privilege in Privilege if privilege in needs) or "none"


def _roles(needs: Needs) -> str:
    able = [role for role, grant in ROLE_GRANTS.items() if needs is None or needs <= grant.documents | grant.bucket]
    return "all" if len(able) == len(RoleName) else ", ".join(f"`{role}`" for role in able)


if __name__ == "__main__":
    publish({"administration.md": f"{OPENING}\n{parameters()}\n{statistics()}\n{privileges()}"})
