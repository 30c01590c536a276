"""`penstock dashboard`: the page of a bucket in a browser, beside any server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Url, Username, app, format_examples, resolve_address
from penstock.cli.base.interrupt import run_until_signal
from penstock.cli.base.show import format_json_line, print_text
from penstock.client.connect.address import DEFAULT_URL, Address
from penstock.client.signals.web_listener import read_listener

if TYPE_CHECKING:
    from penstock.client.signals.web_listener import WebListener


@app.command(
    rich_help_panel=Panel.NODE,
    epilog=format_examples(
        "penstock dashboard --url couchbase://10.0.0.1/beer",
        "penstock dashboard --listen 8099 --json | jq -r .dashboard",
        "penstock dashboard --listen 10.0.0.9:8099 --listen-login viewer.json",
    ),
)
def dashboard(
    *,
    listen: Annotated[
        str,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Port of 127.0.0.1, or of HOST, which needs --listen-login if other machines reach it; 0: any free "
            "port.",
        ),
    ] = "0",
    listen_login: Annotated[
        str | None,
        typer.Option(metavar="FILE", help='File with the login of the page, {"username": ..., "password": ...}.'),
    ] = None,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Serve a page about a bucket of any server, made of its standard statistics.

    The page is that of a Penstock node, without actions. It shows values that the
    server does not report as unknown. Without --listen-login
    the printed address ends with a random token. Each user of this machine with
    the token sees the data: keep it secret. Ctrl-C ends the page.
    """
    listener = read_listener(listen, listen_login, flag="--listen", purpose="the dashboard")
    assert listener is not None
    address = resolve_address(url, username, password)
    asyncio.run(run_until_signal(lambda stop: _serve_page(address, listener, stop, as_json=as_json)))


async def _serve_page(address: Address, listener: WebListener, stop: asyncio.Event, *, as_json: bool) -> None:
    """Serve the page until `stop` is set. The bucket must answer first, so that a wrong address is reported at once."""
    from penstock.client.bucket import Bucket
    from penstock.client.dashboard.bucket_source import BucketSource
    from penstock.client.dashboard.dashboard_site import DashboardSite
    from penstock.client.signals.web_server import serve_sites

    async with Bucket(address):
        pass  # it has answered
    # A page shall say at once that no node answers, so requests are not repeated: the next sample repeats them.
    quick = address.with_retries(0.0)
    async with Bucket(quick) as bucket:
        source = BucketSource(bucket, asyncio.get_running_loop())
        try:
            with DashboardSite(source, listener) as site, serve_sites([site], listener) as port:
                page = site.make_url(port)
                where = {"bucket": address.bucket, "dashboard": page, "port": port}
                print_text(format_json_line(where) if as_json else f"Dashboard of {address}: {page}")
                await stop.wait()
        finally:
            await source.close()
