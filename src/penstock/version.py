"""The version of the package, as `--version`, HELLO and the node's VERSION command report it."""

__version__ = "0.1.0"
