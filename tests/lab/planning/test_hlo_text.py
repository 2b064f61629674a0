"""The text of compiled programs: shapes, and the groups of collectives."""

import pytest

from bert_jax_lab.planning import hlo_text


def test_memory_near_the_core_is_not_traffic():
    near, far = "bf16[8,128]{1,0:T(8,128)(2,1)S(1)}", "bf16[2,128]{1,0:T(8,128)(2,1)}"
    shape = f"({near}, /*index=1*/{far}, u32[]{{:S(2)}})"
    assert hlo_text.array_bytes(shape) == 2 * 1024 + 2 * 256 + 4
    assert hlo_text.array_bytes(shape, large_memory_only=True) == 2 * 256


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
    assert hlo_text.parse_group(f"channel_id=1, {notation}, dimensions={{0}}") == group
