"""A Hugging Face hub of one's own on this machine: one data set, a gated one, and nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "a" * 40


class Hub:
    """files: path -> content of the data set me/corpus. seen: (method, path, Authorization) of each request."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.commit = COMMIT
        self.seen: list[tuple[str, str, str]] = []
        self.cut_off = 0
        """So many downloads end in the middle."""
        self.status = 0
        """If not 0: how every request is answered."""
        self.address = ""

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        if self.status:
            return self.status, {}, b"{}"
        if "gated" in path:
            return 401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "access is restricted"}, b"{}"
        if "/resolve/" in path and "me/corpus" in path:
            name = path.split("/resolve/")[1].split("/", 1)[1]
            return 200, {"ETag": f'"{name}"', "X-Repo-Commit": self.commit}, self.files[name]
        if path.startswith("/api/datasets/me/corpus/tree/"):
            folder = path.split("?")[0].split("/tree/")[1].split("/", 1)[1]
            entries = [self._entry(name) for name in self.files if name.rpartition("/")[0] == folder]
            return 200, {}, json.dumps(entries).encode()
        if path.startswith("/api/datasets/me/corpus"):
            siblings = [{"rfilename": name, "size": len(data), "blobId": name} for name, data in self.files.items()]
            return 200, {}, json.dumps({"id": "me/corpus", "sha": self.commit, "siblings": siblings}).encode()
        return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"

    def _entry(self, name: str) -> dict[str, Any]:
        return {"type": "file", "path": name, "size": len(self.files[name]), "oid": name}


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Hub]:
    """A hub that listens on a port of the kernel's choice, until the body ends."""
    hub = Hub(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.seen.append((self.command, self.path, self.headers.get("Authorization", "")))
            status, headers, body = hub.answer(self.path)
            start = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0]
            body = body[int(start) :] if "/resolve/" in self.path else body
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if "/resolve/" in self.path and hub.cut_off:
                hub.cut_off -= 1
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
                return
            self.wfile.write(body)

        do_HEAD = do_GET
        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
