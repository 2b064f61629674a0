"""The records of runs for a report, and a picture of their curves."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax import config_loader
from bert_jax.workdir import goodput, log_reader, run_directory
from bert_jax.workdir.run_directory import CONFIG
from bert_jax_lab.reference_curves import hook
from bert_jax_lab.reference_curves.curve import Point
from bert_jax_lab.reports import picture

# The first of these losses that a run has is drawn. Only mlm_loss compares with the entropy.
_LOSSES = ("mlm_loss", "loss")


@dataclass(frozen=True)
class RunRecord:
    """The data of one run for a report."""

    name: str
    rows: list[dict[str, Any]]
    account: dict[str, Any]
    # The content of config.json.
    stored: dict[str, Any]
    directory: Path
    # From goodput.processes.
    processes: list[dict[str, Any]]
    events: list[dict[str, Any]]
    # (step, lowest, highest) of the expected validation loss, and the runs that it is from.
    expected: Sequence[tuple[int, float, float]] = ()
    expected_from: str = ""

    @property
    def entropy(self) -> float | None:
        """The unigram entropy of the corpus in nats, the loss of a model that counts tokens."""
        return run_directory.entropy_of(self.stored, self.rows)

    def curve(self, *, held_out: bool) -> tuple[str, list[int], list[float]]:
        """Returns the name of the loss, its steps and its values; empty without a loss."""
        rows = [row for row in self.rows if (row.get("split") is not None) == held_out]
        # Not the validation rows of single sources.
        rows = [row for row in rows if "/" not in row.get("split", "")]
        for name in _LOSSES:
            points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
            if points:
                steps, losses = zip(*points, strict=True)
                return name, list(steps), list(losses)
        return "", [], []


def read(directory: Path, *, name: str) -> RunRecord:
    """Returns the record of the run in a workdir."""
    rows = log_reader.read_rows(directory)
    stored = run_directory.stored(directory)
    expected_from, expected = _expected(directory, stored)
    return RunRecord(
        name,
        rows,
        goodput.account(directory),
        stored,
        directory,
        goodput.processes(directory),
        log_reader.read_events(directory),
        expected,
        expected_from,
    )


def _expected(directory: Path, stored: dict[str, Any]) -> tuple[str, list[Point]]:
    """Returns the runs with which a run of pre-training is compared, and the expected losses."""
    entropy = (stored.get("corpus") or {}).get("unigram_entropy_nats")
    if entropy is None or stored.get("task") or run_directory.is_continued(directory):
        return "", []
    return hook.expected(config_loader.load_config_json(directory / CONFIG), entropy)


def describe(runs: Sequence[RunRecord]) -> str:
    """Returns a text alternative for the picture of `draw`."""
    parts = []
    for run in runs:
        name, steps, losses = run.curve(held_out=True)
        kind = "validation"
        if not steps:
            name, steps, losses = run.curve(held_out=False)
            kind = "training"
        if steps:
            at = f"at step {steps[-1]:,}"
            parts.append(f"{run.name}: {kind} {name} {losses[0]:.3f}, then {losses[-1]:.3f} {at}")
        else:
            parts.append(f"{run.name}: no loss yet")
        if run.entropy is not None:
            parts[-1] += f" (unigram entropy {run.entropy:.3f})"
        parts[-1] += f", goodput {run.account['goodput']:.1%}"
    return f"Losses over steps, and where the time went. {'; '.join(parts)}."


def draw(runs: Sequence[RunRecord], target: Path) -> None:
    """Draws the losses of all runs over their steps, and below them the parts of their time.

    Validation losses are bold, training losses thin; the unigram entropy of a corpus is a dashed
    line, and the expected losses of a run are a band. `target` is a .png, .svg or .pdf file; the
    first two have a text alternative.
    """
    parts = [p for p in goodput.PARTS if any(run.account["seconds"][p] > 0 for run in runs)]
    # matplotlib reads a dollar sign as the start of a formula.
    names = [run.name.replace("$", r"\$") for run in runs]

    def plot(losses: Any, times: Any) -> None:
        _draw_losses(runs, names, losses)
        left = [0.0] * len(runs)
        for part in parts:
            seconds = [max(run.account["seconds"][part], 0.0) for run in runs]
            times.barh(names, seconds, left=left, label=part.replace("_", " "))
            left = [a + b for a, b in zip(left, seconds, strict=True)]
        times.invert_yaxis()
        times.set_xlabel("seconds")
        times.grid(visible=False)
        if parts:
            times.legend(ncols=5, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.5))

    heights = (4.5, 0.6 + 0.45 * len(runs))
    picture.draw(
        plot,
        target,
        title=f"bert-jax: {', '.join(run.name for run in runs)}",
        alt=describe(runs),
        size=(9, sum(heights)),
        heights=heights,
    )


def _draw_losses(runs: Sequence[RunRecord], names: Sequence[str], losses: Any) -> None:
    lines: dict[float, list[str]] = {}
    for number, (run, shown) in enumerate(zip(runs, names, strict=True)):
        colour = f"C{number % 10}"
        if run.expected:
            steps, low, high = zip(*run.expected, strict=True)
            label = f"{shown}, expected"
            losses.fill_between(steps, low, high, color=colour, alpha=0.15, label=label)
        for held_out in (False, True):
            name, steps, values = run.curve(held_out=held_out)
            label = f"{shown}, {'validation' if held_out else 'training'}"
            style = {"linewidth": 2, "marker": "."} if held_out else {"linewidth": 1, "alpha": 0.5}
            if steps:
                losses.plot(steps, values, color=colour, label=f"{label} ({name})", **style)
        if run.entropy is not None and run.curve(held_out=False)[0] == _LOSSES[0]:
            lines.setdefault(run.entropy, []).append(shown)
    for entropy, own in lines.items():
        label = f"unigram entropy {entropy:.3f} ({', '.join(own)})"
        losses.axhline(entropy, color="grey", linestyle="--", linewidth=1, label=label)
    losses.set_xlabel("step")
    losses.set_ylabel("loss, nats")
    if losses.get_legend_handles_labels()[0]:
        losses.legend(fontsize="small")
