"""Check the language of code and pages: long sentences, words that are not plain English, private names.

The rules are data: tools/language.toml. It also lists the exceptions, each with its reason.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
RULES = ROOT / "tools" / "language.toml"
CHECKED = (
    "src",
    "tests",
    "benchmarks",
    "fuzz",
    "mutation",
    "tools",
    "examples",
    "docs",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
)
GENERATED = "<!-- Made by"
"""How a generated page begins: its words are checked where they are written."""

CODE_SPAN = re.compile(r"`+[^`]*`+|\$\{[^}]*\}|https?://\S+")
SECTION = re.compile(r"^(Args|Attributes|Example|Examples|Note|Raises|Returns|Yields):$")
ENTRY = re.compile(r"^(?:[-*] |\d+\. )?(?:\*{0,2}\w[\w.]*(?: \([^)]*\))?: )?")
SENTENCE_END = re.compile(r"(?<=[.?!])[)\"']?\s+(?=\S)")
NAME_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Passage(NamedTuple):
    """Text of one paragraph, list item, comment or string.

    Attributes:
        line: line of its file where it starts, from 1.
        text: the words, with line breaks replaced by spaces.
        is_prose: whether it holds whole sentences; a string of code may hold any part of one.
    """

    line: int
    text: str
    is_prose: bool = True


class Finding(NamedTuple):
    """One violation of a rule."""

    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.message}"


@dataclass
class Exceptions:
    """Places where a rule does not hold.

    Attributes:
        entries: each with `path` (a file or a folder), `text` (a part of the message) and `reason`.
        used: positions of the entries that applied to a finding.
    """

    entries: list[dict[str, str]]
    used: set[int] = field(default_factory=set)

    def cover(self, finding: Finding) -> bool:
        """Return whether an entry applies to the finding."""
        for position, entry in enumerate(self.entries):
            if entry["text"] in finding.message and finding.path.is_relative_to(ROOT / entry["path"]):
                self.used.add(position)
                return True
        return False

    def list_unused(self) -> list[str]:
        """Return the entries that applied to nothing, as sentences."""
        return [
            f"exception of {entry['path']} for {entry['text']!r} applies to nothing: remove it"
            for position, entry in enumerate(self.entries)
            if position not in self.used
        ]


class LanguageRules:
    """The rules of language.toml, compiled.

    Attributes:
        longest_sentence: words that a sentence may have.
        prose: a pattern and the advice for it, in the order of the file.
        names: a word of identifiers -> the word to use.
    """

    def __init__(self, declared: dict[str, Any]) -> None:
        self.longest_sentence: int = declared["longest_sentence"]
        self.names: dict[str, str] = declared["names"]
        self.prose = [
            (re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE), advice)
            for pattern, advice in declared["prose"].items()
        ]

    def check_passage(self, passage: Passage) -> Iterator[str]:
        """Yield a message for each rule that the passage violates."""
        text = CODE_SPAN.sub("CODE", passage.text)
        if passage.is_prose:
            for sentence in SENTENCE_END.split(text):
                words = [word for word in sentence.split() if re.search(r"\w", word)]
                if len(words) > self.longest_sentence:
                    start = " ".join(words[:6])
                    yield f"{len(words)} words in a sentence, expected at most {self.longest_sentence}: {start} ..."
        if text.rstrip().endswith("?"):
            return
        for pattern, advice in self.prose:
            for match in pattern.finditer(text):
                around = text[max(0, match.start() - 25) : match.end() + 15]
                yield f"{match[0].strip()!r} in {around!r}, expected: {advice}"

    def check_name(self, name: str) -> Iterator[str]:
        """Yield a message for each word of an identifier that has a better one."""
        for part in NAME_PART.findall(name):
            if advice := self.names.get(part.lower()):
                yield f"{part!r} in the name {name}, expected: {advice}"


def split_paragraphs(lines: Iterable[tuple[int, str]]) -> Iterator[Passage]:
    """Yield the paragraphs, list items and section entries of a text; leave out code, tables, and headings."""
    start, fenced = 0, False
    words: list[str] = []

    def end_passage() -> Iterator[Passage]:
        nonlocal words
        if words:
            yield Passage(start, " ".join(words))
        words = []

    for number, line in lines:
        stripped = line.strip()
        if stripped.startswith(("```", "~~~")):
            fenced = not fenced
            yield from end_passage()
            continue
        if fenced or stripped.startswith((">>>", "...", "#", "<", "[", "!!!", "===")) or SECTION.match(stripped):
            yield from end_passage()
            continue
        if stripped.startswith("|"):
            yield from end_passage()
            # A cell may be a list, whose items end at semicolons.
            yield from (Passage(number, item.strip()) for item in re.split(r"[|;]", stripped.strip("|")))
            continue
        marker = ENTRY.match(stripped)
        if not stripped or (marker and marker[0]):
            yield from end_passage()
        if not stripped:
            continue
        if not words:
            start = number
        words.append(stripped[marker.end() :] if marker else stripped)
    yield from end_passage()


def find_docstring_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.Constant]:
    """Yield string statements: docstrings, also those of attributes and constants."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def find_comments(source: str) -> Iterator[Passage]:
    """Yield comments; those on consecutive lines are one passage."""
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("# ").strip()
        if text.startswith(("type:", "noqa", "pragma", "!", "nosec", "fmt:")):
            continue
        if block and token.start[0] != block[-1][0] + 1:
            yield from split_paragraphs(block)
            block = []
        block.append((token.start[0], text))
    yield from split_paragraphs(block)


