"""Takes finished studies into the documentation: what each has written, word by word.

    python docs/take_study.py runs/recipe runs/positions ...

`docs/science/NAME/` gets `study.md` and the figures that it shows; docs/science.md interprets them.
It needs Pillow, which the `dev` extra has.
"""

import re
import shutil
import sys
from pathlib import Path

from PIL import Image

_SCIENCE = Path(__file__).parent / "science"


def take(workdir: Path) -> Path:
    """Copies one study; the command in it names `runs/NAME`, wherever workdir and corpus were."""
    text = (workdir / "study.md").read_text(encoding="utf-8")
    target = _SCIENCE / workdir.name
    shutil.rmtree(target, ignore_errors=True)
    (target / "figures").mkdir(parents=True)
    text = text.replace(f"--workdir {workdir}", f"--workdir runs/{workdir.name}")
    text = re.sub(r"--corpus (?:\S*/)?([^\s/`]+)", r"--corpus runs/\1", text)
    (target / "study.md").write_text(text, encoding="utf-8")
    for figure in (workdir / "figures").glob("*.png"):
        if f"figures/{figure.name}" in text:
            with Image.open(figure) as picture:
                # A palette: a third of the bytes, and no difference to the eye.
                picture.convert("RGB").quantize(64).save(
                    target / "figures" / figure.name, optimize=True
                )
    return target


if __name__ == "__main__":
    if not sys.argv[1:]:
        raise SystemExit(__doc__)
    for name in sys.argv[1:]:
        print(take(Path(name)))
