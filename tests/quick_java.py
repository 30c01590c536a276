"""Options of each Java that tests start: it lives for seconds, so that how soon it starts counts most.

No setting for real work: Java optimizes less, and takes Spark's classes from the archive that `make test` writes.
"""

import os
import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark.jsa"

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Without -Xlog:disable, Java prints a warning on standard output if the archive does not fit.
QUICK_SPARK = f"{QUICK_JAVA} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else QUICK_JAVA


def quicken_java() -> None:
    """Give the options to each Java that Spark's scripts start for this process and for those it starts."""
    os.environ |= {"SPARK_LAUNCHER_OPTS": QUICK_JAVA, "SPARK_SUBMIT_OPTS": QUICK_SPARK}
