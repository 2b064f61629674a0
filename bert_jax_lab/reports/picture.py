"""Draws a picture with matplotlib, into files that say in words what they show."""

import io
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bert_jax.files import writing

_DPI = 130


def draw(
    plot: Callable[..., None],
    *targets: Path,
    title: str,
    alt: str,
    size: tuple[float, float] = (8, 4.8),
    heights: Sequence[float] = (1,),
) -> None:
    """Lets `plot` draw on axes below each other, one for each of `heights`, and writes them.

    `targets` are .png, .svg or .pdf files; the first two have `title` and `alt` in them.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": title, "axes.grid": True, "grid.alpha": 0.3}):
        figure, axes = pyplot.subplots(
            len(heights),
            1,
            figsize=size,
            height_ratios=heights,
            layout="constrained",
            squeeze=False,
        )
        plot(*axes[:, 0])
        for target in targets:
            with writing(target):
                _save(figure, target, title, alt)
        pyplot.close(figure)


def _save(figure: Any, target: Path, title: str, alt: str) -> None:
    words = {"Title": title, "Description": alt}
    if target.suffix != ".svg":
        metadata = {"Title": title} if target.suffix == ".pdf" else words
        figure.savefig(target, dpi=_DPI, metadata=metadata)
        return
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={**words, "Date": None})
    label = f'<svg role="img" aria-label="{escape(alt, quote=True)}" '
    target.write_text(text.getvalue().replace("<svg ", label, 1), encoding="utf-8")
