"""Who may read the page and press its buttons, decided from the headers of a request alone.

A page of another site can send requests to loopback, and with DNS rebinding even under its own name. So the
Host must be one that the dashboard is served under, and whoever changes something must come from the page
itself (Origin) and know the token that stands in it.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
TOKEN_HEADER = "x-resilience-token"
LARGEST_BODY = 65_536


@dataclass(frozen=True, slots=True)
class Gate:
    """`hosts`: the names in a Host header that are this dashboard. `read_only`: nobody changes anything."""

    token: str
    hosts: frozenset[str] = LOOPBACK
    read_only: bool = False

    def refusal(self, method: str, headers: Mapping[str, str]) -> str | None:
        """Why a request is refused, in a sentence; None when it is let in. Names of headers in lower case."""
        host = headers.get("host", "")
        if _name_of(host) not in self.hosts:
            return f"This dashboard is not served as {host[:100]!r}: start it with --allow-host to allow that"
        if method in ("GET", "HEAD"):
            return None
        if self.read_only:
            return "This dashboard is read-only"
        if headers.get("origin", "").lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            return "Only the page of this dashboard may change something"
        if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(), self.token.encode()):
            return "The page is from an earlier start of this dashboard: reload it"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return "Orders are JSON"
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > LARGEST_BODY:
            return f"An order has at most {LARGEST_BODY} bytes, and says how many"
        return None


def _name_of(host: str) -> str | None:
    """The name in a Host header, without its port; None when there is none."""
    try:
        # A Host header has neither a path nor a user.
        return None if set(host) & set("/@?#\\ ") else urlsplit(f"//{host}").hostname
    except ValueError:
        return None
