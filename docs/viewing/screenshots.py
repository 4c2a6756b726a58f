"""Takes the pictures of docs/viewing.md with the browser of the tests.

    llmgym train ToolUseGame-v0 --run-name demo
    python docs/viewing/screenshots.py runs/demo

Writes the overview, a group side by side, and the tokens of an episode, light and dark, into its own folder. Needs
the Debian package chromium and pillow.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from llmgym.viewer import write_view

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from browser import Browser

HERE = Path(__file__).parent
SIZE = (1200, 720)
COLOURS = 128


def main(run: str) -> None:
    """Write the pictures of a training run."""
    with tempfile.TemporaryDirectory() as folder:
        page = write_view(run, Path(folder) / "view.html").path
        for scheme in ("light", "dark"):
            with Browser(Path(folder) / scheme, SIZE, dark=scheme == "dark") as browser:
                take(browser, page, scheme)


def take(browser: Browser, page: Path, scheme: str) -> None:
    """Click through the page."""

    def shot(name: str) -> None:
        picture = Image.open(io.BytesIO(browser.screenshot()))
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(
            HERE / f"{name}-{scheme}.png", optimize=True
        )

    def shown(what: str) -> None:
        browser.wait(f"document.querySelector('#detail').dataset.shown === {what!r}")

    browser.open(page)
    browser.wait("document.documentElement.dataset.ready")
    shot("overview")
    browser.click("#tab-browse")
    browser.click("#filter-tokens")
    browser.click(".modes button", "groups")
    browser.click(".row")
    shown("group")
    shot("group")
    browser.click(".modes button", "episodes")
    browser.click(".row")
    shown("episode")
    browser.click("#detail button", "tokens")
    shown("tokens")
    browser.click(".shades button", "advantage")
    shot("tokens")


if __name__ == "__main__":
    main(sys.argv[1])
