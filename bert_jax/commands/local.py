"""Where a verb writes: a directory or a file of this machine."""

import argparse
from pathlib import Path


def local(text: str) -> Path:
    """A path on this machine. Raises argparse's error for an address such as gs://BUCKET/PATH."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text} is an address, and this is written to a local directory; copy it there "
            "afterwards, with gcloud storage cp --recursive"
        )
    return Path(text)
