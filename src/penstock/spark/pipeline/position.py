"""How far a lake's tables are, in the bucket's terms, and how far behind it that is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from penstock.errors import UsageError
from penstock.spark.lake import Lake, plain
from penstock.spark.source.offsets import Offset

__all__ = ["behind", "written_to"]


def written_to(lake: Lake) -> Offset | None:
    """Return the end of the newest batch in the changelog, None before the first.

    The batch's number is in the changelog's commit, and its end in the file of that name in the query's checkpoint.
    """
    batch = plain.newest_batch(lake.changelog_table.path)
    if batch is None:
        changelog, query = lake.changelog_table.open(), lake.query_id()
        batch = changelog.transaction_version(query) if changelog is not None and query is not None else None
    if batch is None:
        return None
    path = lake.checkpoint / "offsets" / str(batch)
    try:
        *_, last = path.read_text().splitlines()
        return Offset.from_json(json.loads(last))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}), expected the end of a batch") from None
    except ValueError:
        raise UsageError(f"{path} is not what Spark writes, expected the end of a batch") from None


def behind(end: Offset | None, high_seqnos: Mapping[int, int], chosen: Iterable[int] | None = None) -> int:
    """Return how many seqnos a bucket has beyond a position. chosen: only these vbuckets count, if not all do."""
    wanted = high_seqnos.keys() if chosen is None else high_seqnos.keys() & set(chosen)
    known = {} if end is None else dict(enumerate(vbucket.seqno for vbucket in end.vbuckets))
    return sum(max(0, high_seqnos[vbucket] - known.get(vbucket, 0)) for vbucket in wanted)
