"""A local server that `huggingface_hub` uses as model hub; it can break connections and alter files on demand."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class SmallHub:
    """Runs the hub in a block. `repositories` is `{name: {path: content}}`; `requests` has (method, path, headers)."""

    def __init__(self):
        self.repositories, self.requests, self.gated = {}, [], set()
        self.cut_after = {}
        """By path of a file: number of bytes after which the next response with this file breaks off."""
        self.altered = {}
        """By path of a file: content that is sent instead of the file's own."""
        hub = self

        class Handler(_Handler):
            small_hub = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, name, folder):
        """Makes a repository from the files of a folder."""
        paths = (path for path in folder.rglob("*") if path.is_file())
        self.repositories[name] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}

    def commit(self, name):
        """Returns the hash of a repository's only commit, a digest of its content."""
        content = sorted((path, git_digest(data)) for path, data in self.repositories[name].items())
        return hashlib.sha1(json.dumps(content).encode()).hexdigest()


def git_digest(content):
    """Returns the SHA-1 of a file, as git computes it."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_large(path):
    """Whether the hub identifies a file by its SHA-256 instead of git's SHA-1."""
    return path.endswith((".pth", ".safetensors"))


def digest(path, content):
    """Returns the digest of a file's content for the header ETag."""
    return hashlib.sha256(content).hexdigest() if is_large(path) else git_digest(content)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):  # noqa: N802
        self._file(False)

    def do_GET(self):  # noqa: N802
        self.path = unquote(urlsplit(self.path).path)
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?.*", self.path)
        if not match:
            return self._file(True)
        self._note()
        name, kind, revision = match.groups()
        if name not in self.small_hub.repositories:
            return self._refuse(404, "RepoNotFound")
        files, commit = self.small_hub.repositories[name], self.small_hub.commit(name)
        if revision not in (None, "main", "v2", commit):
            return self._refuse(404, "RevisionNotFound")
        if kind == "tree":
            return self._json([self._entry(path, content) for path, content in files.items()])
        siblings = [{"rfilename": path} for path in files]
        self._json({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "private": False})

    def do_POST(self):  # noqa: N802
        self._note()
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/api/repos/create":
            given = json.loads(body)
            name = f"{given.get('organization') or 'emma'}/{given['name'].rpartition('/')[2]}"
            self.small_hub.repositories.setdefault(name, {})
            return self._json({"url": f"{self.small_hub.url}/{name}"})
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/main", path)
        if match[2] == "preupload":
            names = [file["path"] for file in json.loads(body)["files"]]
            return self._json(
                {"files": [{"path": one, "uploadMode": "regular", "shouldIgnore": False} for one in names]}
            )
        files = self.small_hub.repositories[match[1]]
        for operation in map(json.loads, body.splitlines()):
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
        commit = self.small_hub.commit(match[1])
        url = f"{self.small_hub.url}/{match[1]}/commit/{commit}"
        self._json({"commitUrl": url, "commitOid": commit, "success": True})

    def _note(self):
        self.small_hub.requests.append((self.command, self.path, dict(self.headers)))

    def _entry(self, path, content):
        entry = {"type": "file", "path": path, "size": len(content), "oid": git_digest(content)}
        if is_large(path):
            entry["lfs"] = {"size": len(content), "oid": hashlib.sha256(content).hexdigest(), "pointerSize": 134}
        return entry

    def _file(self, send):
        self._note()
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", unquote(urlsplit(self.path).path))
        if not match or match[1] not in self.small_hub.repositories:
            return self._refuse(404, "RepoNotFound")
        name, path = match[1], match[3]
        if (content := self.small_hub.repositories[name].get(path)) is None:
            return self._refuse(404, "EntryNotFound")
        if name in self.small_hub.gated:
            return self._refuse(403, "GatedRepo")
        start, etag = 0, digest(path, content)
        content = self.small_hub.altered.get(path, content) if send else content
        if send and (asked := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))):
            start = int(asked[1])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", self.small_hub.commit(name))
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if send:
            cut = self.small_hub.cut_after.pop(path, None)
            self.wfile.write(content[start:] if cut is None else content[start : start + cut])
            self.close_connection = cut is not None

    def _json(self, value):
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
