"""Any damage to one file: the bucket is unchanged, or is refused, or has lost a torn end that a crash left."""

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from penstock.errors import StoreDamaged, StoreRefused
from penstock.store.disk.bucket_files import Directory
from penstock.store.recovery import repair_run as repairing
from tests.store.damages import FileDamage, list_damages
from tests.store.failing import Place, capture_state, read_files
from tests.store.written import write_files

_ORDINARY = 150
_SOAK = 1000


def try_damage(place: Place, damage: FileDamage) -> str:
    """Damage a directory, open the bucket, and check the result.

    Returns:
        `refused`: the bucket was not opened. `the same`: it is unchanged. `torn`: it has lost its newest changes.
    """
    shutil.rmtree(place.path, ignore_errors=True)
    write_files(place.path, damage.saved.files)
    damage.apply(place.path)
    before = read_files(place.path)
    place.now += 10**10
    try:
        bucket = place(segment_bytes=1500)
    except (StoreDamaged, StoreRefused) as error:
        message = str(error)
        assert "\n" not in message
        assert read_files(place.path) == before
        check_damage_is_reported(place)
        return "refused"
    found, recovered = capture_state(bucket), bucket.recovery_summary
    place.directory.kill()
    if found == damage.saved.states[-1]:
        return "the same"
    assert damage.file == damage.saved.last_log
    assert not damage.saved.clean
    assert found in damage.saved.states
    assert "after a stop that was not clean" in recovered
    assert not damage.description.startswith("cut") or int(damage.description.split()[-1]) >= damage.saved.synced
    return "torn"


def check_damage_is_reported(place: Place) -> None:
    """Check that `penstock check` also reports losses, or refuses the directory."""
    files = Directory(place.path)
    try:
        record = repairing.lock_for_repair(files)
    except (StoreDamaged, StoreRefused):
        return
    try:
        report = repairing.check_bucket(files, record, clock=lambda: place.now, new_vbuuid=lambda: next(place.vbuuids))
        assert report.losses
    except (StoreDamaged, StoreRefused):
        return
    finally:
        files.unlock()


def try_damages(path: Path, count: int) -> Counter[str]:
    every = list(list_damages())
    chosen = random.Random(14).sample(every, min(count, len(every)))
    outcomes: Counter[str] = Counter()
    for damage in chosen:
        try:
            outcomes[try_damage(Place(path / "beer"), damage)] += 1
        except BaseException as error:
            error.add_note(f"{damage.saved.name}: {damage.file}: {damage.description}")
            raise
    return outcomes


@pytest.mark.long
def test_random_damages_never_lead_to_a_wrong_answer(memory_path: Path) -> None:
    outcomes = try_damages(memory_path, _ORDINARY)
    assert outcomes.total() == _ORDINARY
    assert outcomes["refused"] > _ORDINARY // 2


@pytest.mark.soak
def test_many_damages_never_lead_to_a_wrong_answer(memory_path: Path) -> None:
    assert try_damages(memory_path, _SOAK).total() == _SOAK
