"""Reading compiled TPU programs: frozen pieces of real ones, cut down."""

# ruff: noqa: E501 (lines of compiled programs are long)

import pytest

from bert_jax_lab.planning import hlo_cost
from bert_jax_lab.planning.hlo_cost import Collective, Kernel

_CYCLES = 'backend_config={"flag_configs":[],"estimated_cycles":"%d"}'


def program(entry: str, others: str = "") -> str:
    return f"HloModule jit_step, is_scheduled=true\n\n{others}\nENTRY %main.9 (p: f32[]) -> f32[] {{\n{entry}}}\n"


def test_cycles_of_a_loop_count_as_often_as_it_runs():
    text = program(
        f"""\
  %p = f32[8,128]{{1,0:T(8,128)}} parameter(0)
  %copy.1 = f32[8,128]{{1,0:T(8,128)}} copy(%p), {_CYCLES % 7}
  %tuple.1 = (s32[], f32[8,128]{{1,0:T(8,128)}}) tuple(%p, %copy.1)
  %while.1 = (s32[], f32[8,128]{{1,0:T(8,128)}}) while(%tuple.1), condition=%cond, body=%body, backend_config={{"known_trip_count":{{"n":"24"}}}}
  %while.2 = (s32[], f32[8,128]{{1,0:T(8,128)}}) while(%tuple.1), condition=%cond, body=%body
""",
        f"""\
%fused (a: f32[8,128]) -> f32[8,128] {{
  %a = f32[8,128]{{1,0:T(8,128)}} parameter(0)
  ROOT %b = f32[8,128]{{1,0:T(8,128)}} add(%a, %a), {_CYCLES % 10_000}
}}

%body (t: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {{
  %t = (s32[], f32[8,128]{{1,0:T(8,128)}}) parameter(0)
  %x = f32[8,128]{{1,0:T(8,128)}} get-tuple-element(%t), index=1
  %fusion.1 = f32[8,128]{{1,0:T(8,128)}} fusion(%x), kind=kLoop, calls=%fused, metadata={{op_name="jit(step)/jvp(bld,de->ble)/dot_general"}}, {_CYCLES % 100}
  ROOT %r = (s32[], f32[8,128]{{1,0:T(8,128)}}) tuple(%x, %fusion.1)
}}

%cond (t: (s32[], f32[8,128])) -> pred[] {{
  %i = s32[]{{:T(128)}} get-tuple-element(%t), index=0
  %constant.3 = s32[]{{:T(128)}} constant(3)
  ROOT %lt = pred[]{{:T(512)}} compare(%i, %constant.3), direction=LT
}}
""",
    )
    cost = hlo_cost.cost(text)
    assert cost.cycles == 7 + (24 + 3) * 100, "what is inside a fusion is in the fusion's estimate"
    assert cost.by_operation == {"copy": 7, "dot_general": 2700}
    assert cost.traffic == 2 * 4096 * (1 + 24 + 3)


def test_a_loop_reads_and_writes_its_slices_alone():
    """Stacks of 2 layers, of which one iteration updates a layer in place, and reads one."""
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
    # Updated, and beside it a whole layer; read; read and written; and twice read whole.
    assert hlo_cost.cost(text).traffic == 2 * one + one + 2 * one + 2 * stack


@pytest.mark.parametrize(
    ("called", "arrays"), [("async_collective_fusion.4", 2), ("fused_computation.4", 2 + 2)]
)
def test_what_a_collective_works_on_is_not_moved_by_what_runs_beside_it(called, arrays):
    """The fusion reads one array and writes another, and passes a third on."""
    far = "f32[8,128]{1,0:T(8,128)}"
    text = program(
        f"""\
  %gathered = {far} parameter(0)
  %n = u32[]{{:S(2)}} parameter(1)
  %q = {far} parameter(2)
  ROOT %fusion.1 = ({far}, {far}, u32[]{{:S(2)}}) fusion(%gathered, %n, %q), kind=kOutput, output_to_operand_aliasing={{{{1}}: (0, {{}}), {{2}}: (1, {{}})}}, calls=%{called}, {_CYCLES % 1}
"""
    )
    assert hlo_cost.cost(text).traffic == arrays * 4 * 8 * 128


def test_copies_beside_the_computation_are_traffic():
    text = program("""\
  %p = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %copy-start.1 = (bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, bf16[8,128]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%p)
  %copy-done.1 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start.1)
""")
    cost = hlo_cost.cost(text)
    assert (cost.cycles, cost.traffic) == (0, 2048)


