import pytest

from penstock.store.history.hybrid_clock import HybridClock, resolve_expiry
from tests.store.model import START


def test_cas_follows_the_clock_and_never_goes_back() -> None:
    base = 5 << 16
    times = iter([base, base + 7, base + (1 << 16) + 1, base, base + (2 << 16)])
    clock = HybridClock(lambda: next(times))
    assert clock.last == 0
    assert [clock.tick() for _ in range(5)] == [
        base,
        base + 1,
        base + (1 << 16),
        base + (1 << 16) + 1,
        base + (2 << 16),
    ]
    assert clock.last == base + (2 << 16)


def test_the_counter_may_run_into_the_wall_clock_bits() -> None:
    clock = HybridClock(lambda: 1 << 16)
    values = [clock.tick() for _ in range(70_000)]
    assert values == list(range(1 << 16, (1 << 16) + 70_000))


BASE = START & ~0xFFFF
MONTH = 30 * 24 * 60 * 60
NOW = START // 10**9
EXPIRIES = [
    (0, 0),
    (1, NOW + 1),
    (MONTH, NOW + MONTH),
    (MONTH + 1, MONTH + 1),
    (NOW + 5, NOW + 5),
    (2**32 - 1, 2**32 - 1),
]


@pytest.mark.parametrize(("expiry", "result"), EXPIRIES)
def test_expiry_is_resolved_to_epoch_seconds(expiry: int, result: int) -> None:
    assert resolve_expiry(expiry, START + 999) == result


SEEN = [
    (0, BASE + 1),
    (BASE, BASE + 1),
    (BASE + 500, BASE + 501),
    (2**64 - 2**48, 2**64 - 2**48 + 1),
    (2**64 - 1, BASE + 1),
]


@pytest.mark.parametrize(("cas", "result"), SEEN)
def test_next_cas_is_above_an_observed_one(cas: int, result: int) -> None:
    clock = HybridClock(lambda: BASE)
    clock.tick()
    clock.observe(cas)
    assert clock.tick() == result
