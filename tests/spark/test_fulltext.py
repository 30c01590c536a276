"""Full-text indexes: answers equal a scan of the documents after any changes."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import Error, UsageError
from penstock.spark import Lake
from penstock.spark.dependents.dependent import Dependent, catch_up
from penstock.spark.dependents.fulltext_words import (
    InvalidQuery,
    join_characters,
    make_fts5_query,
    separate_characters,
)
from penstock.spark.dependents.kinds import fulltext
from penstock.spark.dependents.kinds.fulltext import FullText
from penstock.spark.lake.changelog.changelog_delta import find_delta
from tests.examples import scaled
from tests.patience import PATIENCE
from tests.spark.lakes import ROOT, append, model, rollback, row
from tests.spark.test_current import histories

BEER_SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "beer-sample.jsonl"
WORDS = ["hop", "malt", "Ale", "stout", "élan", "IPA"]
SENTENCES = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)


def words_of(text):
    """Return the words of a text as the tokenizer does: in lower case, without accents."""
    return [word.lower().replace("é", "e") for word in re.findall(r"\w+", text)]


def has_word(word):
    return lambda strings: any(words_of(word)[0] in words_of(text) for text in strings)


def has_phrase(phrase):
    wanted = words_of(phrase)

    def has(strings):
        found = [words_of(text) for text in strings]
        return any(
            words[at : at + len(wanted)] == wanted for words in found for at in range(len(words) - len(wanted) + 1)
        )

    return has


QUERIES = [
    *((word, has_word(word)) for word in ("hop", "ALE", "elan", "absent")),
    ("hop AND malt", lambda strings: has_word("hop")(strings) and has_word("malt")(strings)),
    ("hop malt", lambda strings: has_word("hop")(strings) and has_word("malt")(strings)),
    ("stout OR ipa", lambda strings: has_word("stout")(strings) or has_word("ipa")(strings)),
    ("malt NOT ale", lambda strings: has_word("malt")(strings) and not has_word("ale")(strings)),
    ('"hop malt"', has_phrase("hop malt")),
    ('"ale stout hop"', has_phrase("ale stout hop")),
    ("st*", has_word("stout")),
]


def strings(value):
    if isinstance(value, str):
        return [value]
    inner = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    return [text for each in inner for text in strings(each)]


def scanned(rows, has, *, of_name=False):
    """Return the identities of the documents whose strings satisfy `has`."""
    found = set()
    for identity, (_, value) in model(rows).items():
        try:
            document = json.loads(value)
        except ValueError:
            continue
        if has(strings(document.get("name") if of_name else document)):
            found.add(identity)
    return found


@settings(max_examples=scaled(25))
@given(histories(), st.lists(SENTENCES, min_size=1, max_size=8), st.data())
def test_answers_equal_a_scan(rows, sentences, data):
    for place, change in enumerate(rows):
        if change["event"] == "mutation":
            texts = [sentences[(place + n) % len(sentences)] for n in range(3)]
            document = {"name": texts[0], "n": place, "more": [texts[1], {"hop": texts[2]}]}
            change["value"] = b"hop, but no JSON" if place % 13 == 12 else json.dumps(document).encode()
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=5)), 0, len(rows)})
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(fulltext, "CHUNK_ROWS", 3)
        lake = Lake(directory)
        whole, names = FullText(lake, "all"), FullText(lake, "names", ["name"])
        for batch, (start, end) in enumerate(pairwise(ends)):
            append(lake, batch, rows[start:end])
            for index in (whole, names):
                assert catch_up(index, lake) == batch
            for query, has in QUERIES:
                assert whole.matches(query) == scanned(rows[:end], has)
            for query, has in QUERIES[:5]:
                assert names.matches(query) == scanned(rows[:end], has, of_name=True)
            check(whole)


def check(index):
    """Assert that SQLite finds the index consistent with the texts that it stores."""
    connection = sqlite3.connect(index.path)
    connection.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
    assert connection.execute("SELECT count(*) FROM documents").fetchone() == (index.count_rows(),)
    connection.close()


def described(seqno, text, key=b"a", vbucket=1, **more):
    return row(vbucket, seqno, key, json.dumps({"description": text}).encode(), **more)


@pytest.fixture
def index(lake):
    return FullText(lake, "descriptions", ["description"])


def test_an_index_follows_through_a_rollback(lake, index):
    follower: Dependent = index
    append(lake, 0, [described(1, "pale ale"), described(2, "dry stout", b"b")])
    assert catch_up(follower, lake) == 0
    append(lake, 1, [described(3, "wheat beer"), row(1, 4, b"b", event="deletion")])
    assert catch_up(follower, lake) == 1
    assert (index.matches("stout OR ale"), index.matches("wheat")) == (set(), {(1, 0, b"a")})
    append(lake, 2, [rollback(1, 2, 1)])
    assert catch_up(follower, lake) == 2
    assert index.matches("stout OR ale OR wheat") == {(1, 0, b"a"), (1, 0, b"b")}
    assert index.position() == (lake.changelog_table.open().metadata().id, 2)
    assert index.count_rows() == 2


def test_the_best_come_first_with_the_words_shown(lake, index):
    append(lake, 0, [described(1, "hop hop hop", b"\xff"), described(2, f"a hop among {'other words ' * 20}", b"b")])
    catch_up(index, lake)
    found = index.search("hop").to_pylist()
    assert [(line["key"], line["key_bytes"]) for line in found] == [(None, b"\xff"), ("b", None)]
    assert found[0]["score"] > found[1]["score"] > 0
    assert found[0]["snippet"] == "[hop] [hop] [hop]"
    assert (found[0]["vbucket"], found[0]["collection_id"], found[0]["seqno"], found[0]["history"]) == (1, 0, 1, 0)
    assert index.search("hop", limit=1).num_rows == 1
    assert index.search("absent").schema.equals(index.search("hop").schema)


def test_no_phrase_spans_two_strings(lake):
    index = FullText(lake, "all")
    append(lake, 0, [row(1, 1, b"a", json.dumps(["pale", "ale", "dry stout"]).encode())])
    catch_up(index, lake)
    assert index.matches('"pale ale"') == set()
    assert index.matches('"dry stout"') == {(1, 0, b"a")}
    assert index.search("ale")["snippet"].to_pylist() == ["pale … [ale] … dry stout"]


STRANGE = [
    (b'"half a pair \\ud800 hop"', {"hop": True, "half": True}),
    (b'"zero \\u0000 hop"', {"hop": True, "zero": True}),
    (b'{"hop": 5}', {"hop": False}),
    (b"hop", {"hop": False}),
    (b"\xff", {"hop": False}),
    (b"", {"hop": False}),
    (b'{"a": [{"b": [["hop"]]}]}', {"hop": True, "b": False}),
]


@pytest.mark.parametrize(("value", "wanted"), STRANGE)
def test_unusual_documents_have_text(lake, value, wanted):
    index = FullText(lake, "all")
    append(lake, 0, [row(1, 1, b"a", value)])
    catch_up(index, lake)
    assert {word: bool(index.matches(word)) for word in wanted} == wanted
    append(lake, 1, [row(1, 2, b"a", b"{}")])
    catch_up(index, lake)
    assert index.count_rows() == 0
    check(index)


@pytest.mark.parametrize(
    "query", ["", '"open', "AND", "hop AND", "(", "hop)", "^", "\ud800", "a\0b", "*", "+ & -", "OR OR hop"]
)
def test_invalid_query_raises_one_sentence(lake, index, query):
    append(lake, 0, [described(1, "hop")])
    catch_up(index, lake)
    with pytest.raises(UsageError, match=r"^the query is .*; expected words,") as caught:
        index.search(query)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError):
        index.matches(query)


WORDS_AND_TEXTS = [
    ("e-mail", "Send e-mail.", "mail e"),
    ("C++", "C++ and C#", "b"),
    ("don't", "I don't.", "t don"),
    ("foo@bar.com", "to foo@bar.com!", "foo bar com"[::-1]),
    (".NET", "in .NET 8", "nets"),
    ("a:b", "a:b", "b a"),
    ("AC/DC", "(AC/DC)", "DC AC"),
    ("f(x)", "y = f(x)", "x f"),
    ("hop-*", "hop-pocket", "pocket"),
    ("e-ma*", "e-mail", "mail"),
    ("100%", "100% malt", "10 0"),
    ("hop & malt", "malt and hop", "hop"),
    ("-hop", "hop", "malt"),
    ("hop (dry OR wet)", "wet hop", "hop"),
    ("(dry OR wet) hop", "wet hop", "hop"),
    ("(a OR b) NOT (c OR d)", "a", "a d"),
    ("(f(x) OR g)", "g", "f"),
    ("NOT-A-WORD", "not a word", "not word"),
    ('"dry finish" AND e-mail', "e-mail: dry finish", "e-mail: finish dry"),
    ('"dry fin"*', "dry finish", "finish dry"),
    ('NEAR(e-mail "dry hop", 3)', "e-mail of a dry hop", "e-mail of many words about dry hop"),
    ("東京", "東京都", "京東"),
    ("京都", "東京都", "京の都"),
    ("都", "東京都", "東京"),
    ("東京*", "東京都", "東"),
    ("東京 OR 大阪", "大阪府", "東大"),
    ("東京\u3000大阪", "大阪と東京", "東京"),
    ('"東京 都"', "東京都", "都東京"),
    ("Python入門", "Python入門書", "入門Python"),
    ("入門", "Python入門書", "入 no 門"),
    ("カタ", "カタカナ", "タカ"),
    ("ภาษา", "เรียนภาษาไทย", "ไทย"),
    ("서울", "서울에서", "울서"),
    ("\U00020000", "\U00020000\U00020001", "\U00020001"),
]


@pytest.mark.parametrize(("query", "found", "other"), WORDS_AND_TEXTS)
def test_words_are_found_with_any_characters(lake, query, found, other):
    index = FullText(lake, "words")
    texts = enumerate((found, other), 1)
    append(lake, 0, [row(1, n, b"%d" % n, json.dumps({"t": text}).encode()) for n, text in texts])
    catch_up(index, lake)
    assert {key for _, _, key in index.matches(query)} == {b"1"}
    (row_found,) = index.search(query).to_pylist()
    assert "\x1f" not in row_found["snippet"]
    assert row_found["snippet"].replace("[", "").replace("]", "") == found
    check(index)


def test_index_of_an_older_release_is_read_as_it_was_written(lake):
    """Its texts have no separated characters, and neither have later ones."""
    index = FullText(lake, "words")
    append(lake, 0, [row(1, 1, b"a", '["東京都"]'.encode())])
    catch_up(index, lake)
    with sqlite3.connect(str(index.path)) as connection:
        connection.execute("DELETE FROM penstock WHERE name = 'separated'")
        connection.execute("UPDATE documents SET text = replace(text, char(31), '')")
        connection.execute("INSERT INTO search (search) VALUES ('rebuild')")
    connection.close()
    append(lake, 1, [row(1, 2, b"b", '["大阪府"]'.encode())])
    catch_up(index, lake)
    for word, keys in (("東京都", {b"a"}), ("大阪府", {b"b"}), ("東京", set()), ("大*", {b"b"})):
        assert {key for _, _, key in index.matches(word)} == keys
    check(index)


@given(st.text(st.characters(codec="utf-8"), max_size=20), st.text(st.characters(codec="utf-8"), max_size=20))
def test_any_query_is_answered_or_refused(query, text):
    """No text is SQLite's error. A word finds its own text."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE VIRTUAL TABLE s USING fts5 (t, tokenize = unicode61)")
        for each in (text, query):
            connection.execute("INSERT INTO s VALUES (?)", [separate_characters(each).replace("\0", " ")])
        with suppress(InvalidQuery):
            translated = make_fts5_query(query, is_separated=True)
            try:
                found = connection.execute("SELECT rowid FROM s WHERE s MATCH ?", [translated]).fetchall()
            except sqlite3.OperationalError as error:
                assert "syntax error" in str(error)  # noqa: PT017 - only unbalanced parentheses and operators
                assert re.search(r"[()]|AND|OR|NOT|NEAR", query)
            else:
                plain = not re.search(r'["()]|AND|OR|NOT|NEAR', query)
                assert not plain or (2,) in found or not any(each.isascii() and each.isalnum() for each in query)
    assert join_characters(separate_characters(text)) == text.replace("\x1f", " ")


