"""A stand-in for the Hugging Face hub: the part of its HTTP interface that models use, in memory.

Repositories with commits and branches, files as git blobs or in large-file storage, downloads with ETag and
commit headers. `Hub` can break what it serves.
"""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin")

Files = dict[str, bytes]


class Refused(Exception):
    """A status other than 200, and the code by which the client knows why."""

    def __init__(self, status: int, code: str = ""):
        super().__init__(code)
        self.status, self.code = status, code


class Hub:
    """What is stored, what was asked for, and what goes wrong."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, Files]] = {}  # repository -> commit -> files
        self.refs: dict[str, dict[str, str]] = {}  # repository -> branch or tag -> commit
        self.requests: list[str] = []  # "GET /path"
        self.fault: Any = None  # called with a handler before each answer
        self.sizes: dict[str, int] = {}  # file -> the size that listings report

    def commit(self, repository: str, files: Files, branch: str = "main") -> str:
        """Make a commit of these files, whatever was there before; returns its hash."""
        name = hashlib.sha1(repr((repository, sorted(files.items()))).encode()).hexdigest()
        self.commits.setdefault(repository, {})[name] = dict(files)
        self.refs.setdefault(repository, {})[branch] = name
        return name

    def find(self, repository: str, revision: str = "main") -> tuple[str, Files]:
        """Hash and files of a revision."""
        if repository not in self.commits:
            raise Refused(401, "RepoNotFound")  # as for a private one
        name = self.refs[repository].get(revision, revision)
        if name not in self.commits[repository]:
            raise Refused(404, "RevisionNotFound")
        return name, self.commits[repository][name]

    def describe(self, path: str, content: bytes) -> dict[str, Any]:
        """A file as listings have it."""
        size = self.sizes.get(path, len(content))
        entry: dict[str, Any] = {"size": size, "oid": git_hash(content)}
        if path.endswith(LARGE):
            entry["lfs"] = {"sha256": etag_of(path, content), "size": size, "pointerSize": 134}
        return entry


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def etag_of(path: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if path.endswith(LARGE) else git_hash(content)


@contextlib.contextmanager
def serving() -> Iterator[tuple[Hub, str]]:
    """The hub and its address, while it is open."""
    hub = Hub()
    handler = type("Bound", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.handle_request()

    do_HEAD = do_GET

    def handle_request(self) -> None:
        parts = urlsplit(self.path)
        self.hub.requests.append(f"{self.command} {parts.path}")
        try:
            if self.hub.fault is not None:
                self.hub.fault(self)
            for pattern, answer in ROUTES:
                if match := re.fullmatch(pattern, parts.path):
                    answer(self, **{name: unquote(text) for name, text in match.groupdict().items()})
                    return
            raise Refused(404)
        except Refused as refused:
            headers = {"X-Error-Code": refused.code} if refused.code else {}
            self.answer({"error": refused.code}, refused.status, headers)

    def answer(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body)

    def model(self, repository: str, revision: str = "main") -> None:
        name, files = self.hub.find(repository, revision)
        siblings = []
        for path, content in files.items():
            entry = self.hub.describe(path, content)
            siblings.append({"rfilename": path, "blobId": entry.pop("oid"), **entry})
        facts = {"private": False, "tags": [], "downloads": 0, "likes": 0}
        self.answer({"_id": "0", "id": repository, "sha": name, "siblings": siblings, **facts})

    def tree(self, repository: str, revision: str) -> None:
        files = []
        for path, content in self.hub.find(repository, revision)[1].items():
            entry = self.hub.describe(path, content)
            if "lfs" in entry:
                entry["lfs"]["oid"] = entry["lfs"]["sha256"]
            files.append({"type": "file", "path": path, **entry})
        self.answer(files)

    def resolve(self, repository: str, revision: str, path: str) -> None:
        name, files = self.hub.find(repository, revision)
        if path not in files:
            raise Refused(404, "EntryNotFound")
        content, whole = files[path], len(files[path])
        headers = {"ETag": f'"{etag_of(path, content)}"', "X-Repo-Commit": name}
        if path.endswith(LARGE):
            headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(whole)}
        self.answer(content, 200, headers)


_REPO = r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)"
_REV = r"(?P<revision>[^/]+)"
ROUTES = [
    (f"/api/models/{_REPO}", Handler.model),
    (f"/api/models/{_REPO}/revision/{_REV}", Handler.model),
    (f"/api/models/{_REPO}/tree/{_REV}", Handler.tree),
    (f"/{_REPO}/resolve/{_REV}/(?P<path>.+)", Handler.resolve),
]
