"""A local server that speaks the hub's protocol and mirrors other hosts, and fails as real ones do.

    with DataServer() as server:
        server.add_repository("lmms-lab/POPE", {"README.md": b"...", "Full/random-0.parquet": parquet(rows)})
        server.add_file("images.cocodataset.org/val2014/1.jpg", content)
        server.faults["images.cocodataset.org/val2014/1.jpg"] = [Fault(cut=100), Fault(status=503)]

A path's faults are used up one per GET. Every GET is recorded in `server.requests`.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 256  # bytes; larger files are in LFS, whose hash the hub tells


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request."""

    status: int = 200
    cut: int | None = None  # close the connection after so many bytes
    content: bytes | None = None  # send this instead


@dataclass
class Request:
    path: str
    range: str | None
    status: int


class DataServer:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}  # HOST/PATH -> content
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.faults: dict[str, list[Fault]] = {}
        self.requests: list[Request] = []
        self.tag_suffix = ""  # change it to make every file a new version
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                server.answer(self, body=False)

            def do_GET(self) -> None:
                server.answer(self, body=True)

            def log_message(self, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> DataServer:
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def add_repository(self, name: str, files: Mapping[str, bytes]) -> None:
        self.repositories[name] = dict(files)

    def add_file(self, address: str, content: bytes) -> None:
        """A file of another host, as HOST/PATH."""
        self.files[address] = content

    def count(self, part: str) -> int:
        """How many GET requests had this in their path."""
        return sum(part in request.path for request in self.requests)

    # -- answers

    def answer(self, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(urlsplit(handler.path).path).lstrip("/")
        if path.startswith("api/datasets/"):
            self._answer_api(handler, path.removeprefix("api/datasets/"))
        elif path.startswith("datasets/"):
            owner, name, _, _, file = path.removeprefix("datasets/").split("/", 4)
            content = self.repositories.get(f"{owner}/{name}", {}).get(file)
            self._send_file(handler, f"{owner}/{name}/{file}", content, body=body, on_hub=True)
        else:
            path = path.removeprefix("mirror/")
            self._send_file(handler, path, self.files.get(path), body=body)

    def _answer_api(self, handler: BaseHTTPRequestHandler, path: str) -> None:
        owner, name, *rest = path.split("/")
        files = self.repositories.get(f"{owner}/{name}")
        if files is None:
            self._send(handler, 404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
            return
        if rest[:1] == ["tree"]:
            entries = []
            for file, content in files.items():
                entry: dict[str, Any] = {"type": "file", "path": file, "size": len(content), "oid": _hash(content)[:40]}
                if len(content) > LARGE:
                    entry["lfs"] = {"oid": _hash(content), "size": len(content), "pointerSize": 130}
                entries.append(entry)
            value: Any = entries
        else:
            value = {"id": f"{owner}/{name}", "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}
        self._send(handler, 200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send_file(
        self, handler: BaseHTTPRequestHandler, path: str, content: bytes | None, *, body: bool, on_hub: bool = False
    ) -> None:
        wanted = handler.headers.get("Range")
        if content is None:
            self.requests.append(Request(path, wanted, 404))
            code = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT} if on_hub else {}
            self._send(handler, 404, b"", code, body=body)
            return
        faults = self.faults.get(path, []) if body else []
        fault = faults.pop(0) if faults else Fault()
        tag = f'"{_hash(content)}{self.tag_suffix}"'
        headers = {"ETag": tag, "Accept-Ranges": "bytes"}
        if on_hub:
            headers |= {"X-Repo-Commit": COMMIT, "X-Linked-Size": str(len(content)), "X-Linked-ETag": tag}
        data, status = content if fault.content is None else fault.content, fault.status
        unchanged = handler.headers.get("If-Range", tag) == tag
        if wanted and status == 200 and unchanged:
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            if start >= len(data):
                status = 416
            else:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                data, status = data[start:], 206
        if body:
            self.requests.append(Request(path, wanted, status))
        if status not in (200, 206):
            data = b""
        self._send(handler, status, data, headers, body=body, cut=fault.cut)

    def _send(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        data: bytes,
        headers: Mapping[str, str],
        *,
        body: bool = True,
        cut: int | None = None,
    ) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        if body:
            handler.wfile.write(data if cut is None else data[:cut])
        if cut is not None:
            handler.close_connection = True


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_image(color: int = 0, kind: str = "JPEG", size: int = 24) -> bytes:
    """An image, whose content depends on `color`."""
    content = io.BytesIO()
    Image.new("RGB", (size, size), (color % 256, color // 256, 99)).save(content, kind)
    return content.getvalue()


def make_parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A parquet file as `datasets` writes it: an image is a struct of its bytes and its path."""
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), content)
    return content.getvalue()


def as_image(content: bytes, path: str | None = None) -> dict[str, Any]:
    return {"bytes": content, "path": path}
