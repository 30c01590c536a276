"""A member whose disk refuses the newest document: it tries again, and logs that once."""

from contextlib import ExitStack

from tests.node.membership.clusters import BUCKETS, list_names, run_cluster
from tests.node.membership.member_process import wait_for


def test_refused_document_is_logged_once_and_applied_later(tmp_path, caplog):
    with ExitStack() as stack:
        first, second = stack.enter_context(run_cluster(stack, 2, tmp_path))
        obstacle = tmp_path / "1" / "wine"
        obstacle.write_bytes(b"a file, where the bucket needs a directory")
        # Each answer waits some seconds for the other member, which tries again meanwhile.
        for name in ("wine", "cider"):
            assert first.post(BUCKETS, name=name, ramQuota=100).status == 202
        assert list_names(second) == {"beer"}
        obstacle.unlink()
        wait_for(lambda: list_names(second) == {"beer", "wine", "cider"}, "the buckets on the other member")
        wait_for(lambda: any("is applied now" in text for text in caplog.messages), "the end of the problem")
        texts = [record.getMessage() for record in caplog.records if "revision" in record.getMessage()]
    (refused,) = (text for text in texts if "was not applied" in text)
    assert str(obstacle) in refused
