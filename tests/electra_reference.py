"""transformers' two ELECTRA models on torch, with our weights, tied as the original ties them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import ElectraForMaskedLM, ElectraForPreTraining

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.interchange import huggingface
from bert_jax.interchange.electra_pair import FOLDER
from tests.models import vocabulary


class Pair(torch.nn.Module):
    """Both models in float64: what differs is our rounding."""

    def __init__(self, directory: Path, sharing: str):
        super().__init__()
        options: Any = {"attn_implementation": "eager"}
        self.discriminator = ElectraForPreTraining.from_pretrained(directory, **options)
        self.generator = ElectraForMaskedLM.from_pretrained(directory / FOLDER, **options)
        ours, theirs = self.discriminator.electra.embeddings, self.generator.electra.embeddings
        tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        for name in {"all": (*tables, "LayerNorm"), "embeddings": tables, "none": ()}[sharing]:
            setattr(theirs, name, getattr(ours, name))
        for table in (ours.word_embeddings, theirs.word_embeddings):
            table.padding_idx = (
                None  # a sample may be [PAD], and torch would leave out its gradient
            )
        self.generator.generator_lm_head.weight = theirs.word_embeddings.weight
        self.double().eval()

    def loss(self, batch: dict[str, np.ndarray], samples: np.ndarray) -> dict[str, torch.Tensor]:
        """The loss of google-research/electra: the mean over masked positions, and 50 times the
        mean over all tokens of a row that has these samples.
        """
        inputs = {
            "token_type_ids": torch.tensor(batch["token_type_ids"], dtype=torch.long),
            "attention_mask": torch.tensor(batch["sequence_ids"], dtype=torch.long),
        }
        ids = torch.tensor(batch["input_ids"], dtype=torch.long)
        rows, slots = np.nonzero(batch["mlm_weights"])
        places = batch["mlm_positions"][rows, slots]
        targets = torch.tensor(batch["mlm_targets"][rows, slots], dtype=torch.long)
        scores = self.generator(input_ids=ids, **inputs).logits[rows, places]
        sampled = torch.tensor(samples[rows, slots], dtype=torch.long)
        corrupted, labels = ids.clone(), torch.zeros(ids.shape, dtype=torch.double)
        corrupted[rows, places] = sampled
        labels[rows, places] = (sampled != targets).double()
        replaced = self.discriminator(input_ids=corrupted, **inputs).logits
        is_token = torch.tensor(batch["sequence_ids"]) > 0
        masked = functional.cross_entropy(scores, targets)
        found = functional.binary_cross_entropy_with_logits(replaced[is_token], labels[is_token])
        return {"loss": masked + 50 * found, "mlm": scores, "replaced": replaced}


def pair(directory: Path, params, model: ModelConfig, head: HeadConfig) -> Pair:
    tokenizer = vocabulary(directory / "words", size=model.vocab_size)
    huggingface.write(directory / "hf", params, model, head=head, tokenizer=tokenizer)
    return Pair(directory / "hf", model.embedding_sharing)
