"""Reading compiled TPU programs: bytes and collectives, in excerpts of real programs."""

# ruff: noqa: E501 (lines of compiled programs are long)

import pytest

from bert_jax_lab.planning import collectives, hlo, schedule, schedule_files
from bert_jax_lab.planning.collectives import Collective
from bert_jax_lab.planning.topologies import CHIPS

_CYCLES = 'backend_config={"flag_configs":[],"estimated_cycles":"%d"}'
_TILED = (
    'backend_config={"window_config":{"iteration_bounds":["1"],'
    '"estimated_cycles":"70","estimated_scoped":"0"}}'
)


def program(entry: str, others: str = "") -> str:
    return f"HloModule jit_step, is_scheduled=true\n\n{others}\nENTRY %main.9 (p: f32[]) -> f32[] {{\n{entry}}}\n"


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """Returns a function of a program that counts its collectives."""
    monkeypatch.setattr(schedule_files, "_folder", tmp_path)
    (tmp_path / "12-work.1-34-final_bundles.txt").write_text("  0x0   :  { %s1 = inlined }\n")

    def count(entry: str, others: str = ""):
        work = f"  %work.1 = f32[8,128]{{1,0:T(8,128)S(1)}} fusion(%p), kind=kLoop, calls=%c, {_TILED}\n"
        return schedule.cost(program(entry + work, others), CHIPS["v3"], lambda _: 0.0).collectives

    return count


@pytest.mark.parametrize(
    ("notation", "group"),
    [
        ("replica_groups={{0,2},{1,3}}", (0, 2)),
        ("replica_groups=[4,2]<=[8]", (0, 1)),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", (0, 2, 4, 6)),
        ("replica_groups=mesh['a'=2,'b'=4] {'b'}", (0, 1, 2, 3)),
        ("replica_groups=mesh['a'=2,'b'=4] {'a'}", (0, 4)),
        ("replica_groups=mesh['a'=8] {'a':(2)2}", (0, 2)),
        ("source_target_pairs={{3,4},{4,5}}", (3, 4)),
        ("replica_groups={}", ()),
    ],
)
def test_replica_groups(notation, group):
    assert collectives.parse_group(f"channel_id=1, {notation}, dimensions={{0}}") == group


def moved(text: str) -> int:
    """Returns the bytes that all instructions with an estimate move."""
    computations, entry = hlo.computations_of(text)
    assert entry is not None
    shapes = {i.name: i.shape for i in computations[entry]}
    return sum(
        hlo.moved_bytes(i, shapes, computations)
        for i in computations[entry]
        if "estimated_cycles" in i.rest
    )


