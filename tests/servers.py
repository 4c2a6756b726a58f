"""OpenAI-compatible servers on 127.0.0.1 for tests: one with scripted replies, and `transformers serve`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Reply:
    """One answer: a JSON body, or bytes as they are. Status 0 closes the connection without an answer."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


DROP = Reply(0)


def completion(content: Any = None, *, finish_reason: str = "stop", usage: Any = (7, 3), **message: Any) -> Reply:
    """A chat completion; ``usage`` is (prompt tokens, completion tokens)."""
    body: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "test-model",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish_reason,
                "message": {"role": "assistant", "content": content, **message},
            }
        ],
    }
    if usage is not None:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return Reply(body=body)


def error(status: int, message: str, code: str | None = None, **headers: str) -> Reply:
    """An error in OpenAI's shape."""
    return Reply(status, {"error": {"message": message, "type": "an_error", "code": code}}, headers)


def call(name: str, arguments: Any = "{}", id: Any = "call_a") -> dict[str, Any]:
    """One entry of ``tool_calls``; an id of None leaves it out."""
    found = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return found if id is None else {"id": id, **found}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not print a traceback when a client has gone away."""


class FaultServer:
    """Gives the replies in order and the last one for ever, or what a function of the request's body says.

    Attributes:
        url: The base URL.
        bodies: The bodies of all requests so far.
        headers: Their headers, with small letters.
    """

    def __init__(self, *replies: Reply | Callable[[dict[str, Any]], Reply]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        lock, outer = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    reply = replies[min(len(outer.bodies), len(replies) - 1)]
                    outer.bodies.append(body)
                    outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                if self.path != "/v1/chat/completions":
                    reply = error(404, f"no such path: {self.path}")
                if callable(reply):
                    reply = reply(body)
                if reply.status == 0:
                    self.close_connection = True
                    return
                content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> FaultServer:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def transformers_serve(model_dir: Path, *, limit_s: float = 400.0) -> Iterator[str]:
    """Run ``transformers serve`` on a model directory and give its base URL; it is killed at the end."""
    port = free_port()
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model_dir)]
    command += ["--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)]
    log = model_dir / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ})
    try:
        deadline = time.monotonic() + limit_s
        while not _answers(f"http://127.0.0.1:{port}/health"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"transformers serve did not start in {limit_s} s:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False
