"""The tables of mutation testing name existing modules, tests and functions."""

from pathlib import Path

import pytest

from mutation.__main__ import find_faults
from mutation.mutants import Outcome
from mutation.tables import Change, read_modules, read_reasons, read_survivors

ROOT = Path(__file__).parent.parent
MODULES = read_modules()


@pytest.mark.parametrize("watched", MODULES, ids=lambda watched: watched.module)
def test_a_module_and_its_tests_are_there(watched):
    assert (ROOT / watched.path).is_file()
    assert watched.tests
    assert [path for path in watched.tests if not (ROOT / path).is_file()] == []


def test_no_module_stands_twice():
    assert len({watched.module for watched in MODULES}) == len(MODULES)


def test_every_survivor_is_of_a_module_and_has_a_reason_that_is_explained():
    survivors, reasons = read_survivors(), read_reasons()
    assert survivors.keys() <= {watched.module for watched in MODULES}
    assert {reason for of_module in survivors.values() for reason in of_module.values()} == reasons.keys()
    assert all(reasons.values())


def test_survivors_without_a_reason_and_reasons_without_a_survivor_are_faults():
    module, known = next(iter(read_survivors().items()))
    changes = list(known)
    as_explained = Outcome(1000, 1000 - len(changes), changes)
    assert list(find_faults({module: as_explained})) == []
    new = Change("function", "a", "b")
    assert list(find_faults({module: as_explained._replace(survivors=[*changes, new])})) == [
        f"{module}, function: no test notices `b` in place of `a`"
    ]
    (fault,) = find_faults({module: as_explained._replace(survivors=changes[1:])})
    assert fault.endswith(f"survivors.toml has a mutant that is none: `{changes[0].after}`")


def test_too_few_killed_is_a_fault():
    module, known = next(iter(read_survivors().items()))
    assert list(find_faults({module: Outcome(100, 94, list(known))})) == [
        "the tests kill 94 of 100 mutants, less than 95%"
    ]
    assert list(find_faults({module: Outcome(100, 95, list(known))})) == []
