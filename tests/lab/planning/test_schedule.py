"""Cycles by the final schedule, for small programs and schedules in the compiler's format."""

import os
import re
from pathlib import Path

import pytest

from bert_jax.errors import UsageError
from bert_jax_lab.planning import hlo, schedule, schedule_files
from bert_jax_lab.planning.topologies import CHIPS

_CHIP = CHIPS["v3"]
_TILED = (
    'backend_config={"window_config":{"iteration_bounds":["4"],'
    '"estimated_cycles":"70","estimated_scoped":"0"}}'
)

# Two bundles outside, and three in a loop over the tiles of a fusion.
_BUNDLES = """\
  0x0   :  { %s1 = inlined }
  0x1 LB: > { %s2 = vadd }
  0x2   : > { %s3 = vmul }
  0x3   : > { %s4 = scmp.ge.s32.totalorder %s2, 6 /* loop exit test */ }
  0x4   :  { %s5 = halt }
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule_files, "_folder", tmp_path)
    return tmp_path


def _program(*lines: str) -> str:
    body = "".join(f"  {line}\n" for line in lines)
    return f"HloModule m\n\nENTRY %main (p: f32[8,128]) -> f32[8,128] {{\n{body}}}\n"


def test_a_loop_over_tiles_counts_as_often_as_it_runs(folder):
    """Three bundles, four times, and two; equal fusions have one schedule."""
    (folder / "12-fusion.1-34-final_bundles.txt").write_text(_BUNDLES)
    near = "f32[8,128]{1,0:T(8,128)S(1)}"
    text = _program(
        f"%p = {near} parameter(0)",
        *(f"%fusion.{i} = {near} fusion(%p), kind=kLoop, calls=%c, {_TILED}" for i in (1, 2)),
    )
    assert schedule.cost(text, _CHIP, lambda _: 0.0).cycles == 28


def test_tiles_that_two_cores_share_count_for_one_of_them(folder):
    """Three of five rows of four tiles each."""
    (folder / "12-fusion.1-34-final_bundles.txt").write_text(_BUNDLES)
    near = "f32[8,128]{1,0:T(8,128)S(1)}"
    shared = _TILED.replace('["4"]', '["4","5"]').replace(
        '{"window_config"', '{"megacore_config":{"megacore_split_dim":"1"},"window_config"'
    )
    text = _program(
        f"%p = {near} parameter(0)",
        f"%fusion.1 = {near} fusion(%p), kind=kLoop, calls=%c, {shared}",
    )
    assert schedule.cost(text, _CHIP, lambda _: 0.0).cycles == 2 + 3 * 4 * 3


def test_an_instruction_takes_at_least_the_time_of_its_bytes(folder):
    (folder / "12-fusion.1-34-final_bundles.txt").write_text(_BUNDLES)
    far = "f32[1024,1024]{1,0:T(8,128)}"
    text = _program(
        f"%p = {far} parameter(0)",
        f"%fusion.1 = {far} fusion(%p), kind=kLoop, calls=%c, {_TILED}",
    )
    moved = 2 * 4 * 1024**2 / _CHIP.memory_bandwidth * _CHIP.clock_hz
    assert schedule.cost(text, _CHIP, lambda _: 0.0).cycles == pytest.approx(moved)


_NEAR = "f32[8,128]{1,0:T(8,128)S(1)}"


def _work(number: int) -> str:
    """Returns a fusion of 14 cycles."""
    return f"%work.{number} = {_NEAR} fusion(%p), kind=kLoop, calls=%c, {_TILED}"


def _gather(number: int, *, done: bool) -> str:
    op, of = ("done", f"%gather.{number}") if done else ("start", "%p")
    name = f"done.{number}" if done else f"gather.{number}"
    return f"%{name} = ({_NEAR}, {_NEAR}) all-gather-{op}({of}), replica_groups={{{{0,1}}}}"


@pytest.mark.parametrize(
    ("lines", "exposed"),
    [
        ([_work(1), f"%g = {_NEAR} all-gather(%p), replica_groups={{{{0,1}}}}", _work(2)], 20),
        ([_gather(1, done=False), _work(1), _gather(1, done=True), _work(2)], 20 - 14),
        ([_gather(1, done=False), _work(1), _work(2), _gather(1, done=True)], 0),
        (  # two of them share the links
            [
                *(_gather(1, done=False), _gather(2, done=False), _work(1), _gather(1, done=True)),
                *(_work(2), _gather(2, done=True)),
            ],
            (20 - 14) + (20 - 14),
        ),
        (  # inside the fusions from the first to the last of one channel
            [_work(1).replace("%c,", "%inside,"), _work(2).replace("%c,", "%inside,"), _work(3)],
            0,
        ),
        (  # sent to another slice, while the links are in use
            [
                f'%s = ({_NEAR}, u32[], token[]) send(%p), megascale_transfer_type="ALL_REDUCE", '
                'host_transfer_rendezvous="one"',
                f'%r = ({_NEAR}, u32[], token[]) recv(), host_transfer_rendezvous="one"',
                _gather(1, done=False),
                _work(1),
                f"%d = ({_NEAR}, token[]) recv-done(%r)",
                _gather(1, done=True),
            ],
            20 - 14,
        ),
    ],
    ids=["alone", "half beside", "beside", "one after the other", "in fusions", "over slices"],
)
def test_a_collective_is_exposed_without_computation_beside_it(folder, lines, exposed):
    """Each takes 20 cycles."""
    (folder / "12-work.1-34-final_bundles.txt").write_text(_BUNDLES)
    inside = (
        f"%inside (x: f32[8,128]) -> f32[8,128] {{\n  %x = {_NEAR} parameter(0)\n"
        f"  %a = {_NEAR} all-gather(%x), channel_id=7, replica_groups={{{{0,1}}}}\n}}\n\n"
    )
    text = inside + _program(f"%p = {_NEAR} parameter(0)", *lines)
    found = schedule.cost(text, _CHIP, lambda _: 20 / _CHIP.clock_hz)
    assert found.cycles == 14 * sum("work" in line.split(" = ")[0] for line in lines)
    assert found.exposed == pytest.approx(exposed)


def test_the_body_of_a_loop_counts_as_often_as_it_runs(folder):
    (folder / "12-work.1-34-final_bundles.txt").write_text(_BUNDLES)
    others = f"""
