"""The hub's answers to what `datasets` asks of it, from a folder of data sets, over a connection that may break off."""

from __future__ import annotations

import http.server
import json
import re
import threading
import urllib.parse
from pathlib import Path

COMMIT = "c0ffee" * 6 + "c0ff"
API = re.compile(r"/api/datasets/(?P<set>[^/]+/[^/]+)"
                 r"(?:/(?P<verb>revision|tree|paths-info)/(?P<revision>[^/]+)(?:/(?P<path>.*))?)?$")
FILE = re.compile(r"/datasets/(?P<set>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)$")


def card(name: str, files: str) -> str:
    return f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {files}\n"


CONFIGS = {"HuggingFaceFW/fineweb-edu": card("default", "data/*/*") + card("sample-10BT", "sample/10BT/*"),
           **{name: "".join(card(config, f"{config}/train-*") for config in configs) for name, configs in {
               "Salesforce/wikitext": ("wikitext-2-raw-v1", "wikitext-103-raw-v1"),
               "nyu-mll/blimp": ("adjunct_island", "wh_island")}.items()}}     # with the files of their training splits


class Hub(http.server.ThreadingHTTPServer):
    """Serves `root`; data sets get their cards. Every `breaks`-th body of more than 4 kB ends half way."""
    daemon_threads = True

    def __init__(self, root: Path, breaks: int) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.root, self.breaks, self.bodies, self.broken = root, breaks, 0, 0
        self.address = f"http://127.0.0.1:{self.server_port}"
        for name, configs in CONFIGS.items():
            (root / name / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: object, address: object) -> None:
        """A client that went away is no news."""


def entry(root: Path, path: Path) -> dict[str, object]:
    kind = {"type": "directory", "size": 0} if path.is_dir() else {"type": "file", "size": path.stat().st_size}
    return {"path": path.relative_to(root).as_posix(), "oid": "0" * 40, **kind}


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *arguments: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        if found := FILE.match(path):
            return self.file(self.server.root / found["set"] / found["path"])
        found = API.match(path)
        root = self.server.root / found["set"] if found else None
        if root is None or not root.is_dir():
            return self.send(404, b"", {"X-Error-Code": "RepoNotFound"})
        if found["verb"] == "paths-info":
            form = urllib.parse.parse_qs(body.decode()) if b"=" in body else json.loads(body)
            answer = [entry(root, root / name) for name in form.get("paths", []) if name and (root / name).exists()]
        elif found["verb"] == "tree":
            inside = root / (found["path"] or "")
            if not inside.is_dir():
                return self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
            deep = "true" in urllib.parse.parse_qs(url.query).get("recursive", [""])[0].lower()
            answer = [entry(root, one) for one in sorted(inside.rglob("*") if deep else inside.iterdir())]
        else:
            files = [one.relative_to(root).as_posix() for one in sorted(root.rglob("*")) if one.is_file()]
            answer = {"id": found["set"], "sha": COMMIT, "siblings": [{"rfilename": name} for name in files],
                      "tags": [], "private": False, "gated": False, "disabled": False, "downloads": 0, "likes": 0}
        self.send(200, json.dumps(answer).encode())

    do_HEAD = do_POST = do_GET

    def file(self, path: Path) -> None:
        if not path.is_file():
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        content, more = path.read_bytes(), {"X-Repo-Commit": COMMIT, "ETag": f'"{path.stat().st_size:040d}"',
                                            "Accept-Ranges": "bytes"}
        if part := re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(part[1]), min(int(part[2] or len(content) - 1), len(content) - 1)
            more["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            return self.send(206, content[first:last + 1], more)
        self.send(200, content, more)

    def send(self, status: int, content: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(content)), **(more or {})}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.server.bodies += len(content) > 4096
            if len(content) > 4096 and self.server.bodies % self.server.breaks == 0:
                self.server.broken += 1
                content, self.close_connection = content[:len(content) // 2], True
            self.wfile.write(content)