def test_a_slice_of_an_array_moves_only_the_slice():
    """An iteration updates one layer of a stack in place, and reads another."""
    text = program(
        f"""\
  %stack = f32[2,8,128]{{2,1,0:T(8,128)}} parameter(0)
  %near = f32[8,128]{{1,0:T(8,128)S(3)}} parameter(1)
  %i = s32[]{{:T(128)S(6)}} parameter(2)
  %fusion.1 = (f32[2,8,128]{{2,1,0:T(8,128)}}, f32[8,128]{{1,0:T(8,128)}}) fusion(%stack, %i, %near), kind=kLoop, calls=%updated, {_CYCLES % 1}
  %fusion.2 = f32[1,8,128]{{2,1,0:T(8,128)S(3)}} fusion(%stack, %i), kind=kLoop, calls=%sliced, {_CYCLES % 1}
  %dynamic-slice.9 = f32[1,8,128]{{2,1,0:T(8,128)}} dynamic-slice(%stack, %i, %i, %i), dynamic_slice_sizes={{1,8,128}}, {_CYCLES % 1}
  %fusion.3 = f32[1,8,128]{{2,1,0:T(8,128)S(3)}} fusion(%stack, %i), kind=kLoop, calls=%summed, {_CYCLES % 1}
  %fusion.4 = f32[8,128]{{1,0:T(8,128)S(3)}} fusion(%stack, %i), kind=kLoop, calls=%total, {_CYCLES % 1}
""",
        """\
%copy_fusion (input.88: f32[2,8,128]) -> f32[2,8,128] {
  %input.88 = f32[2,8,128]{2,1,0:T(8,128)} parameter(0)
  ROOT %copy.2020 = f32[2,8,128]{2,1,0:T(4,128)} copy(%input.88)
}

%updated (param_0.7: f32[2,8,128], param_1.8: s32[], param_2.9: f32[8,128]) -> (f32[2,8,128], f32[8,128]) {
  %param_0.7 = f32[2,8,128]{2,1,0:T(8,128)} parameter(0)
  %fusion.2208 = f32[2,8,128]{2,1,0:T(4,128)} fusion(%param_0.7), kind=kLoop, calls=%copy_fusion
  %param_2.9 = f32[8,128]{1,0:T(8,128)S(3)} parameter(2)
  %bitcast.2 = f32[1,8,128]{2,1,0:T(8,128)} bitcast(%param_2.9)
  %param_1.8 = s32[]{:T(128)} parameter(1)
  %constant.1 = s32[]{:T(128)} constant(0)
  %dynamic-update-slice.4 = f32[2,8,128]{2,1,0:T(8,128)} dynamic-update-slice(%fusion.2208, %bitcast.2, %param_1.8, %constant.1, /*index=4*/%constant.1)
  %bitcast.3 = f32[2,8,128]{2,1,0:T(8,128)} bitcast(%dynamic-update-slice.4)
  ROOT %tuple.5 = (f32[2,8,128]{2,1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)}) tuple(%bitcast.3, %param_2.9)
}

%sliced (param_0.1: f32[2,8,128], param_1.2: s32[]) -> f32[1,8,128] {
  %param_1.2 = s32[]{:T(128)} parameter(1)
  %param_0.1 = f32[2,8,128]{2,1,0:T(8,128)} parameter(0)
  ROOT %dynamic-slice.2 = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%param_0.1, %param_1.2, %param_1.2, %param_1.2), dynamic_slice_sizes={1,8,128}
}

%total_fusion (input.90: f32[2,8,128]) -> f32[8,128] {
  %input.90 = f32[2,8,128]{2,1,0:T(8,128)} parameter(0)
  ROOT %reduce.9 = f32[8,128]{1,0:T(8,128)} reduce(%input.90, %input.90), dimensions={0}, to_apply=%add
}

%total (param_0.5: f32[2,8,128], param_1.6: s32[]) -> f32[8,128] {
  %param_0.5 = f32[2,8,128]{2,1,0:T(8,128)} parameter(0)
  %fusion.2210 = f32[8,128]{1,0:T(8,128)} fusion(%param_0.5), kind=kLoop, calls=%total_fusion
  %param_1.6 = s32[]{:T(128)} parameter(1)
  ROOT %dynamic-slice.7 = f32[8,128]{1,0:T(8,128)} dynamic-slice(%fusion.2210, %param_1.6, %param_1.6), dynamic_slice_sizes={8,128}
}

%summed (param_0.3: f32[2,8,128], param_1.4: s32[]) -> f32[1,8,128] {
  %param_0.3 = f32[2,8,128]{2,1,0:T(8,128)} parameter(0)
  %param_1.4 = s32[]{:T(128)} parameter(1)
  %dynamic-slice.5 = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%param_0.3, %param_1.4, %param_1.4, %param_1.4), dynamic_slice_sizes={1,8,128}
  %reduce.6 = f32[8,128]{1,0:T(8,128)} reduce(%param_0.3, %param_1.4), dimensions={0}, to_apply=%add
  ROOT %add.7 = f32[1,8,128]{2,1,0:T(8,128)} add(%dynamic-slice.5, %reduce.6)
}
""",
    )
    one, stack = 4 * 8 * 128, 2 * 4 * 8 * 128
    # Updated while a whole layer is read; read; read and written; read twice as a whole.
    assert moved(text) == 2 * one + one + 2 * one + 2 * stack


