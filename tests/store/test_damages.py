"""Whatever happens to one file: the bucket is what it was, or is refused, or has lost a torn end that a crash left."""

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from penstock.errors import StoreDamaged, StoreRefused
from penstock.store.disk.bucket_files import Directory
from penstock.store.recovery import repair_run as repairing
from tests.store.damages import Damage, damages
from tests.store.failing import Place, contents, shown
from tests.store.written import put

_ORDINARY = 150
_SOAK = 1000


def outcome(place: Place, damage: Damage) -> str:
    """Damage a directory, look what becomes of it, and return that in a word."""
    shutil.rmtree(place.path, ignore_errors=True)
    put(place.path, damage.made.files)
    damage.do(place.path)
    before = contents(place.path)
    place.now += 10**10
    try:
        bucket = place(segment_bytes=1500)
    except (StoreDamaged, StoreRefused) as error:
        said = str(error)
        assert "\n" not in said
        assert contents(place.path) == before
        checked(place)
        return "refused"
    found, recovered = shown(bucket), bucket.recovery_summary
    place.directory.let_go()
    if found == damage.made.states[-1]:
        return "the same"
    assert damage.file == damage.made.last
    assert not damage.made.clean
    assert found in damage.made.states
    assert "after a stop that was not clean" in recovered
    assert not damage.what.startswith("cut") or int(damage.what.split()[-1]) >= damage.made.synced
    return "torn"


def checked(place: Place) -> None:
    """Check that `penstock check` says that the directory is damaged, too, and that a repair makes it whole."""
    files = Directory(place.path)
    try:
        said = repairing.lock_for_repair(files)
    except (StoreDamaged, StoreRefused):
        return
    try:
        report = repairing.check_bucket(files, said, clock=lambda: place.now, new_vbuuid=lambda: next(place.vbuuids))
        assert report.losses
    except (StoreDamaged, StoreRefused):
        return
    finally:
        files.unlock()


def try_damages(path: Path, count: int) -> Counter[str]:
    every = list(damages())
    chosen = random.Random(14).sample(every, min(count, len(every)))
    outcomes: Counter[str] = Counter()
    for damage in chosen:
        try:
            outcomes[outcome(Place(path / "beer"), damage)] += 1
        except BaseException as error:
            error.add_note(f"{damage.made.name}: {damage.file}: {damage.what}")
            raise
    return outcomes


@pytest.mark.long
def test_damages(memory: Path) -> None:
    outcomes = try_damages(memory, _ORDINARY)
    assert outcomes.total() == _ORDINARY
    assert outcomes["refused"] > _ORDINARY // 2


@pytest.mark.soak
def test_damages_often(memory: Path) -> None:
    assert try_damages(memory, _SOAK).total() == _SOAK
