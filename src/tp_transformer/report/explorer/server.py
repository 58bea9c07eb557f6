"""The local server of the page, on the loopback interface."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tp_transformer.errors import UserError

LOOPBACK = "127.0.0.1"


class _Handler(BaseHTTPRequestHandler):
    """Serves the page, and rejects all other requests."""

    server: ThreadingHTTPServer
    page: bytes
    policy: str
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send the page."""
        # A page of another site whose host name points to this machine sends another Host.
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
            self._send(HTTPStatus.FORBIDDEN, b"This server answers to 127.0.0.1 only.\n")
        elif self.path != "/":
            self._send(HTTPStatus.NOT_FOUND, b"There is only the page.\n")
        else:
            self._send(HTTPStatus.OK, self.page, "text/html; charset=utf-8")

    def _send(self, status: HTTPStatus, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", f"{self.policy}; frame-ancestors 'none'"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """Return a name without the versions of the software."""
        return "tpt"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, the base class's name
        """Print nothing about requests."""


@contextmanager
def serving(page: bytes, policy: str, port: int) -> Iterator[ThreadingHTTPServer]:
    """A server of the page on a port of the loopback interface; port 0 is any free port."""
    handler = type("Handler", (_Handler,), {"page": page, "policy": policy})
    try:
        server = ThreadingHTTPServer((LOOPBACK, port), handler)
    except OSError as error:
        raise UserError(
            f"cannot listen on port {port}: {error.strerror or error}; name another with --port"
        ) from error
    server.daemon_threads = True
    try:
        yield server
    finally:
        server.server_close()


def address(server: ThreadingHTTPServer) -> str:
    """Return the address of the page."""
    return f"http://{LOOPBACK}:{server.server_port}/"
