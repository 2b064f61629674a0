"""A pytest plugin (`-p tests.slow`) that marks the tests of tests/slow.txt as `slow`.

`make quick` deselects these tests, and lists unmarked tests that took more than five times the
limit. `make mark-slow` runs the whole suite and rewrites the list from the measured durations.
"""

import time
from collections import defaultdict
from pathlib import Path

import pytest

LIST = Path(__file__).parent / "slow.txt"
LIMIT = 0.7  # seconds, on two idle cores
_HEAD = f"""\
# Tests that take more than {LIMIT:g} s, written by `make mark-slow`; `make quick` leaves them out.
# A line without brackets stands for all parameters of a test.
"""


class Durations:
    """Seconds per test.

    Session fixtures are not counted. The setup of a narrower shared fixture (module, class) counts
    for each test that uses it, because the first of these tests that runs has to wait for it.
    """

    def __init__(self):
        self.own: dict[str, float] = defaultdict(float)
        self.fixtures: dict[str, float] = defaultdict(float)
        self.uses: dict[str, list[str]] = {}

    def add(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        shared: dict[str, float] = properties.get("shared_fixtures", {})
        self.own[report.nodeid] += report.duration
        if report.when == "setup":
            self.own[report.nodeid] -= sum(shared.values())
            self.uses[report.nodeid] = properties.get("uses", [])
            for key, seconds in shared.items():
                self.fixtures[key] = max(self.fixtures[key], seconds)

    def seconds(self) -> dict[str, float]:
        def shared(test: str) -> float:
            # A fixture's key is "BASE:NAME", in which BASE is the file or class that defines it.
            return sum(
                seconds
                for key, seconds in self.fixtures.items()
                for base, _, name in [key.rpartition(":")]
                if base and test.startswith(base) and name in self.uses.get(test, ())
            )

        return {test: own + shared(test) for test, own in self.own.items()}


def function_of(test: str) -> str:
    return test.partition("[")[0]


def listed() -> set[str]:
    lines = LIST.read_text(encoding="utf-8").splitlines() if LIST.exists() else []
    return {line for line in lines if line and not line.startswith("#")}


def write(seconds: dict[str, float]) -> int:
    """Writes the list of tests above the limit, and returns their number."""
    slow = {test for test, taken in seconds.items() if taken > LIMIT}
    fast_functions = {function_of(test) for test in seconds if test not in slow}
    lines = {test if function_of(test) in fast_functions else function_of(test) for test in slow}
    LIST.write_text(_HEAD + "".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")
    return len(slow)


class Plugin:
    def __init__(self, config: pytest.Config):
        self.config = config
        self.durations = Durations()
        self.shared_fixtures: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        names = listed()
        for item in items:
            if item.nodeid in names or function_of(item.nodeid) in names:
                item.add_marker("slow")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef):
        start = time.perf_counter()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                base = "" if fixturedef.scope == "session" else fixturedef.baseid
                self.shared_fixtures[f"{base}:{fixturedef.argname}"] = time.perf_counter() - start

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item):
        self.shared_fixtures = {}
        try:
            return (yield)
        finally:
            item.user_properties += [
                ("shared_fixtures", self.shared_fixtures),
                ("uses", list(getattr(item, "fixturenames", ()))),
            ]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.durations.add(report)

    def pytest_terminal_summary(self, terminalreporter, exitstatus: int) -> None:
        seconds = self.durations.seconds()
        if self.config.getoption("mark_slow"):
            if exitstatus:
                terminalreporter.write_line(f"{LIST.name} is unchanged: the suite did not pass")
            else:
                number = write(seconds)
                terminalreporter.write_line(f"{number} of {len(seconds)} tests are slow: {LIST}")
            return
        over = {test: taken for test, taken in seconds.items() if taken > 5 * LIMIT}
        for test, taken in sorted(over.items(), key=lambda entry: -entry[1]):
            terminalreporter.write_line(f"not marked as slow, took {taken:.1f} s: {test}")
        if over:
            terminalreporter.write_line("`make mark-slow` measures all tests and marks them")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--mark-slow", action="store_true", help="rewrite tests/slow.txt from this run's durations"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Plugin(config), "slow")
