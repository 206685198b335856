"""A stand-in for the Hugging Face hub with one model, as far as huggingface_hub asks it (0.36 and 2.4 were tried)."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REPOSITORY = "someone/drafter"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
# Files from this size on are "large": the hub publishes their SHA-256.
LARGE = 1000


class Hub:
    """What it has, and what it was asked.

    Attributes:
        files: content by name.
        token: what a client has to show; empty if the model is open.
        break_after: bytes of a large file after which the connection is lost, once.
        sizes: whether it tells sizes and digests of files, as some mirrors do not.
        lengths: whether the headers of a download tell its length.
        asked: method, path and range of each request.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files
        self.token = ""
        self.break_after = 0
        self.sizes = True
        self.lengths = True
        self.asked: list[str] = []
        self.address = ""

    def listing(self) -> dict[str, Any]:
        siblings: list[dict[str, Any]] = [
            {"rfilename": name, "size": len(content), "blobId": blob(content), **large(content)}
            for name, content in self.files.items()
        ]
        if not self.sizes:
            siblings = [{"rfilename": name} for name in self.files]
        return {"id": REPOSITORY, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}

    def tree(self) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": name, "size": len(content), "oid": blob(content), **large(content)}
            for name, content in self.files.items()
        ]


def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def large(content: bytes) -> dict[str, Any]:
    if len(content) < LARGE:
        return {}
    digest = hashlib.sha256(content).hexdigest()
    return {"lfs": {"oid": digest, "sha256": digest, "size": len(content), "pointerSize": 134}}


@contextmanager
def serving(hub: Hub, port: int = 0) -> Iterator[Hub]:
    """Serve it, on a free port unless one is given; ``hub.address`` says where."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            asked = f"{self.command} {self.path.partition('?')[0]} {self.headers.get('Range', '')}".strip()
            hub.asked.append(asked)
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.send_response(401)
                self.send_header("X-Error-Code", "GatedRepo")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            path = self.path.partition("?")[0]
            if path == f"/api/models/{REPOSITORY}/revision/{COMMIT}":
                self._send(json.dumps(hub.listing()).encode(), body=body)
            elif path == f"/api/models/{REPOSITORY}/tree/{COMMIT}":
                self._send(json.dumps(hub.tree()).encode(), body=body)
            elif (name := path.removeprefix(f"/{REPOSITORY}/resolve/{COMMIT}/")) in hub.files:
                self._send(hub.files[name], body=body, file=True)
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RevisionNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def _send(self, content: bytes, *, body: bool, file: bool = False) -> None:
            start = (
                int(found[1]) if (found := re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))) else 0
            )
            self.send_response(206 if start else 200)
            self.send_header("X-Repo-Commit", COMMIT)
            if file:
                details = large(content)
                self.send_header("ETag", f'"{details["lfs"]["sha256"] if details else blob(content)}"')
                self.send_header("Accept-Ranges", "bytes")
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            if body or not file or hub.lengths:
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            if body and file and hub.break_after and len(content) >= LARGE:
                self.wfile.write(content[start : hub.break_after])
                hub.break_after = 0
                self.close_connection = True
            elif body:
                self.wfile.write(content[start:])

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
