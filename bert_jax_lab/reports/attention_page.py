"""The page that shows attention: heads as lines, all heads as maps, and each weight step by step.

The script of the page computes all numbers from the stored queries and keys in double precision:
q.k / sqrt(d), the scores that positions add, the softmax.
"""

from collections.abc import Mapping
from typing import Any

from bert_jax_lab.reports import page

_PARTS = """\
<section class="controls" aria-label="Choose">
<label>Layer <select id="layer"></select></label>
<label>Head <select id="head"></select></label>
<label>Token <select id="token"></select></label>
</section>
<div class="views">
<section aria-labelledby="overview-heading">
<h2 id="overview-heading">All heads</h2>
<p class="hint">A map for each head: a row for each query token, a column for each key token;
stronger color is more attention. Choose a head by a click or by arrow keys. The table below has
numbers for each head.</p>
<div id="overview" class="drawing"><canvas id="maps" tabindex="0"
role="application" aria-label="Maps of all heads: arrow keys choose one"
aria-describedby="overview-status"></canvas></div>
<p id="overview-status" class="status" aria-live="polite"></p>
</section>
<section aria-labelledby="lines-heading">
<h2 id="lines-heading">Lines</h2>
<p class="hint">From each token on the left to the tokens on the right that it attends to. A click
or Enter on a token on the left chooses it.</p>
<div class="options"><label><input type="checkbox" id="all" checked> lines of all tokens</label>
<button type="button" id="every">All heads</button></div>
<fieldset id="drawn"><legend>Heads</legend></fieldset>
<div id="lines" class="drawing"><ol id="queries" aria-label="Query tokens"></ol>
<canvas id="links" aria-hidden="true"></canvas>
<ol id="keys" aria-label="Key tokens"></ol></div>
<p id="lines-status" class="status" aria-live="polite"></p>
</section>
</div>
<section aria-labelledby="neurons-heading">
<h2 id="neurons-heading">Step by step</h2>
<p class="hint">The vector q of the chosen token and the vector k of each token that it attends to,
number by number; their elementwise product; its sum over √d; the softmax of these scores.
<span class="plus">positive</span>, <span class="minus">negative</span>; stronger color is a larger
magnitude. A click or Enter on a token shows its numbers below.</p>
<div class="options"><label>Order <select id="order"><option value="row">as in the text</option>
<option value="weight">largest weight first</option></select></label></div>
<div class="scroll high" tabindex="0" role="region" aria-label="Step by step"><table id="neurons">
<thead></thead><tbody></tbody></table></div>
<p id="neuron-status" class="status" aria-live="polite"></p>
<h3 id="pair-heading">One pair</h3>
<p id="pair" aria-live="polite"></p>
<details id="pair-numbers" open><summary>All numbers of the pair</summary><div class="scroll high"
tabindex="0" role="region" aria-label="All numbers of the pair"><table id="pair-table"><thead><tr>
<th scope="col">dimension</th><th scope="col">q</th><th scope="col">k</th><th scope="col">q × k</th>
</tr></thead><tbody></tbody></table></div></details>
</section>
"""
_STATISTICS = """\
The shares of attention to [CLS] and [SEP]; the mean distance of the keys, in tokens; and the
entropy of the weights: 0 if a head attends to one token, the logarithm of the number of tokens if
all weights are equal. A click on a column sorts the table, a click on a layer chooses the head.
"""
_COLUMNS = ("layer", "head", "share on [CLS]", "share on [SEP]", "mean distance", "entropy, nats")


def render(document: Mapping[str, Any]) -> str:
    """Returns the page of a document (`AttentionDocument.compact` in probes/ makes it)."""
    texts = " | ".join(document["texts"])
    table = page.table(
        _COLUMNS,
        [
            [
                head["layer"],
                head["head"],
                *(f"{head[name]:.3f}" for name in ("cls_share", "sep_share")),
                *(f"{head[name]:.3f}" for name in ("mean_distance", "entropy")),
            ]
            for head in document["statistics"]
        ],
        caption="Means over all tokens of the row",
    )
    body = (
        f'<p class="about">{page.text(_about(document))}</p>\n'
        f'<blockquote dir="auto">{page.text(texts)}</blockquote>\n'
        f'{_PARTS}<section id="statistics" aria-labelledby="statistics-heading">'
        f'<h2 id="statistics-heading">Heads in numbers</h2>\n<p class="hint">{_STATISTICS}</p>\n'
        f"{table}</section>"
    )
    return page.render(
        title=f"Attention: {texts[:60]}{'…' if len(texts) > 60 else ''}",
        body=body,
        data=document,
        scripts=["attention_numbers.js", "attention_steps.js", "attention.js"],
        styles=["attention.css"],
    )


def _about(document: Mapping[str, Any]) -> str:
    # An exported model has no step.
    step = f", step {document['step']:,}" if document["step"] else ""
    return (
        f"{document['checkpoint']}{step}; "
        f"{len(document['tokens'])} tokens, {len(document['layers'])} layers of "
        f"{document['num_heads']} heads of {document['head_size']} numbers; positions: "
        f"{document['position_embedding_type']}. Computed and stored in float32."
    )
