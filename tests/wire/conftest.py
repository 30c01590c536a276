from collections.abc import Iterator

import pytest

from tests.wire.ways import EVERY, HOPS, PATHS, has_way, use_hops, use_path


@pytest.fixture(scope="module", params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Receive with the extension module, and without it."""
    skip_missing(request.param)
    if request.param == EVERY:
        yield EVERY
        return
    with use_path(request.param):
        yield request.param


@pytest.fixture(scope="module", params=HOPS)
def hops(request: pytest.FixtureRequest) -> Iterator[str]:
    """Find frames with the extension module, with arrays, and one by one, however few bytes there are."""
    skip_missing(request.param)
    if request.param == EVERY:
        yield EVERY
        return
    with use_hops(request.param):
        yield request.param


def skip_missing(way: str) -> None:
    if not has_way(way):
        pytest.skip("the extension module was not built, or PENSTOCK_NATIVE=0")
