import sys
from collections.abc import Iterator

import pytest

from penstock.wire.codec import native
from penstock.wire.columns import frame_offsets


@pytest.fixture(scope="module", params=["native", "python"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Receive with the extension module, and without it."""
    if request.param == "native" and native.extension is None:
        pytest.skip("the extension module was not built, or PENSTOCK_NATIVE=0")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(native, "extension", None)
        yield request.param


@pytest.fixture(scope="module", params=["native", "arrays", "loop"])
def hops(request: pytest.FixtureRequest) -> Iterator[str]:
    """Find frames with the extension module, with arrays, and one by one, however few bytes there are."""
    if request.param == "native" and native.extension is None:
        pytest.skip("the extension module was not built, or PENSTOCK_NATIVE=0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_offsets, "FEW_BYTES", sys.maxsize if request.param == "loop" else -1)
        if request.param == "arrays":
            patch.setattr(native, "extension", None)
        yield request.param
