from typing import TypeVar

from _typeshed import ReadableBuffer, WriteableBuffer

_Frame = TypeVar("_Frame", bound=tuple[object, ...])

def cut(
    frame: type[_Frame], buffer: ReadableBuffer, start: int, end: int, table: ReadableBuffer, /
) -> tuple[list[_Frame], int]: ...
def hop(
    buffer: ReadableBuffer,
    start: int,
    end: int,
    header_bytes: int,
    body_at: int,
    marks: ReadableBuffer,
    offsets: WriteableBuffer,
    alone: WriteableBuffer,
    /,
) -> tuple[int, int, int]: ...
def gather(
    buffer: ReadableBuffer,
    offsets: ReadableBuffer,
    end: int,
    table: ReadableBuffer,
    number_of: ReadableBuffer,
    forms: WriteableBuffer,
    parts: WriteableBuffer,
    wide: WriteableBuffer,
    narrow: WriteableBuffer,
    /,
) -> tuple[int, int]: ...
def copy(
    buffer: ReadableBuffer,
    starts: ReadableBuffer,
    ends: ReadableBuffer,
    bounds: WriteableBuffer,
    data: WriteableBuffer,
    /,
) -> int: ...
def join(parts: tuple[ReadableBuffer, ...], /) -> bytes: ...
def locate(
    text: bytes, table: ReadableBuffer, names: ReadableBuffer, /
) -> tuple[int, tuple[tuple[int, int, int, int, int, int, int, int], ...]]: ...
def find_item(text: bytes, at: int, item: ReadableBuffer, /) -> int: ...
def parse_documents(
    table: ReadableBuffer,
    names: ReadableBuffer,
    most_levels: int,
    columns: int,
    validity: ReadableBuffer,
    offsets: ReadableBuffer,
    data: ReadableBuffer,
    is_large: bool,
    start: int,
    count: int,
    /,
) -> tuple[object, list[tuple[int, int, bytes, int, tuple[int, ...]]]]: ...
