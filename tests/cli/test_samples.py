"""Sample documents: beers and breweries."""

import itertools
import json

from penstock.cli.bucket.samples import make_samples


def test_the_same_seed_gives_the_same_documents():
    assert list(make_samples(300, 5)) == list(make_samples(300, 5))
    assert list(make_samples(300, 5)) != list(make_samples(300, 6))
    assert list(make_samples(20, 5)) == list(itertools.islice(make_samples(300, 5), 20))


def test_keys_are_unique_and_short_enough():
    keys = [key for key, _ in make_samples(5000, 1)]
    assert len(set(keys)) == 5000
    assert max(len(key.encode()) for key in keys) <= 250


def test_beers_belong_to_an_existing_brewery():
    documents = list(make_samples(100, 2))
    for number, (key, document) in enumerate(documents):
        assert key.startswith(document["type"])
        assert key.endswith(f"_{number}")
        if document["type"] == "beer":
            assert documents[document["brewery"]][1]["type"] == "brewery"


def test_file_of_samples_is_written(run, tmp_path):
    path = tmp_path / "beer.jsonl"
    assert run("workload", "--docs", path, "--count", 25, "--seed", 3) == (0, "", "")
    written = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(line["id"], line["doc"]) for line in written] == list(make_samples(25, 3))
    assert run("workload", "--docs", "-", "--count", 25, "--seed", 3).out == path.read_text(encoding="utf-8")
