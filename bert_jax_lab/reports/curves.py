"""The records of runs as a report needs them, and their curves in one picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax import config_loader
from bert_jax.workdir import goodput, log_reader, run_directory
from bert_jax.workdir.run_directory import CONFIG
from bert_jax_lab.reference_curves import recorded_runs
from bert_jax_lab.reference_curves.curve import Point
from bert_jax_lab.reference_curves.expectation import expectation_of, expected_points
from bert_jax_lab.reference_curves.published_losses import Published, published
from bert_jax_lab.reports import picture

# The loss that is drawn: the first that a run has. Only the first compares with the entropy.
_LOSSES = ("mlm_loss", "loss")


@dataclass(frozen=True)
class RunRecord:
    """All that a report says of one run."""

    name: str
    rows: list[dict[str, Any]]
    account: dict[str, Any]
    # What its config.json has.
    stored: dict[str, Any]
    directory: Path
    # As goodput.processes returns them.
    processes: list[dict[str, Any]]
    events: list[dict[str, Any]]
    # Step, lowest and highest held-out loss that is expected there, in the order of the steps; and
    # from what.
    expected: Sequence[tuple[int, float, float]] = ()
    expected_from: str = ""
    # What papers have at the end of runs like it.
    published: Sequence[Published] = ()

    @property
    def entropy(self) -> float | None:
        """The corpus's unigram entropy in nats: what a model knows that only counts tokens."""
        return run_directory.entropy_of(self.stored, self.rows)

    def curve(self, *, held_out: bool) -> tuple[str, list[int], list[float]]:
        """Returns which loss it is, the steps, and the loss there; empty where there is none."""
        rows = [row for row in self.rows if (row.get("split") is not None) == held_out]
        # Not those of single sources.
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
    expected_from, expected, reported = _expected(directory, stored, rows)
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
        reported,
    )


def _expected(
    directory: Path, stored: dict[str, Any], rows: list[dict[str, Any]]
) -> tuple[str, list[Point], list[Published]]:
    """Returns from what something is expected of a run of pre-training, the points of that, and
    what papers have.
    """
    entropy = (stored.get("corpus") or {}).get("unigram_entropy_nats")
    if entropy is None or stored.get("task"):
        return "", [], []
    config = config_loader.load_config_json(directory / CONFIG)
    expectation = expectation_of(
        config,
        entropy,
        [*recorded_runs.named(directory), *recorded_runs.shipped()],
        is_continued=run_directory.is_continued(directory),
    )
    return *expected_points(expectation, rows), published(config)


def describe(runs: Sequence[RunRecord]) -> str:
    """Returns in words what the picture of `draw` shows."""
    parts = []
    for run in runs:
        name, steps, losses = run.curve(held_out=True)
        kind = "held-out"
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
    """Draws the losses of all runs over their steps, and below them where their time went.

    Held-out losses are bold, those of training thin; the unigram entropy of a corpus is a dashed
    line, and what is expected of a run a band. `target` is a .png, .svg or .pdf file; the first
    two tell in words what they show.
    """
    parts = [p for p in goodput.PARTS if any(run.account["seconds"][p] > 0 for run in runs)]
    # A dollar sign would begin a formula.
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
            label = f"{shown}, {'held out' if held_out else 'training'}"
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
