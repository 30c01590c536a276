from collections.abc import Iterator

import pytest

from penstock.wire import native


@pytest.fixture(scope="module", params=["native", "python"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Receive with the extension module, and without it."""
    if request.param == "native" and native.extension is None:
        pytest.skip("the extension module was not built, or PENSTOCK_NATIVE=0")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(native, "extension", None)
        yield request.param