def find_strings(nodes: Sequence[ast.AST], docstrings: set[int]) -> Iterator[Passage]:
    """Yield strings of more than two words: errors, help texts and log lines."""
    inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "CODE" for part in node.values]
            text = "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docstrings or id(node) in inside:
                continue
            text = node.value
        else:
            continue
        if len(text.split()) > 2:
            yield Passage(node.lineno, text, is_prose=False)


def find_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the identifiers that nodes of a file declare, with their lines."""
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr


def check_sections(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield classes whose section `Attributes` names an attribute that the class does not have."""
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        section = re.search(r"^Attributes:\n((?:    .*\n?|\n)+)", ast.get_docstring(node) or "", re.MULTILINE)
        if section is None:
            continue
        declared = {name for _, name in find_names(ast.walk(node))}
        declared |= {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        for entry in re.findall(r"^    (\w+(?:, \w+)*)(?: \(.*?\))?:", section[1], re.MULTILINE):
            for name in entry.split(", "):
                if name not in declared and not node.bases:
                    yield node.lineno, f"{node.name} documents the attribute {name}, which it does not have"


def check_python(path: Path, rules: LanguageRules) -> Iterator[Finding]:
    """Yield the findings of a module."""
    source = path.read_text()
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = list(find_docstring_nodes(nodes))
    passages: list[Passage] = []
    for node in docstrings:
        passages += split_paragraphs(enumerate(str(node.value).splitlines(), node.lineno))
    passages += find_comments(source)
    if path.is_relative_to(ROOT / "src"):
        passages += find_strings(nodes, {id(node) for node in docstrings})
    for passage in passages:
        yield from (Finding(path, passage.line, message) for message in rules.check_passage(passage))
    yield from (Finding(path, line, message) for line, message in check_sections(nodes))
    names = {name: line for line, name in reversed(list(find_names(nodes)))} | {path.stem: 1}
    for name, line in names.items():
        yield from (Finding(path, line, message) for message in rules.check_name(name))


def check_page(path: Path, rules: LanguageRules) -> Iterator[Finding]:
    """Yield the findings of a Markdown page; a generated page has none."""
    text = path.read_text()
    if GENERATED in text[:1000]:
        return
    for passage in split_paragraphs(enumerate(text.splitlines(), 1)):
        yield from (Finding(path, passage.line, message) for message in rules.check_passage(passage))


def check_file(path: Path, rules: LanguageRules) -> list[Finding]:
    """Return the findings of a module or page."""
    check = check_python if path.suffix == ".py" else check_page
    return list(check(path, rules))


def list_files(paths: Iterable[str]) -> Iterator[Path]:
    """Yield the modules and pages at or below the paths."""
    for path in (ROOT / name for name in paths):
        found = sorted([*path.rglob("*.py"), *path.rglob("*.md")]) if path.is_dir() else [path]
        yield from (file for file in found if "__pycache__" not in file.parts)


def main() -> None:
    """Print the findings; the exit status is 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", help="files or folders below the project; default: all that is checked")
    arguments = parser.parse_args()
    declared = tomllib.loads(RULES.read_text())
    rules, exceptions = LanguageRules(declared), Exceptions(declared.get("exceptions", []))
    with ProcessPoolExecutor() as pool:
        found = pool.map(check_file, list_files(arguments.paths or CHECKED), repeat(rules), chunksize=32)
        findings = [finding for of_file in found for finding in of_file if not exceptions.cover(finding)]
    unused = [] if arguments.paths else exceptions.list_unused()
    for line in [*map(str, findings), *unused]:
        print(line)
    if findings or unused:
        sys.exit(f"{len(findings) + len(unused)} findings; tools/language.toml has the rules and the exceptions")


if __name__ == "__main__":
    main()
