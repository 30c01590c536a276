"""The extension module, if it was built. Without it the same work is done in Python and numpy, more slowly.

PENSTOCK_NATIVE=0 disables it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from types import ModuleType

__all__ = ["extension"]

extension: ModuleType | None = None
if os.environ.get("PENSTOCK_NATIVE") != "0":
    with contextlib.suppress(ImportError):
        extension = importlib.import_module("penstock.wire._native")
