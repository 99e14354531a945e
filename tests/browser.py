"""Just enough of a browser for a test: open a page in headless Chromium and hear what it says over its own protocol."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import websocket

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-component-update",
         "--disable-background-networking", "--disable-sync", "--remote-debugging-port=0", "--remote-allow-origins=*"]
START_SECONDS = 60


def chromium() -> str | None:
    """Path of an installed Chromium or Chrome."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name))), None)


class Page:
    """One tab. `events` are all that the browser reported since it was opened."""

    def __init__(self, socket: websocket.WebSocket) -> None:
        self.socket, self.number, self.events = socket, 0, []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while (message := json.loads(self.socket.recv())).get("id") != self.number:
            self.events.append(message)
        return message.get("result", {})

    def open(self, path: Path, width: int, height: int = 900) -> None:
        """Show a file at a width, and wait until it is loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Page.navigate", url=path.as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def until(self, condition: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self.evaluate(condition) is not True:
            assert time.monotonic() < deadline, condition
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def requests(self) -> list[str]:
        """Addresses that the pages asked for."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and exceptions."""
        found = []
        for event in self.events:
            method, parameters = event.get("method"), event.get("params", {})
            said = method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning")
            if said or method == "Runtime.exceptionThrown":
                found.append(json.dumps(parameters))
            if method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"]["text"])
        return found


@contextmanager
def browser() -> Iterator[Page]:
    """A tab of a browser of its own, which is closed at the end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        process = subprocess.Popen([chromium(), *FLAGS, f"--user-data-dir={home}", "about:blank"],
                                   stderr=subprocess.DEVNULL)
        try:
            port = _port(Path(home) / "DevToolsActivePort")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=START_SECONDS) as answer:
                tab = next(target for target in json.load(answer) if target["type"] == "page")
            socket = websocket.create_connection(tab["webSocketDebuggerUrl"], timeout=START_SECONDS)
            yield Page(socket)
            socket.close()
        finally:
            process.terminate()
            process.wait(timeout=START_SECONDS)


def _port(file: Path) -> int:
    """The browser writes the port that it chose into a file of its folder."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            if found := re.match(r"(\d+)\n", file.read_text()):
                return int(found[1])
        time.sleep(0.05)
    raise TimeoutError(f"the browser did not start within {START_SECONDS} s")
