"""Show where each head of a model looks, and why.

Reads a text, or two as a pair. Writes an HTML page that is one file: heads as lines, all of them as
maps, and how a weight comes about, from the vectors q and k to the softmax. Without --html and
--json it prints a table of heads.

example:
  bert-jax attention --checkpoint runs/first "The cat sat." "It was tired." --html attention.html
"""

import json
from typing import Any

from bert_jax.cli.options import FromCheckpoint, Local, Positional, require_place_for
from bert_jax.cli.output import table
from bert_jax.config.fields import section, setting
from bert_jax.errors import UsageError
from bert_jax.files import write_whole


@section
class AttentionOptions(FromCheckpoint):
    text: Positional[tuple[str, ...]] = setting(
        (),
        'such as "The cat sat." "It was tired."',
    )
    html: Local | None = setting(
        None, "FILE: write the page to this file; an older one is replaced"
    )
    json: bool = setting(
        False, "print all numbers, rounded to six decimals: those that the page shows"
    )
    layers: str | None = setting(
        None, "N: some layers, from 1, as `--layers=1,2,12` (default: all of them)"
    )
    packed: bool = setting(
        False, "each text, of any number, is a sequence of its own in one packed row"
    )


def run(options: AttentionOptions) -> None:
    if not options.text:
        raise UsageError('name a text, such as "The cat sat on the mat."')
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
