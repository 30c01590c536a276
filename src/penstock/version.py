"""The version of the package, as `--version`, HELLO and the node's VERSION command report it."""

from importlib.util import find_spec

__version__ = "0.1.0"


def describe_version() -> str:
    """Return the version in words: a package that was built without a C compiler has no native module."""
    has_module = find_spec("penstock.wire._native") is not None
    return f"penstock {__version__}" if has_module else f"penstock {__version__}, without its native module"
