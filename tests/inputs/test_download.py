"""Downloads: only from public addresses, within one deadline, and refused in words that tell nothing of the network."""

import io
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from PIL import Image

from airvlm.inputs import download
from airvlm.inputs.download import is_public
from airvlm.inputs.images import BadImage, load_image

PUBLIC = "93.184.215.14"
NAMES = {"public.example": PUBLIC, "inside.example": "10.0.0.7", "both.example": f"{PUBLIC} 127.0.0.1"}
resolve = download._resolve


def resolve_name(host, port):
    return NAMES[host].split() if host in NAMES else resolve(host, port)


class Pages(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/missing":
            return self.send_error(404)
        if self.path == "/dripping-headers":
            return self._drip(b"HTTP/1.0 200 OK\r\nX: " + b"a" * 200 + b"\r\n\r\n")
        moved = self.path.startswith("/to/") or self.path == "/round"
        self.send_response(302 if moved else 200)
        if moved:
            self.send_header("Location", self.path.removeprefix("/to/"))
        if self.path == "/short":
            self.send_header("Content-Length", "1000")
        self.end_headers()
        if self.path == "/good":
            self.wfile.write(self.good)
        elif self.path == "/short":
            self.wfile.write(b"0" * 10)
        elif self.path == "/dripping-body":
            self._drip(self.good)
        elif self.path == "/endless":
            try:
                while True:
                    self.wfile.write(b"0" * 65536)
            except OSError:
                return None
        return None

    def _drip(self, data):
        for byte in data:
            try:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(0.05)
            except OSError:
                return

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """A name that resolves to a public address, behind which this machine stands: nothing else is let through."""
    file = io.BytesIO()
    Image.new("RGB", (20, 10), "red").save(file, "PNG")
    pages = type("Pages", (Pages,), {"good": file.getvalue()})
    with ThreadingHTTPServer(("127.0.0.1", 0), pages) as http:
        http.daemon_threads = True
        http.block_on_close = False
        threading.Thread(target=http.serve_forever, daemon=True).start()
        monkeypatch.setattr(download, "_resolve", resolve_name)
        monkeypatch.setattr(
            download,
            "_connect",
            lambda place, timeout: socket.create_connection(
                ("127.0.0.1", {PUBLIC: http.server_port}[place[0]]), timeout
            ),
        )
        yield f"http://public.example:{http.server_port}"
        http.shutdown()


@pytest.mark.slow
def test_addresses_are_fetched_only_when_allowed(server):
    assert load_image(f"{server}/good", allow_urls=True).size == (20, 10)
    with pytest.raises(BadImage, match="--allow-urls"):
        load_image(f"{server}/good")


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://host/a.png"])
def test_only_http_and_https_are_read(address):
    with pytest.raises(BadImage, match="only http and https"):
        load_image(address, allow_urls=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("missing", "404"),
        ("to/ftp://public.example/a.png", "only http and https"),
        ("to/http://127.0.0.1/a.png", "not on the public internet"),
        ("to/http://inside.example/a.png", "not on the public internet"),
        ("to/http://[::ffff:169.254.169.254]/a.png", "not on the public internet"),
        ("round", "more than 5 redirects"),
        ("endless", "larger than"),
        ("empty", "it is empty"),
        ("short", "ended too early"),
    ],
)
def test_downloads_that_go_wrong_are_refused(server, page, message):
    with pytest.raises(BadImage, match=message) as refused:
        load_image(f"{server}/{page}", allow_urls=True, max_bytes=500_000, timeout=30)
    assert "10.0.0.7" not in str(refused.value)


@pytest.mark.parametrize("page", ["dripping-headers", "dripping-body"])
def test_one_deadline_holds_for_headers_and_body(server, page):
    """Bytes that arrive slowly do not extend it: each page would take ten seconds."""
    with pytest.raises(BadImage, match=r"did not arrive within 0\.5 s"):
        load_image(f"{server}/{page}", allow_urls=True, timeout=0.5)


def test_a_redirect_to_a_public_address_is_followed(server):
    assert load_image(f"{server}/to//good", allow_urls=True).size == (20, 10)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "[::1]",
        "0.0.0.0",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "127.1",
        "①②⑦.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "[fec0::1]",
        "[::127.0.0.1]",
        "inside.example",
        "both.example",
    ],
)
def test_private_addresses_are_refused_by_number_and_by_name(host, monkeypatch):
    monkeypatch.setattr(download, "_resolve", resolve_name)
    monkeypatch.setattr(download, "_connect", None)  # nothing is connected to
    with pytest.raises(BadImage, match=r"not on the public internet|its host is unknown"):
        load_image(f"http://{host}/a.png", allow_urls=True)


@pytest.mark.slow
def test_a_name_is_resolved_once_and_that_address_is_connected_to(server, monkeypatch):
    asked = []

    def change(host, port):
        asked.append(host)
        return resolve_name("public.example" if len(asked) == 1 else "inside.example", port)

    monkeypatch.setattr(download, "_resolve", change)
    assert load_image(f"{server}/good", allow_urls=True).size == (20, 10)
    assert asked == ["public.example"]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("::ffff:93.184.215.14", True),
        ("64:ff9b::5db8:d70e", True),  # NAT64 of 93.184.215.14
        ("::ffff:10.0.0.1", False),
        ("::10.0.0.1", False),
        ("::5db8:d70e", False),  # ::/96, IPv4-compatible
        ("::ffff:0:93.184.215.14", False),  # ::ffff:0:0:0/96, IPv4-translated
        ("2002:7f00:0001::", False),  # 6to4 of 127.0.0.1
        ("64:ff9b::a00:1", False),  # NAT64 of 10.0.0.1
        ("64:ff9b:1::1", False),
        ("fe80::1%eth0", False),
        ("fec0::1", False),
        ("fc00::1", False),
        ("ff02::1", False),
        ("100::1", False),
        ("2001::1", False),  # Teredo
        ("2001:db8::1", False),
        ("3fff::1", False),
        ("5f00::1", False),
        ("224.0.0.1", False),
        ("100.64.0.1", False),
        ("192.168.0.1", False),
        ("192.0.2.1", False),
        ("192.88.99.1", False),
        ("198.18.0.1", False),
        ("255.255.255.255", False),
        ("0.0.0.0", False),
    ],
)
def test_what_is_public(address, public):
    assert is_public(address) is public
