"""Dashboards of buckets by statistics, for tests: in this process, with the bucket's loop on a thread."""

import asyncio
from contextlib import ExitStack, contextmanager

from penstock.client.blocking import LoopThread
from penstock.client.bucket import Bucket
from penstock.client.connect.address import parse_address
from penstock.client.dashboard.bucket_source import BucketSource
from penstock.client.dashboard.dashboard_site import DashboardSite
from penstock.client.signals.web_listener import WebListener
from penstock.client.signals.web_server import serve_sites
from tests.client.scripted_release import RELEASES, ReleaseServer


@contextmanager
def run_dashboard(url, credentials=None, login=None, idle_seconds=None):
    """Serve the dashboard of a bucket, and yield its address."""
    with ExitStack() as stack:
        loop = stack.enter_context(LoopThread("dashboard"))

        async def open_source():
            bucket = Bucket(parse_address(url, credentials))
            await bucket.connect()
            return bucket, BucketSource(bucket, asyncio.get_running_loop(), idle_seconds=idle_seconds)

        bucket, source = loop.run(open_source())
        stack.callback(lambda: loop.run(bucket.close()))
        stack.callback(lambda: loop.run(source.close()))
        listener = WebListener(0, login=login, purpose="the dashboard")
        site = stack.enter_context(DashboardSite(source, listener))
        yield site.make_url(stack.enter_context(serve_sites([site], listener)))


@contextmanager
def run_release(name):
    """Run the scripted server of a release."""
    with LoopThread("release") as loop:
        server = ReleaseServer(RELEASES[name])
        loop.run(server.__aenter__())
        try:
            yield server
        finally:
            loop.run(server.__aexit__(None, None, None))
