"""Checks of the devices: which there are, their arithmetic, their memory."""

import statistics
from pathlib import Path

import jax
import jax.numpy as jnp

from bert_jax.memory.fit import room_beside_state, settle
from bert_jax.training.pretrain import demand
from bert_jax.training.saving import state_bytes
from bert_jax.update.flops import measured_flops
from bert_jax.update.state import TrainState
from bert_jax_lab.doctor.checked_run import Case
from bert_jax_lab.doctor.finding import Finding, failed, passed, warned
from bert_jax_lab.planning import topologies

_GIB = 2**30


def devices(case: Case) -> Finding:
    """The devices are those of the topology, and each multiplies two matrices rightly and fast."""
    try:
        found = jax.devices()
    except RuntimeError as error:
        case.met = None  # nothing else can be asked of jax
        return failed(
            str(error).splitlines()[0],
            "end what else uses the accelerator, or do without it: JAX_PLATFORMS=cpu",
        )
    kind = found[0].device_kind
    if case.topology_name is not None:
        config = case.known("config")
        slices = config.mesh.slices if config is not None else 1
        topology = topologies.parse(case.topology_name, slices=slices)
        if (len(found), kind) != (topology.devices, topology.chip.device_kind):
            return failed(
                f"{len(found)} x {kind}, where {topology.name} has {topology.devices} x "
                f"{topology.chip.device_kind} on {topology.hosts} host(s)",
                "run this on every host of that slice, with `distributed`; 'bert-jax plan' "
                "predicts a run on devices that are not here",
            )
    rates = {}
    for device in jax.local_devices():
        dtype = "float32" if device.platform == "cpu" else "bfloat16"
        rates[device], product = measured_flops(device, dtype, rounds=2)
        if not bool(jnp.all(product == len(product))):  # a power of two: exact in either type
            return failed(
                f"{device} multiplies two matrices and the result is wrong",
                "take another machine: this one would spoil every run",
            )
    usual = statistics.median(rates.values())
    slow = [device for device, rate in rates.items() if rate < usual / 2]
    if slow and found[0].platform != "cpu":  # devices of a CPU share its cores
        return warned(
            f"{', '.join(map(str, slow))}: {rates[slow[0]] / 1e12:.3g} TFLOP/s, the others "
            f"{usual / 1e12:.3g}",
            "end what else runs there, or take another machine: all devices wait for the slowest",
        )
    return passed(f"{len(found)} x {kind}; one product on each: {usual / 1e12:.3g} TFLOP/s")


def memory(case: Case) -> Finding:
    """The state and its save fit into the free memory; the check of the steps compiles them."""
    with jax.set_mesh(case.mesh):
        state = TrainState.abstract(case.config, case.mesh)
    case.state_bytes = state_bytes(state)
    room = room_beside_state(case.config, case.mesh)
    if room is not None and room <= 0:
        return failed(
            f"the state and its save need {-room / _GIB:.2f} GiB a device more than is free",
            "take a smaller model, more devices or more memory",
        )
    case.settled = settle(
        case.config,
        demand(case.mesh),
        mesh=case.mesh,
        directory=Path(case.workdir or "no-workdir"),
        choose=case.fit_memory,
        allowed=case.allowed_changes,
    )
    case.config = case.settled.config
    if room is None:
        return passed("not compared: these devices do not report their free memory")
    return passed(f"{room / _GIB:.2f} GiB a device are free in addition to the state and its save")
