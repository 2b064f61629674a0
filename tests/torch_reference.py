"""The implementation everybody trusts, fed with our batches: transformers' BERT on torch."""

import numpy as np
import torch
from transformers import BertConfig, BertForPreTraining

from bert_jax.config import ModelConfig
from bert_jax.interchange import huggingface_config
from bert_jax.interchange.families import BERT_FAMILY
from bert_jax.model.bert import Params


def torch_model(params: Params, config: ModelConfig) -> BertForPreTraining:
    """Their model with our weights, without dropout, in float64: what differs is our rounding."""
    their_config = BertConfig(**huggingface_config.config_of(config))
    their_config._attn_implementation = "eager"
    model = BertForPreTraining(their_config)
    tensors = {n: torch.tensor(t) for n, t in BERT_FAMILY.to_tensors(params).items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert {n.split(".")[-2] for n in missing} <= {"decoder", "embeddings"}, missing
    model.tie_weights()
    return model.double().eval()


def torch_loss(model: BertForPreTraining, batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Their outputs, with labels scattered from our gathered targets: -100 where nothing counts."""
    ids = torch.tensor(batch["input_ids"], dtype=torch.long)
    labels = torch.full_like(ids, -100)
    rows, places = np.nonzero(batch["mlm_weights"])
    labels[rows, batch["mlm_positions"][rows, places]] = torch.tensor(
        batch["mlm_targets"][rows, places], dtype=torch.long
    )
    out = model(
        input_ids=ids,
        token_type_ids=torch.tensor(batch["token_type_ids"], dtype=torch.long),
        attention_mask=torch.tensor(batch["sequence_ids"], dtype=torch.long),
        labels=labels,
        next_sentence_label=torch.tensor(batch["nsp_labels"][:, 0], dtype=torch.long),
    )
    return {"loss": out.loss, "mlm": out.prediction_logits, "nsp": out.seq_relationship_logits}
