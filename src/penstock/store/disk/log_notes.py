"""The notes of a log file: JSON objects among the changes, in the order of commits.

```
{"head": [vbucket, ...], "behind": n, ...}  A log file begins: the state of every vbucket, and the size in bytes of the
                                            previous log file.
{"opened": true, ...}                       The bucket was opened.
{"clean": true}                             The bucket was closed; all its records are in the files.
{"vbucket": n, ..., "cut": seqno}           The state of a vbucket. With a cut: its changes above that seqno no longer
                                            count.
{"cas": [vbucket, cas]}                     A cas was assigned without a change.
{"floors": [...], "drafts": {...}}          A compaction dropped frames: the limits below which snapshots are no longer
                                            complete, and the drafts that are segments from here on.
```

The first two contain the time. So no two log files have the same beginning, and no two openings continue a file in
the same way.
"""

from __future__ import annotations

import json

CLEAN = b'{"clean":true}'
HEAD = b'{"head":'
OPENED = b'{"opened":'

MARK_BYTES = 128
"""The maximum length of a note of an opening or of a clean end."""


def pack_note(note: object) -> bytes:
    """Return a note as compact JSON."""
    return json.dumps(note, separators=(",", ":")).encode()
