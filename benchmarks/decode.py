"""Decode a slab of mutations to one Arrow batch: columns against a loop over the messages.

The slab is in the processor's cache, because its bytes are copied into it before each call, as by a socket. The copy
is not timed. Each turn of a case decodes five slabs. Keys have 12 to 28 bytes, values are ASCII, vbuckets are random
among --vbuckets. Cases, each from bytes to its result:

- "loop to tuples" finds the next header and unpacks header and extras with one Struct. It cuts out key and value as
  bytes, and appends one tuple of the fields that differ between messages. It makes no Arrow data. This is the minimum
  cost of a decoder with a loop.
- "loop to Arrow" decodes in the same way and appends each field to the list of its column. From the lists it makes the
  same record batch as "columns". Both share the constant columns and the nulls.
- "columns" is the code of a client: receive_data of a FrameReceiver, then decode_run. Values are copied, or are views.
  It runs in Python, and with the extension module if that is built.

With --small: the cost of short runs for both ways of decode_run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from struct import Struct
from types import ModuleType

import numpy as np
import pyarrow as pa

from benchmarks.report import Case, Report, make_parser, time_in_turns
from penstock.wire.codec import native
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns import run_decoder
from penstock.wire.columns.frame_offsets import find_offsets
from penstock.wire.columns.heads import Run, StreamContext, gather_heads
from penstock.wire.columns.message_decoder import decode_messages
from penstock.wire.columns.schema import CHANGE_SCHEMA, signed64
from penstock.wire.messages.dcp import MUTATION_HEAD, Mutation
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab

BODY = Struct(">8xI")


def fill_slab(slab: Slab, value_bytes: int, vbuckets: int) -> int:
    """Return the number of bytes of mutation frames, after filling a slab with them."""
    chance = random.Random(20261120)
    position = 0
    seqnos = [0] * vbuckets
    while True:
        vbucket = chance.randrange(vbuckets)
        seqnos[vbucket] += 1
        data = Mutation(
            vbucket=vbucket,
            opaque=vbucket + 1,
            cas=chance.getrandbits(63),
            datatype=1,
            key=f"key_{chance.randrange(10**8)}".ljust(chance.randrange(12, 29), "x").encode(),
            value=(f"{chance.getrandbits(64):016x}" * (value_bytes // 16 + 1)).encode()[:value_bytes],
            by_seqno=seqnos[vbucket],
            rev_seqno=1,
        ).encode()
        if position + len(data) > slab.nbytes:
            return position
        slab.view[position : position + len(data)] = data
        position += len(data)


def loop_to_tuples(slab: Slab, end: int) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    view, offset = slab.view, 0
    append, unpack = rows.append, MUTATION_HEAD.unpack_from
    while offset < end:
        (_, _, key_length, extras_length, datatype, vbucket, body, _, cas, seqno, rev_seqno, flags, expiry, *_) = (
            unpack(view, offset)
        )
        key_at = offset + 24 + extras_length
        value_at = key_at + key_length
        offset += 24 + body
        key, value = view[key_at:value_at].tobytes(), view[value_at:offset].tobytes()
        append((vbucket, seqno, rev_seqno, cas, key, value, datatype, flags, expiry))
    return rows


FIELDS = ("vbucket", "seqno", "rev_seqno", "cas", "key", "value", "datatype", "flags", "expiry", "lock_time")
CONTEXT = StreamContext.NAMES


def loop_to_arrow(slab: Slab, end: int, context: StreamContext) -> pa.RecordBatch:
    view, offset = slab.view, 0
    lists: dict[str, list[object]] = {name: [] for name in (*FIELDS, *CONTEXT)}
    vbuckets, seqnos, rev_seqnos, cas_, keys, values, datatypes, flags_, expiries, lock_times = (
        lists[name].append for name in FIELDS
    )
    unpack = MUTATION_HEAD.unpack_from
    while offset < end:
        (_, _, key_length, extras_length, datatype, vbucket, body, _, cas, seqno, rev, flags, expiry, lock, _, _) = (
            unpack(view, offset)
        )
        key_at = offset + 24 + extras_length
        value_at = key_at + key_length
        offset += 24 + body
        vbuckets(vbucket)
        seqnos(signed64(seqno))
        rev_seqnos(signed64(rev))
        cas_(signed64(cas))
        keys(view[key_at:value_at].tobytes())
        values(view[value_at:offset].tobytes())
        datatypes(datatype)
        flags_(flags)
        expiries(expiry)
        lock_times(lock)
    count = len(lists["vbucket"])
    for name in CONTEXT:
        by_vbucket = getattr(context, name).tolist()
        lists[name] = [by_vbucket[vbucket] for vbucket in lists["vbucket"]]
    event = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), ["mutation"]).cast(pa.string())
    arrays = []
    for field in CHANGE_SCHEMA:
        if field.name == "event":
            arrays.append(event)
        else:
            arrays.append(
                pa.array(lists[field.name], field.type) if field.name in lists else pa.nulls(count, field.type)
            )
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


EXTENSION = native.extension


def decode_by_columns(
    connection: FrameReceiver,
    end: int,
    context: StreamContext,
    *,
    views: bool = False,
    extension: ModuleType | None = None,
) -> pa.RecordBatch:
    native.extension = extension
    connection.get_buffer()
    (run,) = connection.receive_data(end)
    assert isinstance(run, Run)
    return run_decoder.decode_run(run, context, views=views)


def compare_decoders(report: Report, value_bytes: int, vbuckets: int, rounds: int) -> None:
    slab, context = Slab(), StreamContext(max(vbuckets, 1024))
    end = fill_slab(slab, value_bytes, vbuckets)
    connection = FrameReceiver(slab, run_dialect=Dialect.DCP)
    cases: dict[str, Case] = {
        "loop to tuples": lambda: loop_to_tuples(slab, end),
        "loop to Arrow": lambda: loop_to_arrow(slab, end, context),
        "columns, values copied": lambda: decode_by_columns(connection, end, context),
        "columns, values as views": lambda: decode_by_columns(connection, end, context, views=True),
    }
    if EXTENSION is not None:
        cases |= {
            "native columns, copied": lambda: decode_by_columns(connection, end, context, extension=EXTENSION),
            "native columns, as views": lambda: decode_by_columns(
                connection, end, context, views=True, extension=EXTENSION
            ),
        }
    count = len(loop_to_tuples(slab, end))
    for extension in (None, EXTENSION):
        assert loop_to_arrow(slab, end, context).equals(
            decode_by_columns(connection, end, context, extension=extension)
        )
    received = bytes(slab.view[:end])
    times = time_in_turns(cases, rounds, calls=5, prepare=lambda: slab.view.__setitem__(slice(end), received))
    tuples, arrow = times["loop to tuples"], times["loop to Arrow"]
    for name, taken in times.items():
        report.add_row(
            f"{value_bytes} B, {name}",
            f"{taken.median / count * 1e9:.0f} ns/message median, {taken.best / count * 1e9:.0f} best; "
            f"{tuples.median / taken.median:.2f}x loop to tuples, {arrow.median / taken.median:.2f}x loop to Arrow",
        )


REPEATS = 20


def repeat_decode(decode: Callable[[Run], object], run: Run) -> None:
    for _ in range(REPEATS):
        decode(run)


def measure_short_runs(report: Report, rounds: int) -> None:
    slab, context = Slab(), StreamContext(1024)
    fill_slab(slab, 100, 1)
    offsets, _ = find_offsets(slab.view, 0, 100_000)
    for count in (1, 2, 5, 10, 20, 30, 40, 60, 100, 200):
        run = Run(slab.view, offsets[:count], offsets[count])
        cases: dict[str, Case] = {
            "loop": partial(repeat_decode, lambda run: run_decoder.make_batch(decode_messages(run, context)), run),
            "columns": partial(
                repeat_decode, lambda run: run_decoder.decode_columns(run, gather_heads(run), context), run
            ),
            "objects": partial(repeat_decode, lambda run: decode_messages(run, context), run),
        }
        times = time_in_turns(cases, rounds)
        report.add_row(
            f"run of {count}",
            ", ".join(f"{name} {taken.median / REPEATS * 1e6:.0f} us" for name, taken in times.items()),
        )


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--vbuckets", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--small", action="store_true", help="short runs instead of a slab")
    chosen = parser.parse_args()
    report = Report("Decode of mutations to Arrow", chosen)
    if chosen.small:
        measure_short_runs(report, chosen.rounds)
    else:
        for value_bytes in (100, 1024):
            compare_decoders(report, value_bytes, chosen.vbuckets, chosen.rounds)
    report.finish()


if __name__ == "__main__":
    main()
