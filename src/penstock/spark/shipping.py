"""How the package comes to executors that do not have it: as an archive of its sources, sent along with a session.

`python -m penstock.spark.shipping penstock.zip` writes the archive for `spark-submit --py-files`. What the package
needs (pyarrow, numpy, deltalake and the others) is not in it: Python loads nothing compiled from an archive. That is
also why the extension module is left out, and frames are found by Python alone.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from penstock import errors
from penstock.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("penstock", "pyspark_penstock", "pyspark_penstock_changelog")
"""The second and third are how Spark finds the formats by itself."""

LEFT_OUT = {".c", ".pyc", ".so"}


def write_archive(path: str | Path) -> Path:
    """Write the package, as it is installed here, into a zip file at `path`; the same files make the same bytes.

    Raises UsageError where the package itself was loaded from an archive, or the file cannot be written.
    """
    root, path = Path(errors.__file__).parent.parent, Path(path)
    if not root.is_dir():
        raise UsageError(f"penstock was loaded from {root}, which is an archive already: send that one")
    try:
        with ZipFile(path, "w", ZIP_DEFLATED) as archive:
            for name in PACKAGES:
                for file in sorted((root / name).rglob("*")):
                    if file.is_file() and file.suffix not in LEFT_OUT:
                        archive.writestr(ZipInfo(str(file.relative_to(root))), file.read_bytes(), ZIP_DEFLATED)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return path


def ship(spark: SparkSession) -> None:
    """Send the package to every executor of a session, those that come later included, and register the formats.

    Sessions whose executors have the package installed need no more than `register`. Raises as `write_archive`.
    """
    from penstock.spark.session import add_formats

    with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
        # Spark copies the file at once, to where executors fetch it.
        spark.sparkContext.addPyFile(str(write_archive(Path(directory) / "penstock.zip")))
    add_formats(spark)  # after that: a format that was registered knows the files that there were then


if __name__ == "__main__":
    write_archive(*sys.argv[1:])