@pytest.mark.parametrize(
    ("called", "arrays"), [("async_collective_fusion.4", 2), ("fused_computation.4", 2 + 2)]
)
def test_the_array_of_a_collective_is_passed_on_in_place(called, arrays):
    """The fusion reads one array, writes another, and passes a third through."""
    far = "f32[8,128]{1,0:T(8,128)}"
    text = program(
        f"""\
  %gathered = {far} parameter(0)
  %n = u32[]{{:S(2)}} parameter(1)
  %q = {far} parameter(2)
  ROOT %fusion.1 = ({far}, {far}, u32[]{{:S(2)}}) fusion(%gathered, %n, %q), kind=kOutput, output_to_operand_aliasing={{{{1}}: (0, {{}}), {{2}}: (1, {{}})}}, calls=%{called}, {_CYCLES % 1}
"""
    )
    assert moved(text) == arrays * 4 * 8 * 128


def test_collectives_of_a_plain_program(counted):
    found = counted("""\
  %p = bf16[512,16]{0,1:T(8,128)(2,1)} parameter(0)
  %g = f32[1024]{0:T(1024)} parameter(1)
  %start = (bf16[512,16]{0,1:T(8,128)(2,1)}, bf16[512,1024]{0,1:T(8,128)(2,1)}) all-gather-start(%p), channel_id=2, replica_groups=mesh['axis_0'=64] {'axis_0'}, dimensions={1}
  %done = bf16[512,1024]{0,1:T(8,128)(2,1)} all-gather-done(%start)
  %all-reduce.1 = (f32[1024]{0:T(1024)}, f32[]{:T(128)}) all-reduce(%g, %s), channel_id=3, replica_groups=[2,4]<=[8], to_apply=%add
  %reduce-scatter.1 = f32[256]{0:T(256)} reduce-scatter(%g), channel_id=4, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}, to_apply=%add
""")
    assert found == {
        Collective("all-gather", 512 * 1024 * 2, tuple(range(64))): 1,
        Collective("all-reduce", 1024 * 4 + 4, (0, 1, 2, 3)): 1,
        Collective("reduce-scatter", 1024 * 4, (0, 1, 2, 3)): 1,
    }


def test_a_sliced_all_reduce_is_a_reduce_scatter(counted):
    """As written by the compilers of v2 and v3."""
    found = counted(
        "  %p = bf16[512,1024]{0,1:T(8,128)(2,1)} parameter(0)\n"
        "  %fusion.1 = bf16[512,16]{0,1:T(8,128)(2,1)} fusion(%p), kind=kCustom, "
        "calls=%all-reduce-scatter\n",
        """\
%all-reduce-scatter (input: bf16[512,1024]) -> bf16[512,16] {
  %input = bf16[512,1024]{0,1:T(8,128)(2,1)} parameter(0)
  %all-reduce.69 = bf16[512,1024]{0,1:T(8,128)(2,1)} all-reduce(%input), channel_id=22, replica_groups={{0,1}}, to_apply=%add
  %partition-id.1 = u32[] partition-id()
  ROOT %dynamic-slice.84 = bf16[512,16]{0,1:T(8,128)(2,1)} dynamic-slice(%all-reduce.69, %partition-id.1), dynamic_slice_sizes={512,16}
}
""",
    )
    assert found == {Collective("reduce-scatter", 512 * 1024 * 2, (0, 1)): 1}


