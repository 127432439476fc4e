"""Reading images: every source gives the same pixels, and what cannot be read is refused in one clear line."""

import base64
import io
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from PIL import Image, ImageFile

from airvlm.inputs import download
from airvlm.inputs.download import is_public
from airvlm.inputs.images import BadImage, load_image

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 17, 3), dtype=np.uint8)


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.fixture
def image():
    return Image.fromarray(PIXELS)


def same(loaded, pixels=PIXELS):
    assert loaded.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(loaded), pixels)


def test_every_source_gives_the_same_pixels(image, tmp_path):
    path = tmp_path / "a.png"
    image.save(path)
    for source in (
        path,
        str(path),
        path.read_bytes(),
        PIXELS,
        PIXELS / 255.0,
        PIXELS.astype(np.int64),
        image,
    ):
        same(load_image(source))


def test_the_callers_image_is_never_changed_or_shared(image):
    loaded = load_image(image)
    loaded.putpixel((0, 0), (1, 2, 3))
    same(image)


def test_exif_orientation_is_applied(image):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it rotated by 90 degrees clockwise
    same(load_image(encoded(image, exif=exif)), np.rot90(PIXELS, -1))


def test_transparency_is_laid_over_white():
    array = np.zeros((2, 2, 4), dtype=np.uint8)
    array[0, 0] = (255, 0, 0, 255)
    array[1, 1] = (0, 0, 0, 128)
    loaded = np.asarray(load_image(encoded(Image.fromarray(array))))
    assert loaded[0, 0].tolist() == [255, 0, 0] and loaded[0, 1].tolist() == [255, 255, 255]
    assert loaded[1, 1].tolist() == [127, 127, 127]
    palette = Image.new("P", (1, 1), 3)
    assert load_image(encoded(palette, "GIF", transparency=3)).getpixel((0, 0)) == (255, 255, 255)


def test_grey_and_deep_images_keep_their_range():
    grey = np.array([[0, 128, 255]], dtype=np.uint8)
    deep = grey.astype(np.uint16) * 257
    for source in (
        grey,
        deep,
        encoded(Image.fromarray(grey)),
        encoded(Image.fromarray(deep)),
        grey[..., None],
    ):
        same(load_image(source), np.repeat(grey[..., None], 3, -1))
    assert load_image(np.array([[True, False]])).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "LAB", "HSV", "I", "F"])
def test_every_colour_mode_becomes_rgb(mode):
    assert load_image(Image.new(mode, (3, 2))).mode == "RGB"


def test_damaged_files_are_refused(image, tmp_path):
    whole = encoded(image, "JPEG")
    for content in (b"", b"not an image", whole[: len(whole) // 2], encoded(image)[:60]):
        with pytest.raises(BadImage, match=r"damaged|not a readable"):
            load_image(content)
    with pytest.raises(BadImage, match="does not exist"):
        load_image(tmp_path / "none.png")
    with pytest.raises(BadImage, match="folder"):
        load_image(tmp_path)


def test_huge_images_are_refused_before_they_are_decoded(image, monkeypatch):
    with pytest.raises(BadImage, match=r"17 x 12 pixels, at most 100"):
        load_image(image, max_pixels=100)
    bomb = encoded(Image.new("1", (30000, 30000)))
    decoded = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: decoded.append(self))
    with pytest.raises(BadImage, match="too large"):
        load_image(bomb)
    assert not decoded


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 4, 5)), "channels last"),
        (np.zeros((0, 4, 3)), "not an image"),
        (np.full((2, 2), 7.0), "from 0 to 1"),
        (np.full((2, 2), np.nan), "NaN"),
        (np.full((2, 2), -3), "0 to 255"),
        (np.full((2, 2), "a"), "not an image"),
    ],
)
def test_arrays_that_are_no_images_are_refused(array, message):
    with pytest.raises(BadImage, match=message):
        load_image(array)


def test_other_types_are_refused():
    with pytest.raises(BadImage, match="int"):
        load_image(7)


@pytest.mark.parametrize("head", ["data:image/png;base64,", "DATA:;base64,"])
def test_data_uris_hold_images(image, head):
    same(load_image(head + base64.b64encode(encoded(image)).decode()))


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("data:image/png,abc", "must hold base64"),
        ("data:image/png;base64,@@@", "is not base64"),
        ("data:image/png;base64,bm8gaW1hZ2U=", "not a readable image"),
        ("data:image/png;base64," + "A" * 2000, "larger than 1000 bytes"),
        ("data://x", "must hold base64"),
    ],
)
def test_data_uris_that_hold_none_are_refused_in_one_short_line(uri, message):
    with pytest.raises(BadImage, match=message) as refused:
        load_image(uri, max_bytes=1000)
    assert len(str(refused.value)) < 200


