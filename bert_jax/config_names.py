"""Finds the fields of a config that a name may mean: what other programs and papers call them."""

import difflib
from collections.abc import Iterable

# The end of a field's path -> what else people call it. Dashes are written as underscores.
CALLED: dict[str, tuple[str, ...]] = {
    "objective": ("loss",),
    "log_every_steps": ("logging_steps", "log_steps", "log_every", "log_interval"),
    "vocab_size": ("vocab", "n_vocab"),
    "hidden_size": ("hidden", "width", "dim", "d_model", "hidden_dim", "n_embd"),
    "num_hidden_layers": ("layers", "num_layers", "n_layers", "n_layer", "depth"),
    "num_attention_heads": ("heads", "num_heads", "n_heads", "n_head"),
    "intermediate_size": ("ffn", "ffn_dim", "d_ff", "mlp_dim", "feed_forward_size"),
    "hidden_act": ("activation", "act"),
    "hidden_dropout_prob": ("dropout", "hidden_dropout", "dropout_rate"),
    "attention_probs_dropout_prob": ("attention_dropout", "attn_dropout"),
    "max_position_embeddings": ("max_positions", "n_positions"),
    "position_embedding_type": ("positions", "position", "pos_emb"),
    "compute.dtype": ("precision", "mixed_precision", "bf16", "fp16"),
    "compute.remat": ("gradient_checkpointing", "checkpointing", "rematerialisation"),
    "compute.attention": ("attn_implementation", "flash_attention"),
    "data.masked_lm_prob": ("mlm_probability", "mask_rate", "mask_prob", "mlm_prob"),
    "data.num_workers": ("workers", "dataloader_num_workers"),
    "optimizer.kind": ("optimizer", "optimiser", "optim"),
    "optimizer.schedule": ("scheduler", "lr_scheduler", "lr_scheduler_type", "lr_schedule"),
    "learning_rate": ("lr", "rate", "max_lr", "peak_lr"),
    "warmup_steps": ("warmup", "num_warmup_steps", "warmup_ratio", "warmup_proportion"),
    "beta1": ("adam_beta1",),
    "beta2": ("adam_beta2",),
    "epsilon": ("eps", "adam_epsilon"),
    "weight_decay": ("wd", "decay"),
    "clip_norm": ("clip", "grad_clip", "max_grad_norm", "gradient_clip"),
    "gradient_accumulation_steps": ("accumulation", "grad_accum", "accumulate", "microbatches"),
    "sequence_length": ("seq_len", "seq_length", "max_seq_length", "max_length", "length"),
    "phases.N.steps": ("max_steps", "num_steps", "total_steps", "train_steps", "num_train_steps",
                       "iterations", "iters", "updates"),
    "global_batch_size": ("batch_size", "batch", "bs", "train_batch_size",
                          "per_device_train_batch_size"),
    "max_predictions": ("max_predictions_per_seq",),
    "evaluation.every_steps": ("eval_steps", "eval_every", "eval_interval"),
    "evaluation.batch_size": ("eval_batch_size", "per_device_eval_batch_size"),
    "checkpoint.every_steps": ("save_steps", "save_every", "save_interval"),
    "checkpoint.keep_last": ("save_total_limit", "keep"),
}  # fmt: skip


def meant(name: str, paths: Iterable[str]) -> list[str]:
    """Returns those of the dotted `paths` that `name` may mean, or nothing.

    They end in it, or people call them so. A section that `name` begins with counts for nothing:
    it may be the wrong one.
    """
    last = name.strip().lower().replace("-", "_").rpartition(".")[2]
    called = [end for end, names in CALLED.items() if last in names]
    numbered = {path: _numbered(path) for path in paths}
    by_call = [p for p, n in numbered.items() if any(f".{n}".endswith(f".{c}") for c in called)]
    by_name = [p for p in numbered if p.rpartition(".")[2] == last]
    return list(dict.fromkeys([*by_call, *by_name]))


def synonyms(path: str) -> set[str]:
    """Returns the last name of a field, and what else people call it."""
    numbered = f".{_numbered(path)}"
    called = [names for end, names in CALLED.items() if numbered.endswith(f".{end}")]
    return {path.rpartition(".")[2], *(name for names in called for name in names)}


def suggestion(name: str, paths: Iterable[str], here: Iterable[str] = ()) -> str:
    """Returns what to say after an unknown `name`: which of the dotted `paths` it may mean.

    `here` are the names of the section where it stands: without anything better, those are listed.
    """
    paths, here = list(paths), list(here)
    if name.rpartition(".")[2] in ("epoch", "epochs", "num_train_epochs"):
        return " A run counts updates, not epochs: phases.0.steps."
    found = meant(name, paths)
    if not found:
        last = name.rpartition(".")[2]
        found = difflib.get_close_matches(last, here, n=1, cutoff=0.5)
        ends = dict.fromkeys(path.rpartition(".")[2] for path in paths)
        close = found or difflib.get_close_matches(last, ends, n=1, cutoff=0.75)
        found = found or [path for path in paths if path.rpartition(".")[2] in close]
    if found:
        return f" Did you mean {' or '.join(map(repr, found[:3]))}?"
    return f" Fields here: {', '.join(here or paths)}."


def _numbered(path: str) -> str:
    """Returns the path with N for the number of a phase."""
    return ".".join("N" if part.isdigit() else part for part in path.split("."))