def test_collectives_of_a_plain_program():
    text = program("""\
  %p = bf16[512,16]{0,1:T(8,128)(2,1)} parameter(0)
  %g = f32[1024]{0:T(1024)} parameter(1)
  %start = (bf16[512,16]{0,1:T(8,128)(2,1)}, bf16[512,1024]{0,1:T(8,128)(2,1)}) all-gather-start(%p), channel_id=2, replica_groups=mesh['axis_0'=64] {'axis_0'}, dimensions={1}
  %done = bf16[512,1024]{0,1:T(8,128)(2,1)} all-gather-done(%start)
  %all-reduce.1 = (f32[1024]{0:T(1024)}, f32[]{:T(128)}) all-reduce(%g, %s), channel_id=3, replica_groups=[2,4]<=[8], to_apply=%add
  %reduce-scatter.1 = f32[256]{0:T(256)} reduce-scatter(%g), channel_id=4, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}, to_apply=%add
""")
    assert hlo_cost.cost(text).collectives == {
        Collective("all-gather", 512 * 1024 * 2, tuple(range(64))): 1,
        Collective("all-reduce", 1024 * 4 + 4, (0, 1, 2, 3)): 1,
        Collective("reduce-scatter", 1024 * 4, (0, 1, 2, 3)): 1,
    }


