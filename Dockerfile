# bert-jax as an image.
#   docker build -t bert-jax .                          # CPU
#   docker build -t bert-jax --build-arg EXTRA=cuda .   # NVIDIA GPUs; the host has the driver
#   docker build -t bert-jax --build-arg EXTRA=tpu .    # TPUs on GKE (launch/jobset.yaml)
#   docker run --rm -v "$PWD:/work" bert-jax prepare --source texts --output-dir corpus
FROM python:3.12-slim
ARG EXTRA=formats
WORKDIR /opt/bert-jax
COPY pyproject.toml README.md LICENSE ./
COPY bert_jax ./bert_jax
COPY bert_jax_lab ./bert_jax_lab
COPY configs ./configs
COPY studies ./studies
RUN pip install --no-cache-dir ".[formats,$EXTRA]"
WORKDIR /work
ENV PYTHONUNBUFFERED=1
# Exec form, so that SIGTERM reaches the trainer.
ENTRYPOINT ["bert-jax"]
