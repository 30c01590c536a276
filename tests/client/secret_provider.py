"""A distribution with a provider of secrets, as an entry point."""

import sys
from pathlib import Path

import pytest


def install_provider(patch: pytest.MonkeyPatch, directory: Path, code: str) -> None:
    """Put the provider `vault` on the path of modules: its function `read_secret`, and the metadata of its package."""
    patch.delitem(sys.modules, "vault_secrets", raising=False)
    (directory / "vault_secrets.py").write_text(code)
    metadata = directory / "vault_secrets-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vault-secrets\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[penstock.secrets]\nvault = vault_secrets:read_secret\n")
    patch.syspath_prepend(directory)
