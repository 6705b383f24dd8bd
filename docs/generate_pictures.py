"""Take the pictures of the documents from a run: `python docs/generate_pictures.py .trainyard/runs/RUN`.

The run is that of `make run`; its last lines are what README.md shows as text. Needs Chromium or Chrome, and
playwright.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURES = Path(__file__).parent / "images"
SIZE = {"width": 1100, "height": 1130}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def take_report(run_folder: Path, picture: Path) -> None:
    """Write a picture of the first screen of a run's report."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser)
        page = chromium.new_page(viewport=SIZE, color_scheme="light")
        page.goto((run_folder / "report.html").resolve().as_uri())
        page.screenshot(path=picture)
        chromium.close()


if __name__ == "__main__":
    take_report(Path(sys.argv[1]), PICTURES / "report.png")
