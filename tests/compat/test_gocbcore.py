"""The test suites of gocbcore, the core of Couchbase's Go SDK, unchanged."""

import os
import re
import subprocess
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest

from tests.compat.installed import GO_DIRECTORY, find_go_program
from tests.compat.serving import Serving
from tests.node.http.web_client import WebClient
from tests.patience import PATIENCE

RESULT = re.compile(r"^ *--- (PASS|FAIL|SKIP): Test\w+Suite/(\w+) ", re.MULTILINE)


class Suite(NamedTuple):
    """One of gocbcore's suites, with the expected results.

    Attributes:
        number: the value of GCBCTESTSUITE that selects the suite.
        test: the Go test that runs the suite.
        features: the features that the suite must not test, as GCBFEAT.
        at_least: the smallest number of tests that must pass.
        not_passed: test -> reason, for tests that fail or are skipped. If one of them passes, our test fails.
        races: test -> reason, for tests with a random result.
    """

    number: int
    test: str
    features: str
    at_least: int
    not_passed: dict[str, str]
    races: dict[str, str]


def list_tests(reason: str, names: str) -> dict[str, str]:
    """Return name -> reason; names are separated by spaces."""
    return dict.fromkeys(names.split(), reason)


KV = Suite(
    number=1,
    test="TestStandardSuite",
    features="-n1ql,-cbas",  # the suite would wait more than a minute for replies
    at_least=148,
    not_passed={
        **list_tests(
            "queries are not served",
            "TestN1QL TestN1QLCancel TestN1QLErrorReasonDocumentExists TestN1QLPrepared TestN1QLPreparedCancel"
            " TestN1QLPreparedTimeout TestN1QLTimeout TestTelemetryWithQueryOps"
            " TestTelemetryWithQueryOpsNoTelemetryClient TestGetHttpEps",
        ),
        **list_tests("analytics is not served", "TestAnalytics TestAnalyticsCancel TestAnalyticsTimeout"),
        **list_tests(
            "range scans are not served",
            "TestRangeScanConnectionInvalid TestRangeScanRangeCancellation TestRangeScanRangeCollectionRetry"
            " TestRangeScanRangeKeysOnly TestRangeScanRangeLargeValues TestRangeScanRangeSmallValues"
            " TestRangeScanSamplingKeysOnly",
        ),
        **list_tests(
            "a node has no replicas",
            "TestGetReplica TestDurableWriteGetReplica TestAddDurableWriteGetReplica TestReplaceDurableWriteGetReplica"
            " TestDeleteDurableWriteGetReplica TestLookupInReplicaReads TestObserveSeqNo",
        ),
        **list_tests("compute units are not served", "TestResourceUnits"),
        **list_tests(
            "compute units are not served",
            "TestTransactionsInsertGetReplaceRemoveCommitUnits TestTransactionsInsertRollbacktUnits",
        ),
        **list_tests("the suite skips it on a server with collections", "TestObserve"),
        **list_tests(
            "the suite skips it on one node",
            "TestAgentNSServerScheme TestLostCleanupProcessRollback TestReconfigureSecurity TestReconfigureSecurityMemd"
            " TestReconfigureSecurityChangeAuthMechanisms TestReconfigureSecurityChangeAuthProvider"
            " TestReconfigureSecurityTLSNoProvider",
        ),
        **list_tests(
            "the suite needs the default ports",
            "TestConnectMemdOnlyDefaultPort TestConnectMemdOnlyDefaultPortSSL"
            " TestConnectMemdOnlyDefaultPortFastFailInvalidBucket",
        ),
        **list_tests(
            "the suite needs a connection string with HTTP ports",
            "TestConnectHTTPOnlyDefaultPort TestConnectHTTPOnlyDefaultPortSSL TestConnectHTTPOnlyNonDefaultPort"
            " TestConnectHTTPOnlyDefaultPortFastFailInvalidBucket TestConnectHTTPOnlyNonDefaultPortNoBucket"
            " TestConnectHTTPOnlyNonDefaultPortFastFailInvalidBucket",
        ),
        **list_tests(
            "the suite needs its own mock server",
            "TestEnhancedErrorOp TestKvErrorMap7ff0 TestKvErrorMap7ff1 TestKvErrorMap7ff2",
        ),
    },
    races={
        **list_tests(
            "cancels a durable write and expects to be faster than its reply",
            "TestZombieLoggerComponentCancelledOps TestTelemetryOrphanedResponses",
        ),
        **list_tests("gives a request a nanosecond and expects no reply within it", "TestStatsTimeout"),
    },
)

DCP = Suite(
    number=2,
    test="TestDCPSuite",
    features="",
    at_least=8,
    not_passed={
        **list_tests("the suite skips it on every server", "TestChangeStreamsAgent"),
        **list_tests("the suite needs the default ports", "TestNSAgent"),
    },
    races={},
)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Return Go test -> log file of its suite. Both suites run concurrently, because the DCP suite mostly waits."""
    place = tmp_path_factory.mktemp("gocbcore")
    find_go_program("gocbcore.test")
    with ExitStack() as stack:
        on_disk = stack.enter_context(Serving.running("--vbuckets", 64, "--data-dir", place / "data"))
        web = WebClient(on_disk, port=on_disk.ready["http_port"])
        assert web.post("/pools/default/buckets", name="memd", bucketType="memcached", ramQuotaMB=100).status == 202
        in_memory = stack.enter_context(Serving.running("--vbuckets", 64))
        found = {}
        for suite, serving in ((KV, on_disk), (DCP, in_memory)):
            found[suite.test] = place / f"{suite.test}.log"
            stack.enter_context(run_suite(suite, serving, found[suite.test]))
    return found


@contextmanager
def run_suite(suite, serving, log):
    """Start a suite, and wait for its end when the context ends."""
    settings = {
        "GCBCTESTSUITE": suite.number,
        "GCBCONNSTR": serving.url,
        "GCBUSER": serving.user,
        "GCBPASS": serving.password,
        "GCBCVER": "7.6.0",
        "GCBFEAT": suite.features,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [find_go_program("gocbcore.test"), "-test.v", "-test.run", f"^{suite.test}$"],
            cwd=GO_DIRECTORY,
            env=os.environ | {name: str(value) for name, value in settings.items()},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    with process:
        try:
            yield
            process.wait(PATIENCE)
        finally:
            process.kill()


@pytest.mark.parametrize("suite", [KV, DCP], ids=["key-value", "DCP"])
def test_suite_passes_except_listed_tests(logs, suite):
    log = logs[suite.test]
    results = {test: result for result, test in RESULT.findall(log.read_text(errors="replace"))}
    not_passed = {test: result for test, result in results.items() if result != "PASS" and test not in suite.races}
    assert not_passed.keys() == suite.not_passed.keys(), f"see {log}"
    assert len(results) - len(not_passed) >= suite.at_least
