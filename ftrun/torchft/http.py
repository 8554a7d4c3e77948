"""torchft.http: an HTTP server that listens on IPv6 and IPv4."""

from __future__ import annotations

import socket
from http.server import ThreadingHTTPServer


class _IPv6HTTPServer(ThreadingHTTPServer):
    """The standard library's server, with a queue for many clients that restart at once."""

    address_family = socket.AF_INET6
    request_queue_size = 1024
