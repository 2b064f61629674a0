# bert-jax in an image, for one machine (launch/gke/Dockerfile is that of TPU slices).
#   docker build -t bert-jax .                          # CPU
#   docker build -t bert-jax --build-arg EXTRA=cuda .   # GPUs of NVIDIA; the driver is the host's
#   docker run --rm -v "$PWD:/work" bert-jax prepare --source texts --output corpus
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
# In exec form, so that SIGTERM reaches the trainer itself.
ENTRYPOINT ["bert-jax"]
