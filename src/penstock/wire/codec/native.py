"""The extension module, if it was built. Without it the same work is done in Python and numpy, more slowly.

PENSTOCK_NATIVE=0 disables it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from types import ModuleType

_NAME = "penstock.wire._native"


def load_extension() -> ModuleType | None:
    """Return the extension module, None if it was not built. Warn if it was built but cannot be loaded here."""
    found = importlib.util.find_spec(_NAME)
    if found is None or os.environ.get("PENSTOCK_NATIVE") == "0":
        return None
    try:
        return importlib.import_module(_NAME)
    except ImportError as error:
        warnings.warn(
            f"{found.origin} cannot be loaded, so Penstock is slower: {error}. Install Penstock again",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


extension = load_extension()
