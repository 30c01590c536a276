"""Names that are legal where they come from, and special in a space that they enter: each place is tested with all."""

BUCKETS = ("b%41", "b%25", "%2e", "%2F", "a%", "%", ".x", "x..", "-x", "_x", "1", "B", "x.new", "x" * 100)
"""Names of buckets with characters that mean something in URLs and file systems."""

IMPOSSIBLE_BUCKETS = ("", ".", "..", "...", "a/b", "a b", "é", "a\n", "a\u202eb", "x" * 101, "a?b", "a#b", "~a", "a\0b")
"""Names that no bucket can have."""

FILES_OF_NODES = ("cluster.json", "cluster.json.new", "node.json", "node.json.new")
"""Names that a node's data directory needs for files of its own."""

TEXTS = (
    "plain",
    "with blank",
    " ends with blanks ",
    "new\nline",
    "carriage\rreturn",
    "tab\tstop",
    "nul\0",
    "\x1b[31mred\x1b[0m",
    "\x07bell",
    "\x7fdelete",
    "\x9b31mone byte CSI",
    "\u202eright to left",
    "\u2066isolate\u2069",
    "zero\u200bwidth",
    "\ufeffbyte order mark",
    "line\u2028separator",
    "no\u00a0break",
    "back\\slash",
    "looks\\x1blike an escape",
    "looks\\nlike an escape",
    "[red]markup[/]",
    "[/]",
    "<b>&amp;</b>",
    "quote'quote\"",
    "a:b%3Ac",
    "a/b/../c",
    "%41",
    "{scope}",
    "$(date)",
    "=1+1",
    "é",
    "e\u0301",
    "日本",
    "🍺",
)
"""Texts that users choose: keys of documents, names of users, consumers and groups, field names, texts of errors."""

BYTES = (*(text.encode() for text in TEXTS), b"\xff\xfe", b"a\x80b", b"\xc2\x80", b"\xed\xa0\x80", b"\\x80")
"""Keys of documents."""
