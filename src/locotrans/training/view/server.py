"""A small server of one page, for this machine's own browser.

It binds to the loopback address unless told otherwise. A request must be addressed to this machine
(a foreign name that resolves to it is refused: DNS rebinding) and, if a script sends it, come from
the page itself. What is sent is bounded, read by our readers, and removed at once.
"""

import errno
import ipaddress
import json
import socket
import socketserver
import sys
import tempfile
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from locotrans.training.view.page import live_page
from locotrans.training.view.scenes import Viewer, parse_rotation

LIMIT = 64 * 2**20
"""Bytes of a file that is sent."""
QUESTION = 4096
"""Bytes of any other request."""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)


class ViewServer(ThreadingHTTPServer):
    """Serves a viewer and its first scene."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], viewer: Viewer, number: int) -> None:
        self.viewer = viewer
        self.number = number
        self.host = address[0]
        if ":" in self.host:
            self.address_family = socket.AF_INET6
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        """Bind without asking for the machine's full name, which may wait for a network."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, self.server_address[1]

    @property
    def url(self) -> str:
        """Where the page is."""
        wildcard = self.host in ("", "0.0.0.0", "::")
        host = "localhost" if wildcard else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_port}/"

    def is_ours(self, host: str) -> bool:
        """Say whether the Host of a request names this machine: localhost, an address, --host."""
        name = urlsplit(f"//{host}").hostname or ""
        if name in ("localhost", self.host.lower()):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: ViewServer
    timeout = 30
    server_version = "locotrans"
    sys_version = ""

    def do_GET(self) -> None:
        """Send the page."""
        if not self._check():
            return
        if urlsplit(self.path).path != "/":
            self._json(404, {"error": "there is nothing here but /"})
            return
        self._guarded(self._page)

    def do_POST(self) -> None:
        """Answer a question, or read a file."""
        if not self._check():
            return
        action = {"/answer": self._answer, "/file": self._file}.get(urlsplit(self.path).path)
        if action is None:
            self._json(404, {"error": "there is nothing here but /"})
            return
        self._guarded(action)

    def _page(self) -> None:
        viewer, number = self.server.viewer, self.server.number
        if number not in viewer.scenes:  # other files came since
            number = next(reversed(viewer.scenes))
        self._send(200, live_page(viewer, number, LIMIT).encode(), "text/html; charset=utf-8")

    def _answer(self) -> None:
        body = self.rfile.read(self._length(QUESTION))
        try:
            question = json.loads(body)
            number, category = int(question["scene"]), int(question["category"])
            rotation = parse_rotation(question["rotation"])
        except (KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"a question needs scene, category and rotation ({error})") from None
        self._json(200, {"answers": self.server.viewer.answers(number, rotation, category)})

    def _file(self) -> None:
        length = self._length(LIMIT)
        given = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
        name = Path(given.get("name", "")).name[-100:] or "file"
        with tempfile.TemporaryDirectory(prefix="locotrans-view-") as folder:
            path = Path(folder, "sent" + Path(name).suffix.lower())
            with path.open("wb") as file:
                self._copy(length, file)
            number = self.server.viewer.open(path, name, given.get("category", ""))
        self._json(200, self.server.viewer.state(number))

    def _copy(self, length: int, file: Any) -> None:
        while length > 0:
            piece = self.rfile.read(min(length, 2**20))
            if not piece:
                raise ValueError("the file ended early: send it again")
            file.write(piece)
            length -= len(piece)

    def _length(self, limit: int) -> int:
        text = self.headers.get("Content-Length", "")
        if not text.isdecimal():
            raise ValueError("the request does not say how long it is")
        if int(text) > limit:
            self.rfile.read(min(int(text), 2**20))  # or whoever sends may not hear the answer
            raise ValueError(f"{int(text):,} bytes are too many, the limit is {limit:,}: thin it")
        return int(text)

    def _check(self) -> bool:
        """Refuse what is not addressed to this machine, or comes from another page."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if self.server.is_ours(host) and origin in (None, f"http://{host}"):
            return True
        self._json(403, {"error": "this page answers its own machine and its own script only"})
        return False

    def _guarded(self, action: Any) -> None:
        """Let nothing that a request holds end the server."""
        try:
            action()
        except (BrokenPipeError, ConnectionError, TimeoutError):
            pass  # whoever asked is gone
        except (ValueError, OSError) as error:
            self._json(400, {"error": " ".join(str(error).split())})
        except Exception as error:
            traceback.print_exc()
            self._json(500, {"error": f"{type(error).__name__}: {error}"})

    def _json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        try:
            self.send_response(status)
            for key, value in {
                "Content-Type": kind,
                "Content-Length": str(len(body)),
                "Content-Security-Policy": POLICY,
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
                "Cache-Control": "no-store",
            }.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionError, TimeoutError):
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent: the page shows what went wrong."""


def serve(viewer: Viewer, number: int, host: str, port: int) -> None:
    """Serve until Ctrl-C.

    Raises:
        ValueError: the address cannot be had; the message says what to do.
    """
    try:
        server = ViewServer((host, port), viewer, number)
    except (OSError, OverflowError) as error:
        raise ValueError(_refusal(host, port, error)) from None
    with server:
        if not _is_loopback(host):
            print(
                f"{host} is not this machine alone: whoever reaches it sees the page and can "
                "send files to it",
                file=sys.stderr,
            )
        print(f"{server.url} shows {viewer.scenes[number].name}; Ctrl-C stops it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped")


def _refusal(host: str, port: int, error: Exception) -> str:
    code = getattr(error, "errno", None)
    if code == errno.EADDRINUSE:
        return f"port {port} is in use: name another one (--port), or 0 for any that is free"
    if code == errno.EACCES:
        return f"port {port} may not be used: name one above 1023 (--port)"
    if isinstance(error, OverflowError):
        return f"there is no port {port}: name one from 0 to 65535 (--port)"
    return f"{host} is no address of this machine ({error}): name one (--host)"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
