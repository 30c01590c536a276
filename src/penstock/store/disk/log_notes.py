"""The notes of a log file: JSON, in the order of commits among the changes.

    {"head": [vbucket, ...], "behind": n, ...}  a log file begins: how things stand with every vbucket, and the size of
                                                the log file before
    {"opened": true, ...}                       the bucket was opened
    {"clean": true}                             the bucket was closed; what it had is all there
    {"vbucket": n, ..., "cut": seqno}           how things stand with a vbucket; with a cut its changes above that
                                                seqno count no more
    {"cas": [vbucket, cas]}                     a cas that was given without a change
    {"floors": [...], "drafts": {...}}          a compaction dropped frames: what no snapshot can show any more, and
                                                which drafts are segments from here on

The first two tell the time, so that no two log files begin alike and no two openings go on alike.
"""

from __future__ import annotations

import json

__all__ = ["CLEAN", "HEAD", "MARK_BYTES", "OPENED", "pack_note"]

CLEAN = b'{"clean":true}'
HEAD = b'{"head":'
OPENED = b'{"opened":'

MARK_BYTES = 128
"""No note of an opening or a clean end is longer."""


def pack_note(said: object) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()
