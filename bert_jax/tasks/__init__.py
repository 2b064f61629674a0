"""Fine-tuning tasks: their data, training, scores and predictions."""
