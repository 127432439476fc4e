"""Fetching an image over http or https, from public addresses only.

Every hop is resolved once, refused if any of its addresses is not public, and connected to at the address that was
checked: neither a redirect nor a name that changes its address leads into the network that this runs in. Proxies are
not used, since they would resolve the name again.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import socket
import ssl
import time
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

__all__ = ["DownloadError", "download", "is_public"]

HOPS = 5  # redirects that are followed
_MAPPED = ipaddress.ip_network("::ffff:0:0/96")  # these two hold an IPv4 address in their last 32 bits
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNICAST = ipaddress.ip_network("2000::/3")  # the only range that global unicast addresses are assigned from
_RESERVED = [
    ipaddress.ip_network(network)
    for network in (
        "192.88.99.0/24",  # 6to4 relays
        "2001::/23",  # protocols, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which contains an IPv4 address
        "3fff::/20",  # documentation
    )
]


class DownloadError(ValueError):
    """A download that failed or was refused; the message says why, without the address."""


def download(url: str, *, max_bytes: int, timeout: float) -> bytes:
    """The content behind an address.

    Args:
        url: an http or https address.
        max_bytes: a larger content is refused.
        timeout: seconds for all of it: connections, headers, redirects and content.
    """
    deadline = time.monotonic() + timeout
    for _ in range(HOPS + 1):
        try:
            parts = urlsplit(url)
        except ValueError as error:  # brackets or letters that no host has
            raise DownloadError(f"is not a web address: {error}") from error
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
            return _read_body(response, max_bytes)
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
    """Whether an address belongs to the public internet."""
    ip = ipaddress.ip_address(address.partition("%")[0])  # without the zone of a link-local address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _MAPPED or ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
        if ip not in _UNICAST:
            return False
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _RESERVED)


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
        raise DownloadError("could not be fetched: its host is unknown") from error
    # the message does not say which address: a client of a server must not learn what its names resolve to
    if not addresses or not all(is_public(address) for address in addresses):
        raise DownloadError("is refused: its host is not on the public internet (a private or local address)")
    kind = _PinnedTLS if parts.scheme == "https" else _Pinned
    return kind(host, port, addresses[0], deadline)


_connect = socket.create_connection  # to a numeric address: nothing is resolved again


class _Pinned(http.client.HTTPConnection):
    """A connection to one address, all of whose reads end at one deadline."""

    def __init__(self, host: str, port: int, address: str, deadline: float) -> None:
        super().__init__(host, port)
        self.address, self.deadline = address, deadline

    def connect(self) -> None:
        raw = _connect((self.address, self.port), _seconds_left(self.deadline))
        try:
            raw.settimeout(_seconds_left(self.deadline))
            self.sock: Any = _TimedSocket(self._secure(raw), self.deadline)
        except BaseException:
            raw.close()
            raise

    def _secure(self, raw: socket.socket) -> socket.socket:
        return raw


class _PinnedTLS(_Pinned):
    def _secure(self, raw: socket.socket) -> socket.socket:
        return ssl.create_default_context().wrap_socket(raw, server_hostname=self.host)


class _TimedSocket:
    """What http.client uses of a socket. Each read gets the time that is left, so that dripping bytes gain nothing."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self.sock, self.deadline = sock, deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self.sock, self.deadline))

    def sendall(self, data: bytes) -> None:
        self.sock.settimeout(_seconds_left(self.deadline))
        self.sock.sendall(data)

    def close(self) -> None:
        self.sock.close()


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self.sock, self.deadline = sock, deadline
        self.file = sock.makefile("rb", buffering=0)  # keeps the socket open until the response is read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self.sock.settimeout(_seconds_left(self.deadline))
        return self.file.readinto(buffer)

    def close(self) -> None:
        self.file.close()
        super().close()


def _seconds_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _read_body(response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    content = bytearray()
    while chunk := response.read1(65536):
        content += chunk
        if len(content) > max_bytes:
            raise DownloadError(f"is larger than {max_bytes} bytes")
    if response.length:  # bytes that the header promised
        raise DownloadError("could not be fetched: the connection ended too early")
    if not content:
        raise DownloadError("could not be fetched: it is empty")
    return bytes(content)