%body (t: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {{
  {_work(1)}
  %g = {_NEAR} all-gather(%p), replica_groups={{{{0,1}}}}
}}

%cond (t: (s32[], f32[8,128])) -> pred[] {{
  %constant.3 = s32[]{{:T(128)}} constant(3)
  ROOT %lt = pred[]{{:T(512)}} compare(%i, %constant.3), direction=LT
}}

"""
    loop = f"= (s32[], {_NEAR}) while(%tuple.1), condition=%cond, body=%body"
    text = others + _program(
        f'%while.1 {loop}, backend_config={{"known_trip_count":{{"n":"24"}}}}', f"%while.2 {loop}"
    )
    found = schedule.cost(text, _CHIP, lambda _: 20 / _CHIP.clock_hz)
    assert found.cycles == 14 * 27 and found.exposed == pytest.approx(20 * 27)
    assert [*found.collectives.values()] == [27]


@pytest.mark.parametrize("text", ["HloModule m\n", _program("%p = f32[8,128]{1,0} parameter(0)")])
def test_a_program_without_an_entry_or_schedules_is_an_error(folder, text):
    with pytest.raises(ValueError):
        schedule.cost(text, _CHIP, lambda _: 0.0)


@pytest.mark.parametrize(
    ("convolution", "flops"),
    [
        (
            "f32[80,512]{1,0} convolution(%a, %b), dim_labels=bf_oi->bf",
            {"a": "bf16[80,1024]", "b": "bf16[512,1024]", "flops": 2 * 80 * 512 * 1024},
        ),
        (  # scores of 16 heads of 4 rows, which are dims of the window
            "f32[4,16,128,128]{3,2,1,0} convolution(%a, %b), window={size=4x16 stride=3x15 "
            "lhs_dilate=4x16}, dim_labels=01bf_01oi->01bf",
            {"a": "bf16[4,16,128,64]", "b": "bf16[4,16,128,64]", "flops": 2 * 64 * 128 * 128 * 64},
        ),
        (  # a gradient: the sum over 4 rows, one position of the window each
            "f32[1,512,1024]{2,1,0} convolution(%a, %b), window={size=4}, dim_labels=0fb_0io->0bf",
            {"a": "bf16[4,128,512]", "b": "bf16[4,128,1024]", "flops": 2 * 4 * 128 * 512 * 1024},
        ),
    ],
    ids=["plain", "shared dims", "a dim that is summed"],
)
def test_flops_of_a_product(convolution, flops):
    text = (
        "%inside (a: f32[], b: f32[]) -> f32[] {\n"
        f"  %a = {flops['a']}{{1,0}} parameter(0)\n  %b = {flops['b']}{{1,0}} parameter(1)\n"
        f"  ROOT %c = {convolution}\n}}\n\n"
    ) + _program("%fusion.1 = f32[] fusion(%x, %y), kind=kOutput, calls=%inside")
    computations, entry = hlo.computations_of(text)
    assert entry is not None
    (fusion,) = computations[entry]
    assert schedule.flops(fusion, computations) == flops["flops"]


def test_a_folder_of_another_user_of_the_compiler_is_an_error(monkeypatch):
    monkeypatch.setattr(schedule_files, "_folder", None)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--other=1 --xla_jf_dump_to=/their/folder")
    with pytest.raises(UsageError, match="LIBTPU_INIT_ARGS"):
        schedule_files.request()


def test_the_folder_of_schedules_is_made_once_and_emptied(monkeypatch):
    monkeypatch.setattr(schedule_files, "_folder", None)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--other=1")
    schedule_files.request()
    arguments = os.environ["LIBTPU_INIT_ARGS"]
    (folder,) = re.findall(r"--xla_jf_dump_to=(\S+) ", arguments)
    (Path(folder) / "12-fusion.1-34-final_bundles.txt").write_text(_BUNDLES)
    assert len(schedule_files.written()) == 1
    schedule_files.request()  # has no effect
    assert os.environ["LIBTPU_INIT_ARGS"] == arguments
    schedule_files.forget()
    assert not schedule_files.written()
