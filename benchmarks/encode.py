"""Encode a batch of changes as stream frames: columns joined by Arrow against a loop over the rows.

The batch has about 2 MiB of mutations with keys of 12 to 28 bytes, decoded from the slab of benchmarks.decode. "loop"
starts from rows as tuples, packs header and extras with one Struct, and joins the parts. "columns" starts from the
batch. With --small: the cost of small batches for both ways of encoding.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat

import pyarrow as pa

from benchmarks.decode import FIELDS, fill_slab
from benchmarks.report import Case, Report, make_parser, time_in_turns
from penstock.wire.columns.frame_offsets import find_offsets
from penstock.wire.columns.heads import Run, StreamContext
from penstock.wire.columns.run_decoder import decode_run, list_changes
from penstock.wire.columns.run_encoder import Frames, encode_changes, join_columns
from penstock.wire.messages.dcp import MUTATION_HEAD
from penstock.wire.protocol.frame_receiver import Slab

Rows = list[tuple[int, int, int, int, bytes, bytes, int, int, int, int]]


def encode_by_loop(rows: Rows, opaque: int) -> bytes:
    pieces: list[bytes] = []
    pack = MUTATION_HEAD.pack
    for vbucket, seqno, rev_seqno, cas, key, value, datatype, flags, expiry, lock_time in rows:
        numbers = (seqno, rev_seqno, flags, expiry, lock_time, 0, 0)
        body = 31 + len(key) + len(value)
        head = pack(0x80, 0x57, len(key), 31, datatype, vbucket, body, opaque, cas, *numbers)
        pieces += (head, key, value)
    return b"".join(pieces)


def encode_by_row(batch: pa.RecordBatch) -> Frames:
    return encode_changes(list_changes(batch), repeat(7))


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--small", action="store_true", help="small batches instead of a slab")
    chosen = parser.parse_args()
    report = Report("Encode of changes as mutations", chosen)
    for value_bytes in (100,) if chosen.small else (100, 1024):
        slab = Slab()
        end = fill_slab(slab, value_bytes, 64)
        offsets, _ = find_offsets(slab.view, 0, end)
        batch = decode_run(Run(slab.view, offsets, end), StreamContext(1024))
        changes = list_changes(batch)
        rows: Rows = [tuple(getattr(change, name) for name in FIELDS) for change in changes]
        assert join_columns(batch, 7).buffer.to_pybytes() == encode_by_loop(rows, 7)
        if chosen.small:
            for count in (1, 5, 10, 15, 20, 30, 50, 100):
                few = batch.slice(0, count)
                small: dict[str, Case] = {"loop": partial(encode_by_row, few), "columns": partial(join_columns, few, 7)}
                times = time_in_turns(small, chosen.rounds, calls=20)
                figures = ", ".join(f"{name} {taken.median * 1e6:.0f} us" for name, taken in times.items())
                report.add_row(f"batch of {count}", figures)
            continue
        cases: dict[str, Case] = {"loop": partial(encode_by_loop, rows, 7), "columns": partial(join_columns, batch, 7)}
        times = time_in_turns(cases, chosen.rounds, calls=5)
        for name, taken in times.items():
            figures = f"{taken.median / len(rows) * 1e9:.0f} ns/message median, {taken.best / len(rows) * 1e9:.0f} best"
            report.add_row(f"{value_bytes} B, {name}", f"{figures}; {times['loop'].median / taken.median:.1f}x loop")
    report.finish()


if __name__ == "__main__":
    main()
