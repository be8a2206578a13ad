"""A real Chromium, driven by its DevTools protocol over a pipe: no port, no further package."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds for any answer; a busy machine is slow
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Browser:
    """Chromium with its messages; use `chromium()`."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._number = 0
        self._buffer = b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """The answer to a command; events that come in between are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._back], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"Chromium has not answered for {PATIENCE:g} s"
            data = os.read(self._back, 1 << 20)
            assert data, "Chromium has ended"
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(message))

    def open(self, path: Path | str, **options: Any) -> Tab:
        """A file or an address in a new tab, once it has drawn what is on the screen; see `Tab`."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Tab(self, target, session, path, **options)


class Tab:
    """A page in the browser."""

    def __init__(
        self,
        browser: Browser,
        target: str,
        session: str,
        path: Path | str,
        *,
        dark: bool = False,
        width: int = 1280,
        height: int = 900,
        fragment: str = "",
    ) -> None:
        self._browser, self._target, self._session = browser, target, session
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        address = path if isinstance(path, str) else path.as_uri()
        self.call("Page.navigate", url=address + fragment)
        self.until("document.readyState === 'complete'")
        self.until(
            "document.documentElement.dataset.ready !== undefined"
            " || !document.getElementById('trouble')?.hidden"
        )

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        result = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression holds."""
        end = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < end, f"not within {PATIENCE:g} s: {condition}"
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait until what is on the screen has been drawn."""
        self.run(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame("
            "() => setTimeout(done, 50))))"
        )

    def mouse(self, kind: str, x: float, y: float, buttons: int = 0) -> None:
        """`mouseMoved`, `mousePressed` or `mouseReleased` at a place of the screen."""
        button = "left" if buttons or kind != "mouseMoved" else "none"
        self.call(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x,
            y=y,
            button=button,
            buttons=buttons,
            clickCount=0 if kind == "mouseMoved" else 1,
        )

    def pdf(self, path: Path) -> None:
        """What the printer gets."""
        data = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """Errors, warnings and refused requests of this page so far."""
        found = []
        for event in self._events():
            method, params = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(str(params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Addresses that the page asked for; `data:` and `blob:` are its own."""
        urls = [
            event["params"]["request"]["url"]
            for event in self._events()
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    def _events(self) -> list[dict[str, Any]]:
        return [one for one in self._browser.events if one.get("sessionId") == self._session]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a Chromium, and end it with all its processes."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        theirs_in, to = os.pipe()
        back, theirs_out = os.pipe()
        # Chromium reads commands from file 3 and answers on file 4.
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        command = ["chromium", *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            browser = Browser(to, back)
            yield browser
            browser.call("Browser.close")
            process.wait(PATIENCE)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(to)
            os.close(back)
