"""The words of full-text indexes: how a text is divided, and the query language.

FTS5's tokenizer takes letters and numbers between other characters as one word. Scripts without blanks between words,
such as Chinese, Japanese and Thai, would have a word for each sentence. So their characters stand apart in texts and
queries. Each is a word, and a word of a query is a phrase of its characters.

FTS5 refuses most words with other characters, such as e-mail or C++. So each word becomes a phrase, in quotes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u3005-\u3007\u3040-\u312f\u31f0-\u31ff\uff66-\uff9f"  # Japanese syllables, Bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese characters
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7ff"  # Korean, which has blanks, but writes particles without one
)
_APART = "\x1f"
"""Stands between characters. FTS5 takes it for punctuation; a text that has it itself gets a blank in its place."""
_ANY = re.compile(f"[{_UNSPACED}]")
_BETWEEN = re.compile(f"(?<=[{_UNSPACED}])(?=[^\\W_])|(?<=[^\\W_])(?=[{_UNSPACED}])")

_PART = re.compile(
    r"""\s+
    | (?P<phrase> "(?:[^"]|"")*" ) \s* (?P<phrase_prefix> \*? )
    | NEAR \s* \( (?P<near> (?: "(?:[^"]|"")*" | [^()"] )*? ) (?: , \s* (?P<distance> \d+ ) \s* )? \)
    | (?P<operator> AND | OR | NOT ) (?= [\s()"] | $ )
    | (?P<open> \( )
    | (?P<close> \) )
    | (?P<word> [^\s"()]+ (?: \( [^\s"()]* \) [^\s"()]* )* )
    """,
    re.VERBOSE,
)

_OPERATORS = ("AND", "OR", "NOT")


class InvalidQuery(ValueError):
    """A query that is none. The message is the reason."""


def separate_characters(text: str) -> str:
    """Return a text in which characters of scripts without blanks stand apart."""
    text = text.replace(_APART, " ")
    return text if text.isascii() or _ANY.search(text) is None else _BETWEEN.sub(_APART, text)


def join_characters(text: str) -> str:
    """Return the text that `separate_characters` was given, but with blanks in the place of its separators."""
    return text.replace(_APART, "")


def make_fts5_query(query: str, *, is_separated: bool) -> str:
    """Return a query in FTS5's language, in which each word is a phrase.

    Args:
        query: words, "a phrase", AND, OR, NOT, NEAR(a b), prefix*.
        is_separated: whether characters of scripts without blanks stand apart in the index.

    Raises:
        InvalidQuery: FTS5 cannot have this text, a quote has no end, or the query has no word.
    """
    if "\0" in query:
        raise InvalidQuery("it has a zero character")
    try:
        query.encode()
    except UnicodeEncodeError:
        raise InvalidQuery("it is not Unicode") from None
    if not any(_is_word_character(each) for each in query):
        raise InvalidQuery("it has no word")
    translated = " ".join(_join_groups(_translate_parts(query)))
    return separate_characters(translated) if is_separated else translated


def _is_word_character(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] in "LN" or category == "Co"


def _translate_parts(query: str) -> Iterator[str]:
    """Yield the parts of a query in FTS5's language.

    Raises:
        InvalidQuery: a quote has no end.
    """
    at = 0
    while at < len(query):
        part = _PART.match(query, at)
        if part is None:  # only a quote can be left
            raise InvalidQuery("unterminated string")
        at = part.end()
        if part["phrase"]:
            yield part["phrase"] + part["phrase_prefix"]
        elif part["near"] is not None:
            distance = f", {part['distance']}" if part["distance"] else ""
            yield f"NEAR({' '.join(_translate_parts(part['near']))}{distance})"
        elif part["word"]:
            word = part["word"].rstrip("*")
            yield f'"{word}"{"*" if word != part["word"] else ""}'
        elif found := part["operator"] or part["open"] or part["close"]:
            yield found


def _join_groups(parts: Iterator[str]) -> Iterator[str]:
    """Yield the parts, with AND between a group and its neighbours: FTS5 has it only between words."""
    before = "("
    for part in parts:
        follows_operand = before != "(" and before not in _OPERATORS
        begins_operand = part != ")" and part not in _OPERATORS
        if follows_operand and begins_operand and (before == ")" or part == "("):
            yield "AND"
        yield part
        before = part
