"""Checks of the devices: their kind and number, their arithmetic, their memory."""

import statistics
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.config import TrainConfig
from bert_jax.memory.fit import room_beside_state, settle
from bert_jax.training.pretrain import demand
from bert_jax.training.saving import state_bytes
from bert_jax.update.flops import measured_flops
from bert_jax.update.state import TrainState
from bert_jax_lab.doctor.arguments import Arguments
from bert_jax_lab.doctor.finding import Finding, failed, passed, warned
from bert_jax_lab.planning import topologies

_GIB = 2**30


class DeviceMemory(NamedTuple):
    """Settings that fit into the memory of the devices, and the size of a checkpoint."""

    # With the settings that `fit_memory` chose.
    config: TrainConfig
    # Bytes of a checkpoint.
    state_bytes: int


def devices(name: str | None, config: TrainConfig | None) -> tuple[Finding, bool | None]:
    """The devices match the named topology, and each multiplies two matrices correctly and fast.
    Returns True if there are devices.
    """
    try:
        found = jax.devices()
    except RuntimeError as error:
        remedy = "end other processes on the accelerator, or use the CPU: JAX_PLATFORMS=cpu"
        return failed(str(error).splitlines()[0], remedy), None
    return _devices(found, name, config), True


def _devices(found: list[Any], name: str | None, config: TrainConfig | None) -> Finding:
    kind = found[0].device_kind
    if name is not None:
        slices = config.mesh.slices if config is not None else 1
        topology = topologies.parse(name, slices=slices)
        if (len(found), kind) != (topology.devices, topology.chip.device_kind):
            return failed(
                f"{len(found)} x {kind}, but {topology.name} has {topology.devices} x "
                f"{topology.chip.device_kind} on {topology.hosts} host(s)",
                "run the command on every host of the slice, with `distributed`; 'bert-jax plan' "
                "predicts a run on other devices",
            )
    rates = {}
    for device in jax.local_devices():
        dtype = "float32" if device.platform == "cpu" else "bfloat16"
        rates[device], product = measured_flops(device, dtype, rounds=2)
        if not bool(jnp.all(product == len(product))):  # a power of two: exact in both types
            return failed(
                f"{device} computes a wrong product of two matrices",
                "use another machine: all results of this one are unreliable",
            )
    usual = statistics.median(rates.values())
    slow = [device for device, rate in rates.items() if rate < usual / 2]
    if slow and found[0].platform != "cpu":  # devices of a CPU share cores
        return warned(
            f"{', '.join(map(str, slow))}: {rates[slow[0]] / 1e12:.3g} TFLOP/s, other devices "
            f"{usual / 1e12:.3g}",
            "end other processes there, or use another machine: all devices wait for the slowest",
        )
    return passed(f"{len(found)} x {kind}; a matmul on each: {usual / 1e12:.3g} TFLOP/s")


def memory(arguments: Arguments, config: TrainConfig, mesh: Mesh) -> tuple[Finding, DeviceMemory]:
    """The state and a save of it fit into the free memory; the check of the steps compiles them."""
    with jax.set_mesh(mesh):
        state = TrainState.abstract(config, mesh)
    room = room_beside_state(config, mesh)
    settled = settle(
        config,
        demand(mesh),
        mesh=mesh,
        directory=Path(arguments.workdir or "no-workdir"),
        choose=arguments.fit_memory,
        allowed=arguments.allowed_changes,
    )
    found = DeviceMemory(settled.config, state_bytes(state))
    if room is None:
        return passed("not compared: these devices do not report their free memory"), found
    if room <= 0:
        problem = failed(
            f"the state and a save of it need {-room / _GIB:.2f} GiB per device more than is free",
            "use a smaller model, more devices or more memory",
        )
        return problem, found
    free = f"{room / _GIB:.2f} GiB per device are free in addition to the state and a save of it"
    return passed(free), found
