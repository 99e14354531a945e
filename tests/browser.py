"""Just enough of a browser for a test: open a page in headless Chromium and hear what it says over its own protocol."""

import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import websocket

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-component-update", "--disable-background-networking", "--disable-sync", "--remote-debugging-port=0",
         "--remote-allow-origins=*"]
SECONDS = 60


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

    def open(self, path: Path, width: int) -> None:
        """Show a file at a width, and wait until it is loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Page.navigate", url=path.as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def until(self, condition: str) -> None:
        waited(lambda: self.evaluate(condition) is True, condition)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def heard(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]

    def requests(self) -> list[str]:
        """Addresses that the pages asked for."""
        return [own["request"]["url"] for own in self.heard("Network.requestWillBeSent")]

    def complaints(self) -> list[dict[str, Any]]:
        """Errors and warnings of the console, and exceptions."""
        levels = ("error", "warning")
        return [*self.heard("Runtime.exceptionThrown"),
                *(own for own in self.heard("Runtime.consoleAPICalled") if own["type"] in levels),
                *(own for own in self.heard("Log.entryAdded") if own["entry"]["level"] in levels)]


def waited(there: Any, what: str) -> None:
    """Wait until `there()` is true."""
    deadline = time.monotonic() + SECONDS
    while not there():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@contextmanager
def browser() -> Iterator[Page]:
    """A tab of a browser of its own, which is closed at the end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        process = subprocess.Popen([chromium(), *FLAGS, f"--user-data-dir={home}", "about:blank"],
                                   stderr=subprocess.DEVNULL)
        try:
            chosen = Path(home) / "DevToolsActivePort"                 # the browser writes its port into the first line
            waited(lambda: chosen.exists() and "\n" in chosen.read_text(), "the browser did not start")
            address = f"http://127.0.0.1:{chosen.read_text().splitlines()[0]}/json"
            with urllib.request.urlopen(address, timeout=SECONDS) as answer:
                tab = next(target for target in json.load(answer) if target["type"] == "page")
            socket = websocket.create_connection(tab["webSocketDebuggerUrl"], timeout=SECONDS)
            yield Page(socket)
            socket.close()
        finally:
            process.terminate()
            process.wait(timeout=SECONDS)
