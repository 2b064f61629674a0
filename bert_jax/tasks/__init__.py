"""What the encoder is used for once it is trained."""
