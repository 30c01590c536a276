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
    """Send the package to every executor that a session has or will have; raises as `write_archive`.

    A format has to be registered after this: it knows the files that were there at that moment.
    """
    from pyspark import SparkFiles

    # Executors fetch it from where it is, whenever one starts; that directory goes away with the session.
    directory = tempfile.mkdtemp(prefix="penstock-", dir=SparkFiles.getRootDirectory())
    spark.sparkContext.addPyFile(str(write_archive(Path(directory) / "penstock.zip")))


if __name__ == "__main__":
    write_archive(*sys.argv[1:])
