"""Reading images: every source gives the same pixels, and what cannot be read is refused in one clear line."""

import base64
import io

import numpy as np
import pytest
from PIL import Image, ImageFile

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
def test_every_color_mode_becomes_rgb(mode):
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


@pytest.mark.slow
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


@pytest.mark.parametrize("kind", ["EPS", "PPM", "PCX", "ICO", "TGA"])
def test_other_formats_of_pillow_are_not_decoded(image, kind):
    with pytest.raises(BadImage, match="none of PNG, JPEG, WEBP, GIF, BMP, TIFF"):
        load_image(encoded(image.resize((64, 64)), kind))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_these_formats_are_decoded(image, kind):
    assert load_image(encoded(image, kind)).size == image.size


def test_ghostscript_is_never_run(image, tmp_path, monkeypatch):
    """An EPS file would be handed to the program gs, if Pillow were allowed to open it."""
    ran = tmp_path / "ran"
    stub = tmp_path / "gs"
    stub.write_text(f"#!/bin/sh\ntouch {ran}\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    eps = encoded(image, "EPS")
    with pytest.raises(OSError), Image.open(io.BytesIO(eps)) as opened:  # the stub draws nothing
        opened.load()
    assert ran.exists()  # the stub is found where Pillow looks for it
    ran.unlink()
    for source in (eps, tmp_path / "image.eps", tmp_path / "image.png"):
        if not isinstance(source, bytes):
            source.write_bytes(eps)
        with pytest.raises(BadImage, match="not a readable image"):
            load_image(source)
    assert not ran.exists()


# -- large JPEGs decoded at a part of their size


@pytest.fixture(scope="module")
def jpeg(tmp_path_factory):
    path = tmp_path_factory.mktemp("photographs") / "large.jpg"
    Image.effect_noise((2400, 1800), 60).convert("RGB").save(path, quality=92)
    return path


def test_by_default_every_pixel_is_decoded(jpeg):
    assert load_image(jpeg).size == (2400, 1800)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "size"),
    [(100, (300, 225)), (226, (600, 450)), (450, (600, 450)), (451, (1200, 900)), (901, (2400, 1800))],
)
def test_the_shorter_side_stays_at_least_as_long(jpeg, side, size):
    assert load_image(jpeg, decode_side=side).size == size


def test_a_draft_is_upright_and_limits_are_those_of_the_whole_image(tmp_path):
    turned = Image.new("RGB", (1600, 1200), "red")
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    turned.save(tmp_path / "turned.jpg", exif=exif)
    assert load_image(tmp_path / "turned.jpg", decode_side=300).size == (300, 400)
    with pytest.raises(BadImage, match="1600 x 1200"):
        load_image(tmp_path / "turned.jpg", decode_side=300, max_pixels=1_000_000)


def test_other_formats_are_decoded_whole(tmp_path):
    Image.new("RGB", (1600, 1200), "red").save(tmp_path / "a.png")
    assert load_image(tmp_path / "a.png", decode_side=100).size == (1600, 1200)
