"""Take the picture of the dashboard for the documentation, docs/dashboard.png. `make others` installs the browser.

.venv/bin/python tools/record_dashboard.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "dashboard.png"
SIZE = {"width": 1320, "height": 1180}
SECONDS = 25  # of rates in the picture
MOST_BYTES = 150_000


def main() -> int:
    sys.path.insert(0, str(ROOT))
    from tests.compat.browser import open_browser, open_page
    from tests.compat.dashboard_scene import dashboard_url, opened_scene

    with opened_scene() as node, open_browser() as browser, open_page(browser, dashboard_url(node)) as shown:
        shown.page.set_viewport_size(SIZE)
        shown.page.check("[name=mode][value=lag]")
        shown.page.focus('[data-vbucket="42"]')
        shown.page.wait_for_timeout(SECONDS * 1000)
        shown.page.screenshot(path=PICTURE)
    size = PICTURE.stat().st_size
    print(f"written to {PICTURE.relative_to(ROOT)}: {size:,} bytes")
    return 0 if size <= MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
