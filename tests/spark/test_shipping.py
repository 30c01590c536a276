"""The archive of the package for executors."""

import subprocess
import sys
from zipfile import ZipFile

import pytest

from penstock.errors import UsageError
from penstock.spark.shipping import write_archive


def test_the_same_package_makes_the_same_archive(tmp_path):
    first, second = (write_archive(tmp_path / name) for name in ("first.zip", "second.zip"))
    assert first.read_bytes() == second.read_bytes()
    names = ZipFile(first).namelist()
    assert {"penstock/__init__.py", "penstock/py.typed", "pyspark_penstock/__init__.py"} <= set(names)
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


@pytest.mark.process
def test_archive_is_enough_to_import_the_package(tmp_path):
    """The package is imported from the archive; a package in an archive cannot write another archive."""
    archive = write_archive(tmp_path / "penstock.zip")
    script = (
        f"import sys; sys.path[:0] = [{str(archive)!r}]\n"
        "import penstock.spark.source.partition_reader\n"
        "import pyspark_penstock, pyspark_penstock_changelog, pyspark_penstock_lake\n"
        "assert penstock.__file__.startswith(sys.path[0]), penstock.__file__\n"
        "assert pyspark_penstock.DefaultSource.name() == 'dcp'\n"
        "assert pyspark_penstock_changelog.DefaultSource.name() == 'penstock-changelog'\n"
        "assert pyspark_penstock_lake.DefaultSource.name() == 'penstock-lake'\n"
        "from penstock.spark.shipping import write_archive\n"
        "write_archive('other.zip')\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    sentence = f"penstock was loaded from the archive {archive}; send that archive to the executors"
    assert ran.stderr.splitlines()[-1] == f"penstock.errors.UsageError: {sentence}"


def test_an_archive_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"missing/penstock\.zip cannot be written: No such file or directory"):
        write_archive(tmp_path / "missing" / "penstock.zip")


@pytest.mark.process
def test_module_writes_the_archive_to_its_argument(tmp_path):
    subprocess.run([sys.executable, "-m", "penstock.spark.shipping", "penstock.zip"], cwd=tmp_path, check=True)
    assert (tmp_path / "penstock.zip").read_bytes() == write_archive(tmp_path / "same.zip").read_bytes()
