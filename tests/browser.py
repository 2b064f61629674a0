"""A headless Chromium that tests drive by the DevTools protocol, over a pair of pipes.

The protocol needs no library: a command is a line of JSON that ends with a zero byte, and so is
what comes back (https://chromedevtools.github.io/devtools-protocol/).
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_SECONDS = 60.0  # for an answer


def executable() -> str | None:
    """Returns the browser: what CHROMIUM names, or the first that is installed."""
    named = os.environ.get("CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, _NAMES)), None)


@contextlib.contextmanager
def chromium() -> Iterator["Browser"]:
    """Starts a browser with an empty profile, and ends it."""
    found = executable()
    assert found is not None
    profile = tempfile.mkdtemp(prefix="bert-jax-browser-")
    commands_read, commands_write = os.pipe()
    answers_read, answers_write = os.pipe()
    options = [
        "--headless=new",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        "--no-first-run",
        "--no-sandbox",  # its sandbox refuses to start as root, as in a container
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
    ]
    # The browser reads commands from descriptor 3, and answers on 4.
    shell = f'exec "$@" 3<&{commands_read} 4>&{answers_write}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "-", found, *options, "about:blank"],
        pass_fds=(commands_read, answers_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Its launcher adds no flags of its own, and no session bus is looked for.
        env={**os.environ, "CHROMIUM_FLAGS": "", "DBUS_SESSION_BUS_ADDRESS": "disabled:"},
    )
    os.close(commands_read)
    os.close(answers_write)
    browser = Browser(commands_write, answers_read)
    try:
        yield browser
    finally:
        with contextlib.suppress(Exception):
            browser.call("Browser.close")
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(commands_write)
        os.close(answers_read)
        shutil.rmtree(profile, ignore_errors=True)


class Browser:
    """The connection: commands, answers, and the events of each tab."""

    def __init__(self, commands: int, answers: int):
        self._commands, self._answers = commands, answers
        self._received = b""
        self._number = 0
        self._tabs: dict[str, Tab] = {}

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Sends a command and returns its result. Raises RuntimeError if the browser refuses it."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + _SECONDS
        while True:
            answer = self._next(end, method)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._hear(answer)

    def _next(self, end: float, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self._received:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise TimeoutError(f"no answer to {waiting_for} within {_SECONDS:g} s")
            chunk = os.read(self._answers, 1 << 20)
            if not chunk:
                raise ConnectionError(f"the browser ended during {waiting_for}")
            self._received += chunk
        line, _, self._received = self._received.partition(b"\0")
        return json.loads(line)

    def _hear(self, event: dict[str, Any]) -> None:
        tab = self._tabs.get(event.get("sessionId", ""))
        if tab is not None:
            tab.hear(event["method"], event["params"])

    def open(
        self, file: Path, *, width: int, height: int = 900, dark: bool = False, script: bool = True
    ) -> "Tab":
        """Opens a file in a tab of its own, and waits until it is loaded and drawn.

        `script=False` lets none run.
        """
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        tab = Tab(self, attached["sessionId"], target, script=script)
        self._tabs[attached["sessionId"]] = tab
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        if not script:
            tab.call("Emulation.setScriptExecutionDisabled", value=True)
        tab.resize(width, height)
        tab.prefer(dark=dark)
        tab.call("Page.navigate", url=file.resolve().as_uri())
        tab.wait_for_load()
        return tab


class Tab:
    """One page. `problems` has what its console said as an error or a warning, and `requests` the
    addresses that it asked for.
    """

    def __init__(self, browser: Browser, session: str, target: str, *, script: bool = True):
        self._browser, self._session, self._target = browser, session, target
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._is_loaded = False
        self._runs_scripts = script
        self._pointer = (0.0, 0.0)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def hear(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            thrown = parameters["exceptionDetails"]
            self.problems.append(str(thrown.get("exception", thrown).get("description", thrown)))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.problems.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Page.loadEventFired":
            self._is_loaded = True

    def wait_for_load(self) -> None:
        end = time.monotonic() + _SECONDS
        while not self._is_loaded:
            assert time.monotonic() < end, "the page does not load"
            self.call("Page.getLayoutMetrics")  # hears events meanwhile
        self.settle()

    def settle(self) -> None:
        """Waits until what the page has begun is drawn: two frames."""
        if not self._runs_scripts:  # nor does a frame call anything
            self.call("Page.getLayoutMetrics")
            return
        self.call("Page.bringToFront")  # a tab behind another one is not drawn
        self.evaluate("new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))")

    def evaluate(self, expression: str) -> Any:
        """Returns the value of an expression, awaited. Raises AssertionError if it throws."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def resize(self, width: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def prefer(self, *, dark: bool) -> None:
        """Says which colours the system prefers."""
        value = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def place(self, selector: str) -> tuple[float, float, float, float]:
        """Scrolls the first such element into view; returns left, top, width, height."""
        found = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()"
        )
        return tuple(found)

    def move(self, x: float, y: float, *, pressed: bool = False) -> None:
        self._pointer = (x, y)
        self._mouse("mouseMoved", buttons=int(pressed))
        self.settle()

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Presses the left button, moves in four steps, and lets it go."""
        self.move(*start)
        self._mouse("mousePressed", button="left", buttons=1, clickCount=1)
        for part in (0.25, 0.5, 0.75, 1.0):
            here = [a + part * (b - a) for a, b in zip(start, end, strict=True)]
            self.move(*here, pressed=True)
        self._mouse("mouseReleased", button="left", buttons=0, clickCount=1)
        self.settle()

    def click(self, selector: str, *, times: int = 1) -> None:
        """Clicks on the middle of the first such element; twice is a double click."""
        left, top, width, height = self.place(selector)
        self.click_at(left + width / 2, top + height / 2, times=times)

    def click_at(self, x: float, y: float, *, times: int = 1) -> None:
        """Clicks on a point of the window."""
        self.move(x, y)
        for number in range(1, times + 1):
            self._mouse("mousePressed", button="left", buttons=1, clickCount=number)
            self._mouse("mouseReleased", button="left", buttons=0, clickCount=number)
        self.settle()

    def press(self, key: str) -> None:
        """Presses a key, such as Tab or Enter."""
        text = {"text": "\r"} if key == "Enter" else {}
        codes = {"Enter": 13, "Tab": 9, " ": 32, "ArrowLeft": 37, "ArrowRight": 39}
        code = codes.get(key, 0)
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key,
                  windowsVirtualKeyCode=code, **text)  # fmt: skip
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key,
                  windowsVirtualKeyCode=code)  # fmt: skip
        self.settle()

    def _mouse(self, kind: str, **more: Any) -> None:
        x, y = self._pointer
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, file: Path) -> None:
        """Writes a picture of the whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {**size, "scale": 1}
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(taken["data"]))

    def overflow(self) -> float:
        """Returns by how many pixels the page is wider than its window."""
        return self.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)
