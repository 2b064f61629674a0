"""Brings the pages of studies up to date with what is said of a table, without their runs.

    python docs/retell_studies.py

Reads the tables of `docs/science/*/study.md`, and writes anew what follows from them as they are
printed: the fitted law, the exponents of attention, and how many comparisons chance would put
beyond the spread. Exponents of memory differ in the second digit from those of all digits.
A new study's page comes from `docs/take_study.py`.
"""

import re
import sys
from pathlib import Path

from bert_jax_lab.studies import scaling_law, table

_SCIENCE = Path(__file__).parent / "science"
# Tokens of one update of the two studies of laws.
_TOKENS = 1024
# Seeds that a study's tasks have, where its losses have more.
_SEEDS_OF_TASKS = {"objectives": 2}


def rows_of(text: str, first: str) -> list[dict[str, str]]:
    """Returns the first table whose first column is `first`, a dict a row."""
    lines = text[text.index(f"| {first} |") :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def section(text: str, title: str, parts: list[str]) -> str:
    """Returns the text with other contents of the section `title`."""
    pattern = rf"(## {title}\n\n).*?(?=\n\n## |\Z)"
    return re.sub(pattern, lambda m: m[1] + "\n\n".join(parts).rstrip(), text, flags=re.DOTALL)


def law(text: str) -> str:
    """Returns the text with the law of all runs but the last one, which it predicts."""
    runs = []
    for row in rows_of(text, "variant")[:-1]:
        layers, width, length = row["variant"].replace("L", "").replace("H", "").split("-")
        d = int(width)
        # Matrices and vectors of the blocks, and the last norm.
        size = int(layers) * (12 * d**2 + 13 * d) + 2 * d
        updates = int(length[:-1]) * 1000 if length.endswith("M") else int(length)
        runs.append((size, updates * _TOKENS, float(row["MLM loss"])))
    sizes, tokens, losses = (list(column) for column in zip(*runs, strict=True))
    found = scaling_law.fit(sizes, tokens, losses)
    return section(text, "The law", table.law_section(found.as_json()))


def comparisons(text: str, *, with_previous: bool, most_seeds: int) -> str:
    """Returns the text with what is expected by chance of the comparisons in its table."""
    rows = [row for row in rows_of(text, "variant") if row["variant"] != "guessing"]
    seeds = [min(int(row["seeds"].split(" of ")[0]), most_seeds) for row in rows]
    sides = [
        (seeds[i], seeds[i - 1 if with_previous else 0])
        for i, row in enumerate(rows)
        if "the spread" in row["difference"]
    ]
    (line,) = table.by_chance(sides)
    parts = [part for part in text.split("\n\n") if not part.startswith("Beyond the spread:")]
    foot = next(i for i, part in enumerate(parts) if part.startswith("Held-out figures"))
    return "\n\n".join([*parts[:foot], table.FOOT, line, *parts[foot + 1 :]])


def exponents(text: str) -> str:
    """Returns the text with the exponents of the times and bytes in its table."""
    points = [
        {
            "attention": row["attention"],
            "length": int(row["length"].replace(",", "")),
            "width": int(re.findall(r"\d+", column)[0]),
            "seconds": float(cell.split(",")[0]) / 1e3,
            "bytes": float(cell.split(",")[1]) * 1e6,
        }
        for row in rows_of(text, "attention")
        for column, cell in row.items()
        if column.startswith("width")
    ]
    kinds = dict.fromkeys(point["attention"] for point in points)
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from benchmarks import attention_cost

    fits = {
        kind: attention_cost.fit([p for p in points if p["attention"] == kind]) for kind in kinds
    }
    return section(text, "Exponents", attention_cost.exponents(fits))


def main() -> None:
    for path in sorted(_SCIENCE.glob("*/study.md")):
        text, name = path.read_text(encoding="utf-8"), path.parent.name
        if name == "attention_cost":
            text = exponents(text)
        elif "## The law" in text:
            text = law(text)
        else:
            text = comparisons(
                text,
                with_previous=name in ("ladder", "recipe"),
                most_seeds=_SEEDS_OF_TASKS.get(name, 99),
            )
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
