"""A headless Chromium that tests drive over its debugging pipe.

The pipe is file descriptors 3 and 4 of the browser: JSON messages of the Chrome DevTools Protocol, each ended by a zero
byte, so only the browser itself is needed, and no port is opened.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_PATIENCE_S = 60.0


class Browser:
    """One browser with one page. A context manager; its profile is a new folder.

    Attributes:
        events: What the page reported: requests, dialogs, exceptions, log entries.

    Args:
        profile: An empty folder.
        size: Width and height of the window, in CSS pixels.
        dark: Prefer the dark colour scheme.
    """

    def __init__(self, profile: Path, size: tuple[int, int] = (1400, 900), *, dark: bool = False) -> None:
        self.events: list[dict[str, Any]] = []
        self._size, self._dark = size, dark
        self._profile = profile
        self._last_id = 0
        self._session: str | None = None
        self._rest = b""

    def __enter__(self) -> Browser:
        assert CHROMIUM is not None
        read_by_browser, self._out = os.pipe()
        self._in, written_by_browser = os.pipe()

        def place_pipes() -> None:
            for number, end in ((3, fcntl.fcntl(read_by_browser, fcntl.F_DUPFD, 10)),
                                (4, fcntl.fcntl(written_by_browser, fcntl.F_DUPFD, 10))):  # fmt: skip
                os.dup2(end, number)

        self._process = subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={self._profile}", f"--window-size={self._size[0]},{self._size[1]}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=place_pipes,
            close_fds=False,
        )
        os.close(read_by_browser)
        os.close(written_by_browser)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        width, height = self._size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = "dark" if self._dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        return self

    def __exit__(self, *error: object) -> None:
        self._session = None
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            self.call("Browser.close")
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; events that come meanwhile are kept."""
        id = self._send(method, params)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == id:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            if answer.get("method") == "Page.javascriptDialogOpening":  # an open dialog stops the page
                self._send("Page.handleJavaScriptDialog", {"accept": False})
            if "method" in answer:
                self.events.append(answer)

    def _send(self, method: str, params: dict[str, Any]) -> int:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        return self._last_id

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise EOFError("the browser has ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, path: Path) -> None:
        """Forget what happened before, go to a file, and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("location.protocol === 'file:' && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, a promise awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true, and return its value: True for an element."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (value := self.evaluate(f"((found) => found instanceof Node || found)({expression})")):
            assert time.monotonic() < deadline, f"still not true: {expression}"
            time.sleep(0.05)
        return value

    def click(self, selector: str, text: str = "") -> None:
        """Click the first element that the selector finds and whose text holds ``text``."""
        found = json.dumps([selector, text])
        where = self.wait(
            f"(() => {{ const [selector, text] = {found};"
            "const element = [...document.querySelectorAll(selector)].find((one) => one.textContent.includes(text));"
            "if (!element) return null; element.scrollIntoView({block: 'nearest'});"
            "const box = element.getBoundingClientRect();"
            "return box.width ? [box.x + box.width / 2, box.y + box.height / 2] : null; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1)

    def type(self, selector: str, text: str) -> None:
        """Click a field and type into it."""
        self.click(selector)
        self.call("Input.insertText", text=text)

    def screenshot(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def reported(self, method: str) -> list[dict[str, Any]]:
        """Parameters of the events of this name since the page was opened."""
        self.evaluate("0")  # takes in what is still in the pipe
        return [event["params"] for event in self.events if event["method"] == method]
