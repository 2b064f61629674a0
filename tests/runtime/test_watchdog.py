"""The watchdog names a process that keeps the others waiting."""

from bert_jax.runtime import watchdog


def test_slowness_is_judged_when_all_can_be_compared(caplog):
    """Process 0 may begin long before the others; until they have, there is nothing to say."""
    watching = watchdog.Watchdog(900.0)
    watching._ranks = 3
    slow = []
    watching.on_slow = lambda process, share: slow.append(process)
    for spent in ({}, {0: 9.0}, {0: 9.0, 1: 0.1}):
        watching._name_slow(spent, set())
    assert slow == []
    watching._name_slow({0: 9.0, 1: 0.1, 2: 0.2}, set())
    assert slow == [0] and "process 0 keeps the others waiting" in caplog.text
