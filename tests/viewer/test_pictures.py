"""Pictures of pages for the docs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from tools.screenshots import smaller


def test_a_smaller_picture_has_its_page_in_the_same_colours(tmp_path: Path) -> None:
    """A palette that is spread over all colours tinted every background."""
    pixels = np.full((300, 400, 3), (244, 246, 248), dtype=np.uint8)
    pixels[40:60] = (204, 80, 143)
    scale = np.linspace(0, 255, 400).astype(np.uint8)
    pixels[100:200] = np.stack([scale, scale[::-1], np.arange(400) % 256], axis=1)
    pixels[100:200, :, 2] = np.arange(100)[:, None]  # 40,000 colours
    file = tmp_path / "page.png"
    Image.fromarray(pixels).save(file)
    smaller(file)
    with Image.open(file) as picture:
        assert picture.mode == "P"
        few = np.asarray(picture.convert("RGB")).astype(int)
    off = np.abs(few - pixels)
    assert off[:100].max() == off[200:].max() == 0
    assert off.mean() < 8
