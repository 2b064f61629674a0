"""Takes the README's pictures of the demo's pages: docs/pictures/report.png and attention.png.

    make demo && .venv/bin/python docs/take_pictures.py runs/demo

It needs a Chromium (apt-get install chromium) and Pillow, which the `dev` extra has.
"""

import sys
from pathlib import Path

from PIL import Image

_ROOT = Path(__file__).parents[1]
# Page -> width and height of the part that is shown.
_SHOWN = {"report": (1100, 900), "attention": (1100, 900)}
_COLOURS = 128  # of a palette: a third of the bytes, and no difference to the eye


def take(runs: Path, target: Path) -> None:
    """Writes the upper part of each page of `runs`."""
    sys.path.insert(0, str(_ROOT))
    from tests.browser import chromium

    target.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for name, (width, height) in _SHOWN.items():
            tab = browser.open(runs / f"{name}.html", width=width)
            file = target / f"{name}.png"
            tab.screenshot(file)
            tab.close()
            with Image.open(file) as picture:
                part = picture.convert("RGB").crop((0, 0, width, min(height, picture.height)))
            part.quantize(_COLOURS).save(file, optimize=True)
            print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    take(Path(sys.argv[1]), _ROOT / "docs" / "pictures")