def test_invalid_index_is_refused(lake, index, tmp_path):
    with pytest.raises(UsageError, match="there is no full-text index"):
        index.search("hop")
    append(lake, 0, [described(1, "hop")])
    catch_up(index, lake)
    with pytest.raises(UsageError, match="limit is -1"):
        index.search("hop", -1)
    with pytest.raises(UsageError, match="choose another name, or remove the file"):
        FullText(lake, "descriptions", ["name"]).search("hop")
    with pytest.raises(UsageError, match="the name is"):
        FullText(lake, "a.b")
    with pytest.raises(UsageError, match="names joined by dots"):
        FullText(lake, "a", ["a..b"])
    broken = FullText(lake, "broken")
    broken.path.write_text("no database " * 100)
    with pytest.raises(Error, match=r"broken.sqlite: file is not a database"):
        catch_up(broken, lake)


def test_readers_continue_during_a_transaction(lake, index):
    append(lake, 0, [described(1, "old")])
    catch_up(index, lake)
    writer = sqlite3.connect(index.path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM documents")
    try:
        assert index.matches("old") == {(1, 0, b"a")}
    finally:
        writer.close()


def test_searches_see_whole_versions_while_deltas_are_applied(lake, index):
    append(lake, 0, [described(n, "version 0", b"%d" % n) for n in range(1, 200)])
    catch_up(index, lake)
    seen, done = [], threading.Event()

    def search():
        while not done.is_set():
            seen.append(index.search("version", 1000)["snippet"].to_pylist())

    reader = threading.Thread(target=search)
    reader.start()
    for version in range(1, 8):
        append(lake, version, [described(200 * version + n, f"version {version}", b"%d" % n) for n in range(1, 200)])
        catch_up(index, lake)
    done.set()
    reader.join(PATIENCE)
    assert seen
    assert all(len(snippets) == 199 and len(set(snippets)) == 1 for snippets in seen)


def test_older_delta_does_not_undo_a_newer_one(lake, index):
    append(lake, 0, [described(1, "old")])
    old = find_delta(lake, None)
    assert old is not None
    append(lake, 1, [described(2, "new")])
    catch_up(index, lake)
    index.apply_delta(old)
    assert index.matches("new") == {(1, 0, b"a")}
    assert index.position() == (old.changelog_id, 1)


KILLED = """
import os, signal, sys
from penstock.spark.dependents.dependent import catch_up
from penstock.spark.dependents.kinds import fulltext
from penstock.spark import Lake

lake = Lake(sys.argv[1])
remember = fulltext._write_settings

def killed(connection, **values):
    remember(connection, **values)
    if values.get("version") == 1:
        os.kill(os.getpid(), signal.SIGKILL)

fulltext._write_settings = killed
catch_up(fulltext.FullText(lake, "descriptions", ["description"]), lake)
"""


@pytest.mark.process
def test_kill_before_the_commit_leaves_no_change(lake, index):
    append(lake, 0, [described(n, "old", b"%d" % n) for n in range(100)])
    catch_up(index, lake)
    append(lake, 1, [described(100 + n, "new", b"%d" % n) for n in range(100)])
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, lake.path], cwd=ROOT, env=os.environ, timeout=PATIENCE, check=False
    )
    assert ran.returncode == -signal.SIGKILL
    assert (len(index.matches("old")), len(index.matches("new"))) == (100, 0)
    assert catch_up(index, lake) == 1
    assert (len(index.matches("old")), len(index.matches("new"))) == (0, 100)
    check(index)


@pytest.mark.skipif(not BEER_SAMPLE.exists(), reason="the beer sample is not here")
def test_the_beer_sample(lake):
    lines = [json.loads(line) for line in BEER_SAMPLE.read_text().splitlines()]
    index = FullText(lake, "beers")
    append(lake, 0, [row(n % 64, n, d["id"].encode(), json.dumps(d["doc"]).encode()) for n, d in enumerate(lines, 1)])
    catch_up(index, lake)
    scan = sqlite3.connect(":memory:")
    scan.execute("CREATE VIRTUAL TABLE beers USING fts5 (id UNINDEXED, text)")
    texts = ((line["id"], "\n".join(strings(line["doc"]))) for line in lines)
    scan.executemany("INSERT INTO beers VALUES (?, ?)", texts)
    for query in ("citrus AND hop*", '"pale ale" NOT dry', "lager OR pilsner", "NEAR(deep golden)"):
        wanted = {found[0].encode() for found in scan.execute("SELECT id FROM beers WHERE text MATCH ?", [query])}
        assert {key for _, _, key in index.matches(query)} == wanted
        assert wanted
    scan.close()
