"""Show the attention weights of each head on a text.

Reads one text, or two texts as a pair. Writes an HTML page in one file: the weights of each head,
heat maps of all heads, and the computation of a weight from query and key to softmax. Without
--html and --json it prints a table of heads.

example:
  bert-jax attention runs/first "The cat sat." "It was tired." --html attention.html
"""

import json
from pathlib import Path
from typing import Any

from bert_jax.cli.options import FromCheckpoint, Positional, require_place_for
from bert_jax.cli.output import table
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import UsageError
from bert_jax.files import write_whole


@section
class AttentionOptions(FromCheckpoint):
    text: Positional[tuple[str, ...]] = setting(
        REQUIRED, 'TEXT: one or two texts, for example "The cat sat." "It was tired."'
    )
    html: Path | None = setting(None, "FILE: HTML page to write; an existing file is replaced")
    json: bool = setting(False, "print the numbers of the page as JSON, rounded to six decimals")
    layers: str | None = setting(
        None, "N: layers, counted from 1, for example `--layers=1,2,12` (default: all)"
    )
    packed: bool = setting(False, "pack all texts into one row; attention does not cross texts")


def run(options: AttentionOptions) -> None:
    try:
        layers = [int(part) for part in (options.layers or "").split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"--layers {options.layers}: write numbers, as --layers=1,2") from None
    require_place_for(html=options.html)

    from bert_jax.data.tokenizer.tokenizer import load_tokenizer
    from bert_jax.pretrained.load import load_checkpoint
    from bert_jax_lab.probes.attention import AttentionProbe
    from bert_jax_lab.probes.attention_document import AttentionDocument

    source = load_checkpoint(
        options.checkpoint, allow_missing_heads=True, ignore_unexpected=options.ignore_unexpected
    )
    probe = AttentionProbe(source, load_tokenizer(source.tokenizer))
    document = AttentionDocument(
        probe(options.text, layers=layers, packed=options.packed),
        about={
            "checkpoint": str(options.checkpoint),
            "step": source.step,
            "texts": options.text,
            "position_embedding_type": source.config.model.position_embedding_type,
        },
    )
    if options.html is not None:
        from bert_jax_lab.reports import attention_page

        write_whole(options.html, attention_page.render(document.compact()))
    if options.json:
        print(json.dumps(document.in_full(), ensure_ascii=False))
    elif options.html is not None:
        size = options.html.stat().st_size
        print(
            f"wrote {options.html}: {size / 1e3:,.0f} kB, "
            f"{len(document.attention.tokens)} tokens, {len(document.statistics)} heads"
        )
    else:
        _print(document.statistics)


def _print(statistics: list[dict[str, Any]]) -> None:
    table(
        "Attention of each head, means over all tokens",
        ("layer", "head", "on [CLS]", "on [SEP]", "mean distance", "entropy, nats"),
        [
            (
                str(head["layer"]),
                str(head["head"]),
                *(f"{head[name]:.3f}" for name in ("cls_share", "sep_share")),
                *(f"{head[name]:.3f}" for name in ("mean_distance", "entropy")),
            )
            for head in statistics
        ],
    )