def test_an_all_reduce_of_which_a_part_is_kept_is_a_reduce_scatter():
    """As the compilers of v2 and v3 write it."""
    text = program(
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
    assert hlo_cost.cost(text).collectives == {
        Collective("reduce-scatter", 512 * 1024 * 2, (0, 1)): 1
    }


def test_several_reduced_and_scattered_at_once():
    """As the compiler of v6e writes it; the gather has the same channel by chance."""
    text = program(
        "  %p = f32[8,128]{1,0:T(8,128)} parameter(0)\n"
        "  %all-gather.1 = f32[32,128]{1,0:T(8,128)} all-gather(%p), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}\n"
        "  %fusion.1 = (f32[8,128]{1,0}, f32[2,128]{1,0}) fusion(%all-gather.1, %x), kind=kCustom, calls=%all-reduce-scatter.3\n",
        """\
%all-reduce-scatter.3 (a: f32[32,128], b: f32[8,128]) -> (f32[8,128], f32[2,128]) {
  %a = f32[32,128]{1,0:T(8,128)} parameter(0)
  %b = f32[8,128]{1,0:T(8,128)} parameter(1)
  %all-reduce.45 = (f32[32,128]{1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)}) all-reduce(%a, %b), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  %g.0 = f32[32,128]{1,0:T(8,128)} get-tuple-element(%all-reduce.45), index=0
  %g.1 = f32[8,128]{1,0:T(8,128)} get-tuple-element(%all-reduce.45), index=1
  %d.0 = f32[8,128]{1,0:T(8,128)} dynamic-slice(%g.0, %i, %z), dynamic_slice_sizes={8,128}
  %d.1 = f32[2,128]{1,0:T(2,128)} dynamic-slice(%g.1, %i, %z), dynamic_slice_sizes={2,128}
  ROOT %tuple.1 = (f32[8,128]{1,0:T(8,128)}, f32[2,128]{1,0:T(2,128)}) tuple(%d.0, %d.1)
}
""",
    )
    assert hlo_cost.cost(text).collectives == {
        Collective("all-gather", 32 * 128 * 4, (0, 1, 2, 3)): 1,
        Collective("reduce-scatter", 40 * 128 * 4, (0, 1, 2, 3)): 1,
    }


def test_all_of_one_channel_count_as_often_as_they_stand_there():
    """As what a `shard_map` says is written: every collective of it has channel 1."""
    scatter = """\
%%all-reduce-scatter.%d (a: f32[32,128]) -> f32[8,128] {
  %%a = f32[32,128]{1,0:T(8,128)} parameter(0)
  %%all-reduce.%d = f32[32,128]{1,0:T(8,128)} all-reduce(%%a), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%%add
  ROOT %%d = f32[8,128]{1,0:T(8,128)} dynamic-slice(%%all-reduce.%d, %%i, %%z), dynamic_slice_sizes={8,128}
}
"""
    text = program(
        "".join(
            f"  %all-gather.{i} = f32[32,128]{{1,0:T(8,128)}} all-gather(%p), channel_id=1, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}\n"
            f"  %fusion.{i} = f32[8,128]{{1,0}} fusion(%all-gather.{i}), kind=kCustom, calls=%all-reduce-scatter.{i}\n"
            for i in range(3)
        ),
        "".join(scatter % (i, i, i) for i in range(3)),
    )
    size, group = 32 * 128 * 4, (0, 1, 2, 3)
    assert hlo_cost.cost(text).collectives == {
        Collective("all-gather", size, group): 3,
        Collective("reduce-scatter", size, group): 3,
    }


def test_what_the_compiler_cannot_estimate_is_charged_like_a_kernel():
    text = program(f"""\
  %p = f32[8,128]{{1,0:T(8,128)}} parameter(0)
  %f = f32[8,128]{{1,0:T(8,128)}} fusion(%p), kind=kCustom, calls=%c, metadata={{op_name="jit(step)/scatter-add"}}, {_CYCLES % (2**63 - 1)}
""")
    cost = hlo_cost.cost(text)
    assert cost.cycles == 0
    assert cost.kernels == {Kernel("scatter-add", None, 2 * 4096): 1}


def test_an_asynchronous_collective_in_several_fusions_is_one():
    """As the compilers of v5e and v6e write it: start, pieces beside computation, end."""
    piece = """\
%%async.%d (p: bf16[16,64]) -> bf16[16,256] {
  %%p = bf16[16,64]{1,0} parameter(0)
  ROOT %%all-gather.%d = bf16[16,256]{1,0:T(8,128)(2,1)S(1)} all-gather(%%p), channel_id=7, replica_groups={{0,1,2,3}}, dimensions={1}
}
"""
    text = program(
        "".join(
            f"  %fusion.{i} = bf16[16,256]{{1,0}} fusion(%p), kind=kCustom, calls=%async.{i}, "
            f"{_CYCLES % 5}\n"
            for i in range(3)
        ),
        "".join(piece % (i, i) for i in range(3)),
    )
    cost = hlo_cost.cost(text)
    assert cost.collectives == {Collective("all-gather", 16 * 256 * 2, (0, 1, 2, 3)): 1}
    assert cost.cycles == 15


def test_a_collective_on_another_core_is_found():
    """As the compilers of v5p and newer write it."""
    text = program(
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
    cost = hlo_cost.cost(text)
    assert cost.collectives == {Collective("all-gather", 8192 * 128 * 4, tuple(range(8))): 1}
    assert not cost.kernels


def test_what_goes_to_other_slices_goes_through_the_host():
    text = program("""\
  %p = f32[256,8,128]{2,1,0:T(8,128)} parameter(0)
  %send.5 = (f32[256,8,128]{2,1,0:T(8,128)}, u32[]{:S(2)}, token[]) send(%p, %after-all.5), channel_id=5, is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="all-reduce.61_0",_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %recv.5 = (f32[256,8,128]{2,1,0:T(8,128)}, u32[]{:S(2)}, token[]) recv(%after-all.5), channel_id=6, is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="all-reduce.61_0",_xla_megascale_transfer_type="ALL_REDUCE"}
""")
    assert hlo_cost.cost(text).collectives == {
        Collective("all-reduce", 256 * 8 * 128 * 4, (), over_slices=True): 1
    }


def test_kernels_are_listed_and_marks_are_not():
    text = program("""\
  %a = bf16[512,512]{1,0:T(8,128)(2,1)} parameter(0)
  %m = s32[1024]{0:T(1024)} custom-call(%i), custom_call_target="AssumeGatherIndicesInBound"
  %k.1 = f32[512,512]{1,0:T(8,128)} custom-call(%a, %a), custom_call_target="tpu_custom_call", metadata={op_name="jit(step)/pallas_call"}, backend_config={"custom_call_config":{"body":"TUzvU","cost_estimate":{"flops":"268435456","transcendentals":"0","bytes_accessed":"123456"}}}
  %k.2 = f32[512,512]{1,0:T(8,128)} custom-call(%a, %a), custom_call_target="tpu_custom_call", metadata={op_name="jit(step)/other"}, backend_config={"custom_call_config":{"body":"TUzvU"}}
""")
    assert hlo_cost.cost(text).kernels == {
        Kernel("jit(step)/pallas_call", 268435456.0, 123456): 1,
        Kernel("jit(step)/other", None, 2 * 512 * 512 * 2 + 512 * 512 * 4): 1,
    }


def test_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="ENTRY"):
        hlo_cost.cost("HloModule nothing\n")
