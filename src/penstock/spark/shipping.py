"""Shipping: sends the package as an archive of its sources to executors that do not have it.

`python -m penstock.spark.shipping penstock.zip` writes the archive for `spark-submit --py-files`. The archive does not
have the package's dependencies (pyarrow, numpy, deltalake and others), because Python cannot load compiled modules from
an archive. For the same reason it lacks the extension module; then pure Python finds the frames.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from penstock import errors
from penstock.argument_types import check_arguments
from penstock.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("penstock", "pyspark_penstock", "pyspark_penstock_changelog", "pyspark_penstock_lake")
"""The second and the third package are where Spark looks for the formats without being configured."""

LEFT_OUT = {".c", ".pyc", ".so"}
"""Suffixes of files that the archive does not have: Python loads neither from an archive."""


def write_archive(path: str | Path) -> Path:
    """Write the installed package into a zip file. Equal files give equal bytes.

    Args:
        path: the zip file.

    Returns:
        The path of the zip file.

    Raises:
        UsageError: the package itself was loaded from an archive, or the file cannot be written.
    """
    root, path = Path(errors.__file__).parent.parent, Path(path)
    if not root.is_dir():
        raise UsageError(f"penstock was loaded from the archive {root}; send that archive to the executors")
    try:
        with ZipFile(path, "w", ZIP_DEFLATED) as archive:
            for name in PACKAGES:
                for file in sorted((root / name).rglob("*")):
                    if file.is_file() and file.suffix not in LEFT_OUT:
                        archive.writestr(ZipInfo(str(file.relative_to(root))), file.read_bytes(), ZIP_DEFLATED)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return path


@check_arguments
def ship(spark: SparkSession) -> None:
    """Send the package to every executor that a session has or will have.

    Call this before registering a format: a format knows only the files that were sent before. Raises UsageError as
    `write_archive` does.
    """
    from pyspark import SparkFiles

    # Each executor fetches the archive when it starts. The session removes this directory at its end.
    directory = tempfile.mkdtemp(prefix="penstock-", dir=SparkFiles.getRootDirectory())
    spark.sparkContext.addPyFile(str(write_archive(Path(directory) / "penstock.zip")))


if __name__ == "__main__":
    write_archive(*sys.argv[1:])
