"""Peak rates of accelerators, by JAX's name for a device (`jax.Device.device_kind`).

`bert_jax_lab/planning/topologies.py` has the other properties of TPUs for plans.
"""

# Peak dense bf16 FLOP/s of one JAX device. TPU v2/v3 devices are cores, half a chip.
# Sources: cloud.google.com/tpu/docs/system-architecture-tpu-vm (v2 to v6e), NVIDIA data sheets.
PEAK_BF16 = {
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 1153.5e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
}