@pytest.fixture
def server(image, monkeypatch):
    good = encoded(image)

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/missing":
                return self.send_error(404)
            moved = self.path.startswith("/to/") or self.path == "/round"
            self.send_response(302 if moved else 200)
            if moved:
                self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
            if self.path == "/good":
                self.wfile.write(good)
            elif self.path == "/slow":
                for byte in good[:40]:
                    try:
                        self.wfile.write(bytes([byte]))
                        time.sleep(0.05)
                    except OSError:
                        return None
            elif self.path == "/endless":
                try:
                    while True:
                        self.wfile.write(b"0" * 65536)
                except OSError:
                    return None
            return None

        def log_message(self, *_):
            pass

    # A name that resolves to a public address, behind which this machine stands: nothing else is let through.
    with HTTPServer(("127.0.0.1", 0), Pages) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        monkeypatch.setattr(download, "_resolve", resolved)
        monkeypatch.setattr(
            download,
            "_connect",
            lambda place, timeout: socket.create_connection(
                ("127.0.0.1", {PUBLIC: http.server_port}[place[0]]), timeout
            ),
        )
        yield f"http://public.example:{http.server_port}"
        http.shutdown()


PUBLIC = "93.184.215.14"
NAMES = {"public.example": PUBLIC, "inside.example": "10.0.0.7", "both.example": f"{PUBLIC} 127.0.0.1"}
resolve = download._resolve


def resolved(host, port):
    return NAMES[host].split() if host in NAMES else resolve(host, port)


def test_addresses_are_fetched_only_when_allowed(server):
    same(load_image(f"{server}/good", allow_urls=True))
    with pytest.raises(BadImage, match=r"--allow-urls \(allow_urls=True"):
        load_image(f"{server}/good")


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://host/a.png"])
def test_only_http_and_https_are_read(address):
    with pytest.raises(BadImage, match="only http and https"):
        load_image(address, allow_urls=True)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("missing", "404"),
        ("to/ftp://public.example/a.png", "only http and https"),
        ("to/http://127.0.0.1/a.png", "127.0.0.1, a private address"),
        ("to/http://inside.example/a.png", "inside.example is 10.0.0.7, a private address"),
        ("to/http://[::ffff:169.254.169.254]/a.png", "a private address"),
        ("round", "more than 5 redirects"),
        ("endless", "larger than"),
        ("slow", "within"),
    ],
)
def test_downloads_that_go_wrong_are_refused(server, page, message):
    with pytest.raises(BadImage, match=message):
        load_image(f"{server}/{page}", allow_urls=True, max_bytes=500_000, timeout=0.5 if page == "slow" else 30)


def test_a_redirect_to_a_public_address_is_followed(server):
    same(load_image(f"{server}/to//good", allow_urls=True))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "[::1]",
        "0.0.0.0",
        "2130706433",
        "10.1.2.3",
        "169.254.169.254",
        "inside.example",
        "both.example",
    ],
)
def test_private_addresses_are_refused_by_number_and_by_name(host, monkeypatch):
    monkeypatch.setattr(download, "_resolve", resolved)
    monkeypatch.setattr(download, "_connect", None)  # nothing is connected to
    with pytest.raises(BadImage, match="a private address"):
        load_image(f"http://{host}/a.png", allow_urls=True)


def test_a_name_is_resolved_once_and_that_address_is_connected_to(server, monkeypatch):
    asked = []

    def changing(host, port):
        asked.append(host)
        return resolved("public.example" if len(asked) == 1 else "inside.example", port)

    monkeypatch.setattr(download, "_resolve", changing)
    same(load_image(f"{server}/good", allow_urls=True))
    assert asked == ["public.example"]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("::ffff:93.184.215.14", True),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:0001::", False),  # 6to4 of 127.0.0.1
        ("64:ff9b::a00:1", False),  # NAT64 of 10.0.0.1
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("224.0.0.1", False),
        ("100.64.0.1", False),
        ("192.168.0.1", False),
    ],
)
def test_what_is_public(address, public):
    assert is_public(address) is public