def test_collectives_with_one_channel_are_counted_separately(counted):
    """As for a `shard_map`: all of its collectives have channel 1."""
    scatter = """\
%%all-reduce-scatter.%d (a: f32[32,128]) -> f32[8,128] {
  %%a = f32[32,128]{1,0:T(8,128)} parameter(0)
  %%all-reduce.%d = f32[32,128]{1,0:T(8,128)} all-reduce(%%a), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%%add
  ROOT %%d = f32[8,128]{1,0:T(8,128)} dynamic-slice(%%all-reduce.%d, %%i, %%z), dynamic_slice_sizes={8,128}
}
"""
    found = counted(
        "".join(
            f"  %all-gather.{i} = f32[32,128]{{1,0:T(8,128)}} all-gather(%p), channel_id=1, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}\n"
            f"  %fusion.{i} = f32[8,128]{{1,0}} fusion(%all-gather.{i}), kind=kCustom, calls=%all-reduce-scatter.{i}\n"
            for i in range(3)
        ),
        "".join(scatter % (i, i, i) for i in range(3)),
    )
    size, group = 32 * 128 * 4, (0, 1, 2, 3)
    assert found == {
        Collective("all-gather", size, group): 3,
        Collective("reduce-scatter", size, group): 3,
    }


def test_an_asynchronous_collective_in_several_fusions_is_one(counted):
    """As written by the compilers of v5e and v6e: start, pieces next to computation, end."""
    piece = """\
%%async.%d (p: bf16[16,64]) -> bf16[16,256] {
  %%p = bf16[16,64]{1,0} parameter(0)
  ROOT %%all-gather.%d = bf16[16,256]{1,0:T(8,128)(2,1)S(1)} all-gather(%%p), channel_id=7, replica_groups={{0,1,2,3}}, dimensions={1}
}
"""
    found = counted(
        "".join(
            f"  %fusion.{i} = bf16[16,256]{{1,0}} fusion(%p), kind=kCustom, calls=%async.{i}, "
            f"{_CYCLES % 5}\n"
            for i in range(3)
        ),
        "".join(piece % (i, i) for i in range(3)),
    )
    assert found == {Collective("all-gather", 16 * 256 * 2, (0, 1, 2, 3)): 1}


def test_a_collective_on_another_core_is_counted(counted):
    """As written by the compilers of v5p and newer."""
    found = counted(
        '  %start = ((), (), (s32[8192]{0:T(1024)})) async-start(), async_execution_thread="sparsecore", calls=%async.6\n'
        "  %update = ((f32[1024,128]{1,0}), f32[8192,128]{1,0}) async-update(%start, %p)\n"
        "  %done = f32[8192,128]{1,0} async-done(%update)\n",
        """\
%called.15 (p: f32[1024,128]) -> f32[8192,128] {
  %p = f32[1024,128]{1,0:T(8,128)} parameter(0)
  ROOT %all-gather.13 = f32[8192,128]{1,0:T(8,128)} all-gather(%p), channel_id=1, replica_groups=mesh['axis_0'=8] {'axis_0'}, dimensions={0}
}, execution_thread="sparsecore"

%async.6 (p: f32[1024,128]) -> f32[8192,128] {
  %p = f32[1024,128]{1,0:T(8,128)} parameter(0)
  ROOT %custom-call.12 = f32[8192,128]{1,0:T(8,128)} custom-call(%p), custom_call_target="X", called_computations={%called.15}
}, execution_thread="sparsecore"
""",
    )
    assert found == {Collective("all-gather", 8192 * 128 * 4, tuple(range(8))): 1}


def test_a_transfer_to_another_slice_is_a_collective(counted):
    found = counted("""\
  %p = f32[256,8,128]{2,1,0:T(8,128)} parameter(0)
  %send.5 = (f32[256,8,128]{2,1,0:T(8,128)}, u32[]{:S(2)}, token[]) send(%p, %after-all.5), channel_id=5, is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="all-reduce.61_0",_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %recv.5 = (f32[256,8,128]{2,1,0:T(8,128)}, u32[]{:S(2)}, token[]) recv(%after-all.5), channel_id=6, is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="all-reduce.61_0",_xla_megascale_transfer_type="ALL_REDUCE"}
""")
    assert found == {Collective("all-reduce", 256 * 8 * 128 * 4, (), over_slices=True): 1}
