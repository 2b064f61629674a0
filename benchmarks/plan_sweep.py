"""Plans of the large recipes on a list of TPU slices, kept as JSON in `docs/plans/`.

    python benchmarks/plan_sweep.py            # compile what is missing; hours on two cores
    python benchmarks/plan_sweep.py --list     # what there is
    python benchmarks/plan_sweep.py --again NAME ...   # compile these anew
    python benchmarks/plan_sweep.py --write-docs       # only copy figures into the pages

Each plan is one `bert-jax plan CONFIG --topology T --json` in a process of its own. A file that is
there is left alone, so that the sweep can be interrupted and goes on where it was. Its figures are
copied between the marks in the pages that quote them: configs/ and docs/tpu.md.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLANS = ROOT / "docs" / "plans"


@dataclass(frozen=True)
class Entry:
    config: str
    topology: str
    slices: int = 1
    # With the layers in a loop: for a compiler that needs hours for all of them written out.
    is_scanned: bool = False
    # Rows of an evaluation step, where a compiler does not take the config's own.
    evaluation_rows: int = 0

    @property
    def name(self) -> str:
        name = f"{self.config}-{self.topology.replace(':', '_')}"
        if self.slices > 1:
            name += f"-{self.slices}slices"
        return name + ("-scan" if self.is_scanned else "")

    @property
    def path(self) -> Path:
        return PLANS / f"{self.name}.json"

    @property
    def command(self) -> str:
        command = f"bert-jax plan {self.config} --topology {self.topology}"
        if self.slices > 1:
            command += f" --slices {self.slices}"
        if self.is_scanned:
            command += " --set compute.layers=scan"
        if self.evaluation_rows:
            command += f" --set evaluation.batch_size={self.evaluation_rows}"
        return command


# What is wanted first comes first.
ENTRIES = (
    Entry("bert_large_64core", "v3:4x8"),
    Entry("bert_large_v5e", "v5e:8x8"),
    Entry("bert_large_64core_2k", "v5e:8x8"),
    Entry("bert_large_64core_2k", "v3:4x8"),
    Entry("bert_base_64core", "v3:4x8"),
    Entry("bert_base_16chip", "v3:4x4"),
    Entry("bert_large_64chip", "v3:8x8"),
    Entry("bert_large_v4", "v4:4x4x4"),
    Entry("bert_large_v5p", "v5p:4x4x4"),
    Entry("bert_large_v6e", "v6e:8x8"),
    Entry("bert_large", "tpu7x:2x4x4", is_scanned=True),
    Entry("bert_large", "v5e:4x4", 2),
    Entry("bert_base", "v3:8x8"),
    Entry("bert_base", "v4:4x4x4"),
    Entry("bert_base", "v5e:8x8"),
    Entry("bert_base", "v5p:4x4x4"),
    Entry("bert_base", "v6e:8x8"),
    Entry("bert_base", "tpu7x:2x4x4"),
    Entry("bert_base", "v5e:4x4", 2),
    Entry("modern_base", "v4:4x4x4", is_scanned=True),
    Entry("modern_base", "v5e:8x8", is_scanned=True),
    Entry("modern_base", "v6e:8x8", is_scanned=True, evaluation_rows=512),
)


def compile_entry(entry: Entry) -> bool:
    began = time.monotonic()
    command = [sys.executable, "-m", "bert_jax", *entry.command.split()[1:], "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    minutes = (time.monotonic() - began) / 60
    if done.returncode not in (0, 2) or not done.stdout.startswith("{"):
        print(f"{entry.name}: failed with exit code {done.returncode} after {minutes:.1f} min")
        return False
    PLANS.mkdir(parents=True, exist_ok=True)
    unfinished = entry.path.with_suffix(".part")
    unfinished.write_text(done.stdout)
    unfinished.rename(entry.path)
    print(f"{entry.name}: done in {minutes:.1f} min", flush=True)
    return True


def load(entry: Entry) -> dict | None:
    return json.loads(entry.path.read_text()) if entry.path.exists() else None


# --- pages that quote the figures -----------------------------------------------------------------


def write_docs() -> None:
    for entry in ENTRIES:
        page = ROOT / "configs" / f"{entry.config}.py"
        plan = load(entry)
        if plan is not None and "<plan>" in page.read_text():
            _replace(page, "plan", "\n".join(_summary(entry, plan)))
    page = ROOT / "docs" / "tpu.md"
    _replace(page, "plans", "\n".join(_table()), html=True)
    if (plan := load(ENTRIES[0])) is not None:
        _replace(page, "large", "\n".join(_arithmetic(plan)), html=True)


def _summary(entry: Entry, plan: dict) -> list[str]:
    """Returns the figures of one plan, for the docstring of its config."""
    lines = [f"`{entry.command}` predicts:", ""]
    for phase in plan["phases"]:
        lines.append(
            f"- length {phase['sequence_length']}: {1e3 * phase['step_seconds']:.1f} ms a step "
            f"({1e3 * phase['compute_seconds']:.1f} compute + "
            f"{1e3 * phase['collective_seconds']:.1f} collectives), "
            f"MFU {100 * phase['mfu']:.0f} %, "
            f"{phase['memory_bytes'] / 2**30:.2f} GiB a device;"
        )
    lines.append(
        f"- in all {plan['total_hours']:.1f} hours ({plan['total_hours_overlapped']:.1f} if all "
        f"communication overlaps), {plan['chip_hours']:,.0f} chip-hours,"
    )
    cost = f"${plan['dollars']:,.0f}" if plan["dollars"] is not None else "price not known"
    lines.append(f"  {cost} on demand. libtpu {plan['versions']['libtpu']}.")
    return lines


def _table() -> list[str]:
    lines = [
        "| plan | devices | rows x length | memory, GiB a device | M cycles by schedule "
        "| estimated | collectives, ms (exposed) | step, ms | MFU | binds | whole recipe, hours "
        "| dollars |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in ENTRIES:
        plan = load(entry)
        if plan is None:
            continue
        slices = f"{plan['slices']} x " if plan["slices"] > 1 else ""
        where = f"`{plan['config']}`, {slices}{plan['topology']}"
        where += ", layers in a loop" if entry.is_scanned else ""
        where += f", {entry.evaluation_rows} rows evaluated" if entry.evaluation_rows else ""
        for i, phase in enumerate(plan["phases"]):
            shape = f"{phase['global_batch_size']:,} x {phase['sequence_length']:,}"
            total, dollars = "", ""
            if i == 0 and plan["fits"]:
                total = f"{plan['total_hours']:.1f} ({plan['total_hours_overlapped']:.1f})"
                dollars = f"{plan['dollars']:,.0f}" if plan["dollars"] is not None else "?"
            lines.append(
                f"| {where if i == 0 else ''} | {plan['devices'] if i == 0 else ''} "
                f"| {shape} | {phase['memory_bytes'] / 2**30:.2f} "
                f"| {_millions(phase.get('scheduled_cycles'))} "
                f"| {_millions(phase['estimated_cycles'])} "
                f"| {_collectives(phase)} | {1e3 * phase['step_seconds']:.1f} "
                f"| {100 * phase['mfu']:.0f} % | {phase['binds']} | {total} | {dollars} |"
                if phase["fits"]
                else f"| {where} | {plan['devices']} | {shape} | {_refused(phase)} {'| ' * 8}|"
            )
    return lines


def _refused(phase: dict) -> str:
    needed = phase["memory_bytes"]
    return "not compiled" if needed is None else f"needs {needed / 2**30:.2f}"


def _collectives(phase: dict) -> str:
    exposed = phase.get("exposed_seconds")
    beside = "" if exposed is None else f" ({1e3 * exposed:.1f})"
    return f"{1e3 * phase['collective_seconds']:.1f}{beside}"


def _millions(cycles: int | None) -> str:
    return "" if cycles is None else f"{cycles / 1e6:.1f}"


def _arithmetic(plan: dict) -> list[str]:
    """From cycles and bytes to hours, step by step."""
    from bert_jax_lab.planning.topologies import CHIPS

    chip = CHIPS[plan["topology"].partition(":")[0]]
    phases = plan["phases"]

    def row(name: str, cell) -> str:
        return f"| {name} | " + " | ".join(cell(phase) for phase in phases) + " |"

    def traffic(kind: str, phase: dict) -> str:
        rows = [c for c in phase["collectives"] if c["kind"] == kind]
        size, count = sum(c["bytes"] for c in rows), sum(c["count"] for c in rows)
        seconds = sum(c["seconds"] for c in rows)
        return f"{count} of {size / 1e6:,.1f} MB together: {1e3 * seconds:.2f} ms"

    lines = [
        row("", lambda p: f"length {p['sequence_length']}"),
        "|---" * (len(phases) + 1) + "|",
        row("scheduled cycles", lambda p: f"{p['scheduled_cycles']:,}"),
        row(
            f"over {chip.clock_hz / 1e9:.4f} GHz",
            lambda p: f"{1e3 * p['compute_seconds']:.2f} ms",
        ),
    ]
    kinds = sorted({c["kind"] for p in phases for c in p["collectives"]})
    n = max(c["group_size"] for p in phases for c in p["collectives"])
    for kind in kinds:
        twice = "2 x " if kind == "all-reduce" else ""
        rate = 2 * chip.link_bandwidth / 1e9
        lines.append(
            row(
                f"{kind}: bytes x {twice}{n - 1}/{n} over {rate:.0f} GB/s",
                lambda p, kind=kind: traffic(kind, p),
            )
        )
    lines += [
        row("step, nothing overlapped", lambda p: f"{1e3 * p['step_seconds']:.2f} ms"),
        row("times steps", lambda p: f"{p['steps']:,}: {p['hours']:.2f} h"),
        "",
    ]
    evaluations = sum(p["evaluation"]["hours"] for p in phases)
    parts = " + ".join(f"{p['hours']:.2f}" for p in phases)
    cost = f"${plan['dollars']:,.0f}" if plan["dollars"] is not None else "?"
    lines.append(
        f"{parts} + {evaluations:.2f} for evaluations = **{plan['total_hours']:.1f} hours**; "
        f"{plan['total_hours_overlapped']:.1f} if all communication overlaps. "
        f"{plan['chip_hours']:,.0f} chip-hours, {cost} on demand (prices of {plan['prices_date']})."
    )
    return lines


def _replace(page: Path, mark: str, text: str, *, html: bool = False) -> None:
    """Replaces by `text` what stands between the two marks."""
    start, end = (f"<!-- {mark} -->", f"<!-- /{mark} -->") if html else (f"<{mark}>", f"</{mark}>")
    before = page.read_text()
    after = re.sub(
        rf"({re.escape(start)}\n).*?(^[ ]*{re.escape(end)})",
        lambda m: f"{m[1]}{text}\n{m[2]}",
        before,
        flags=re.DOTALL | re.MULTILINE,
    )
    if after != before:
        page.write_text(after)
        print(f"wrote {page.relative_to(ROOT)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="names, and which are there")
    parser.add_argument("--again", nargs="*", default=[], metavar="NAME", help="compile anew")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="nothing but these")
    parser.add_argument("--write-docs", action="store_true", help="copy figures into the pages")
    arguments = parser.parse_args()
    names = {entry.name for entry in ENTRIES}
    for name in [*arguments.again, *(arguments.only or [])]:
        if name not in names:
            parser.error(f"no entry {name!r}; there are {', '.join(sorted(names))}")
    if arguments.write_docs:
        write_docs()
        return 0
    failed = 0
    for entry in ENTRIES:
        if arguments.list:
            print(f"{'there  ' if entry.path.exists() else 'missing'} {entry.name}")
        elif arguments.only and entry.name not in arguments.only:
            continue
        elif entry.path.exists() and entry.name not in arguments.again:
            print(f"{entry.name}: there")
        elif compile_entry(entry):
            write_docs()
        else:
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
