"""Weights & Biases: a run in the browser with the rows of metrics.jsonl (registry.TRACKERS)."""

import importlib.util
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bert_jax.errors import UsageError, install_command
from bert_jax.registry import TRACKERS


class WeightsAndBiases:
    """Sends rows to wandb, which uploads them in the background.

    The environment variable WANDB_PROJECT names the project; on a machine without network access
    set WANDB_MODE=offline.
    """

    # The imported package, and the extra that installs it.
    package = "wandb"

    def __init__(self, name: str, config: Mapping[str, Any], directory: Path):
        """Opens a run; `directory` is the workdir, for wandb's files."""
        import wandb  # pyright: ignore[reportMissingImports]

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "bert-jax"),
            name=name,
            group=name,
            dir=str(directory),
            config=dict(config),
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        # Training and evaluation rows share a step, which wandb's own counter does not allow.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def row(self, values: Mapping[str, Any]) -> None:
        """Sends the metrics of a row, named "train/loss", "validation/mlm_loss" and so on."""
        split = values.get("split", "train")
        numbers = {f"{split}/{k}": v for k, v in values.items() if isinstance(v, float)}
        numbers.pop(f"{split}/time", None)
        self._run.log({"step": values["step"], **numbers})

    def close(self) -> None:
        self._run.finish()


def require_installed(names: Iterable[str]) -> None:
    """Raises UsageError, with what to install, if the package of a tracker is missing."""
    for name in names:
        package = TRACKERS[name].package
        if importlib.util.find_spec(package) is None:
            raise UsageError(
                f"`tracker` {name}: the package {package!r} is not installed: "
                f"{install_command(package)}, or leave it out"
            )
