"""Fetching an image over http or https, from public addresses only.

Every hop is resolved once, refused if any of its addresses is private, and connected to at the address that was
checked: neither a redirect nor a name that changes its mind leads into the network that this runs in. Proxies are not
used, since they would resolve the name again.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from urllib.parse import SplitResult, urljoin, urlsplit

__all__ = ["DownloadError", "download", "is_public"]

HOPS = 5  # redirects that are followed
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # an IPv4 address in its last 32 bits


class DownloadError(ValueError):
    """A download that failed or was refused; the message says why, without the address."""


def download(url: str, *, max_bytes: int, timeout: float) -> bytes:
    """The content behind an address. `timeout`: seconds for all of it, redirects included."""
    deadline = time.monotonic() + timeout
    for _ in range(HOPS + 1):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise DownloadError(f"only http and https addresses are read, not {parts.scheme}")
        connection = _connection(parts, deadline)
        try:
            target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
            connection.request("GET", target, headers={"User-Agent": "airvlm", "Accept-Encoding": "identity"})
            response = connection.getresponse()
            location = response.headers.get("Location")
            if response.status in (301, 302, 303, 307, 308) and location:
                url = urljoin(url, location)
                continue
            if response.status != 200:
                raise DownloadError(f"could not be fetched: {response.status} {response.reason}")
            return _body(response, max_bytes, deadline, timeout)
        except TimeoutError as error:
            raise DownloadError(f"did not arrive within {timeout:g} s") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, DownloadError):
                raise
            raise DownloadError(f"could not be fetched: {error}") from error
        finally:
            connection.close()
    raise DownloadError(f"could not be fetched: more than {HOPS} redirects")


def is_public(address: str) -> bool:
    """Whether an address is one of the open internet; those hidden inside IPv6 addresses are looked at too."""
    ip = ipaddress.ip_address(address.partition("%")[0])  # without the zone of a link-local address
    if isinstance(ip, ipaddress.IPv6Address):
        inside = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
        if ip in _NAT64:
            inside.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
        if any(one is not None and not is_public(str(one)) for one in inside):
            return False
        if ip.ipv4_mapped is not None:
            return True
    return ip.is_global and not ip.is_multicast


def _resolve(host: str, port: int) -> list[str]:
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _connection(parts: SplitResult, deadline: float) -> http.client.HTTPConnection:
    """A connection to the address that was checked; certificates are checked against the name."""
    try:
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        if not host:
            raise DownloadError("could not be fetched: the address names no host")
        addresses = _resolve(host, port)
    except (OSError, UnicodeError, ValueError) as error:
        if isinstance(error, DownloadError):
            raise
        raise DownloadError(f"could not be fetched: {error}") from error
    hidden = [address for address in addresses if not is_public(address)]
    if hidden:
        raise DownloadError(f"is refused: {host} is {hidden[0]}, a private address (or a loopback or local one)")
    left = max(0.1, deadline - time.monotonic())
    if parts.scheme == "https":
        return _PinnedTLS(host, port, addresses[0], left)
    return _Pinned(host, port, addresses[0], left)


_connect = socket.create_connection  # to a numeric address: nothing is resolved again


class _Pinned(http.client.HTTPConnection):
    def __init__(self, host: str, port: int, address: str, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout)
        self.address = address

    def connect(self) -> None:
        self.sock = _connect((self.address, self.port), self.timeout)


class _PinnedTLS(_Pinned):
    def connect(self) -> None:
        super().connect()
        self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


def _body(response: http.client.HTTPResponse, max_bytes: int, deadline: float, timeout: float) -> bytes:
    content = bytearray()
    while chunk := response.read1(65536):
        content += chunk
        if len(content) > max_bytes:
            raise DownloadError(f"is larger than {max_bytes} bytes")
        if time.monotonic() > deadline:
            raise DownloadError(f"did not arrive within {timeout:g} s")
    return bytes(content)
