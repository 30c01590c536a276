"""A filter as a setting of a DCP connection: a node of this project then sends only the changes that match.

The setting `penstock_filter` is a JSON object with the texts `key`, `key_exclude` and `value`, one of them at least.
The consumer applies its filter in any case. So a producer may refuse the setting, and may send changes that do not
match.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Final, NamedTuple

import msgspec

from penstock.client.filters.change_filter import ChangeFilter
from penstock.client.filters.filter_syntax import RegexTest, list_tests, parse_filter
from penstock.errors import UsageError

FILTER_SETTING: Final = "penstock_filter"
"""The name of the setting."""

MAX_SETTING_BYTES: Final = 8192
"""Bytes of the setting's value."""

_MAX_KEY_REGEX: Final = 1000
_MAX_VALUE_REGEX: Final = 200  # of all regular expressions of a filter: values are longer than keys

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _FilterTexts(msgspec.Struct, forbid_unknown_fields=True):
    """The texts of a filter.

    Attributes:
        key: a regular expression.
        key_exclude: a regular expression of keys that are left out.
        value: an expression.
    """

    key: _Text | None = None
    key_exclude: _Text | None = None
    value: _Text | None = None

    def check_texts(self) -> None:
        """Check that there is a text. Raises DecodeError without one."""
        if self.key is None and self.key_exclude is None and self.value is None:
            raise msgspec.DecodeError("none of them is there")


def encode_filter(change_filter: ChangeFilter) -> bytes:
    """Return the value of the setting; empty for a filter that no producer can apply."""
    texts = {"key": change_filter.key, "key_exclude": change_filter.excluded_key, "value": change_filter.value}
    chosen = {name: text for name, text in texts.items() if text is not None}
    value = json.dumps(chosen).encode() if chosen else b""
    return value if len(value) <= MAX_SETTING_BYTES else b""


class FilterSetting(NamedTuple):
    """A filter that a producer applies.

    Attributes:
        change_filter: the filter.
        regex_size: the size of its regular expressions, see `measure_regex`.
        tests: the number of tests in its expression over documents.
    """

    change_filter: ChangeFilter
    regex_size: int
    tests: int


def parse_filter_setting(value: bytes) -> FilterSetting:
    """Return the filter in a setting's value. No text makes its time for a change long.

    Raises:
        UsageError: the value or an expression in it is invalid, or a regular expression is too large.
    """
    if len(value) > MAX_SETTING_BYTES:
        raise UsageError(f"filter of {len(value)} bytes, limit {MAX_SETTING_BYTES}")
    try:
        texts = msgspec.json.decode(value, type=_FilterTexts)
        texts.check_texts()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"filter {value[:80]!r}: {error}, expected an object with key, key_exclude or value") from None
    tests = [] if texts.value is None else [*list_tests(parse_filter(texts.value))]
    key_size = sum(measure_regex(pattern) for pattern in (texts.key, texts.key_exclude) if pattern is not None)
    value_size = sum(measure_regex(test.pattern) for test in tests if isinstance(test, RegexTest))
    for size, limit in ((key_size, _MAX_KEY_REGEX), (value_size, _MAX_VALUE_REGEX)):
        if size > limit:  # before RE2 sees it: large repetitions take long to compile, too
            raise UsageError(f"regular expressions of size {size} with repetitions, limit {limit}")
    change_filter = ChangeFilter(texts.key, texts.value, excluded_key=texts.key_exclude)
    return FilterSetting(change_filter, key_size + value_size, len(tests))


_REPEAT = re.compile(r"(?P<group>[)}*+?])?\{(?P<least>\d+)(?:,(?P<most>\d*))?\}")


def measure_regex(pattern: str) -> int:
    r"""Return a limit for the size of the program that RE2 makes of a regular expression.

    RE2 needs time in proportion to the text, and at worst to this size too. Every byte of the pattern counts as 1,
    times the repetitions around it. A repeated group counts as if it began with the pattern. The classes \p and \P are
    large.
    """
    size = at = 0
    for found in _REPEAT.finditer(pattern):
        size += _measure_text(pattern[at : found.end()])
        times = max(int(found["least"]), int(found["most"] or 0), 1)
        size = size * times if found["group"] else size + times
        at = found.end()
    return size + _measure_text(pattern[at:])


_UNICODE_CLASS = re.compile(r"\\[pP]")
_UNICODE_CLASS_SIZE = 1000


def _measure_text(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass")) + _UNICODE_CLASS_SIZE * len(_UNICODE_CLASS.findall(text))
