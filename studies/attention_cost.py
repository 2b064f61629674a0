"""What a layer's attention costs over length and width, against O(n^2 d).

bert-jax study attention_cost --workdir runs/attention_cost
"""

from bert_jax_lab.studies.study import CostStudy


def study() -> CostStudy:
    return CostStudy(
        title="The cost of attention over length and width",
        lengths=(64, 128, 256, 512, 1024, 2048),
        widths=(64, 128, 256, 512),
        kinds=("fused", "plain"),
        notes=(
            "Queries, keys, values, scores, softmax and the output map of one layer, forward and "
            "backward, one row. O(n^2 d) would be an exponent of 2 over the length and of 1 over "
            "the width; the four maps, O(n d^2), pull them towards 1 and 2 where n is small.",
        ),
    )


def paper() -> CostStudy:
    return CostStudy(
        title="The cost of attention over length and width, bfloat16",
        lengths=(128, 256, 512, 1024, 2048, 4096, 8192),
        widths=(256, 512, 768, 1024),
        rows=8,
        kinds=("fused", "plain"),
        dtype="bfloat16",
        repeats=20,
    )
