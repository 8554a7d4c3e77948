"""torchft.http: an HTTP server that listens on IPv6 and IPv4."""

from __future__ import annotations

import socket
from http.server import ThreadingHTTPServer


class _IPv6HTTPServer(ThreadingHTTPServer):
    """A server of the standard library, with a queue for the restart of many clients at once."""

    address_family = socket.AF_INET6
    request_queue_size = 1024
