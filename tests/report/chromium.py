"""A headless Chromium on a pipe: opens a page, says what the page did, presses keys, takes pictures.

It speaks the DevTools protocol over `--remote-debugging-pipe` (descriptors 3 and 4, messages end with a zero byte), so
it needs no port and no library. The machine's network is out of reach: every host name resolves to nothing.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ANSWER_S = 90.0
"""Longest wait for one answer. A loaded machine takes seconds to start a browser."""

DRAWN = "document.documentElement?.dataset.drawn === 'yes'"
"""Whether a report has drawn all of its charts; page.js says so."""

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root, in a container; the page is ours
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)

ON_3_AND_4 = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for pipe, number in zip(pipes, (3, 4)):
    os.dup2(pipe, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Puts two pipes where the browser looks for them, and becomes the browser."""


REQUIRED = "HOLDFAST_REQUIRE_CHROMIUM"
"""`.ci/run` sets it to 1 where it could install Chromium: then a missing browser is a failure, not a skip."""
WITHOUT = "no Chromium on this machine (Debian: apt-get install chromium)"


def find_chromium() -> str | None:
    """Path of a Chromium on this machine, None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. Everything that the page complained of, and every address that it asked for, is kept."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest = b""
        self._count = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def attach(self) -> None:
        """Open an empty tab and listen to it."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Performance.enable", timeDomain="threadTicks")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer. Raises RuntimeError for a refusal and TimeoutError after ANSWER_S."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, path: Path, *, width: int = 1280, phone: bool = False, dark: bool = False) -> None:
        """Load a file and wait until its charts are drawn. phone: a touch screen with small pixels."""
        self.complaints, self.requests = [], []
        self.screen(width, phone=phone)
        self.scheme("dark" if dark else "light")
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for(DRAWN)

    def screen(self, width: int, *, height: int = 900, phone: bool = False) -> None:
        """Change the size of the window."""
        factor = 2 if phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=factor, mobile=phone
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def scheme(self, scheme: str, media: str = "") -> None:
        """What the reader's system prefers (`light` or `dark`); media `print` shows the page as on paper."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def evaluate(self, script: str) -> Any:
        """The value of an expression; a promise is awaited."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{script[:200]}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until an expression is true. Raises TimeoutError after ANSWER_S."""
        deadline = time.monotonic() + ANSWER_S
        while self.evaluate(condition) is not True:
            if time.monotonic() > deadline:
                raise TimeoutError(f"never came true: {condition}; complaints: {self.complaints}")
            time.sleep(0.05)

    def spent_s(self) -> float:
        """Processor seconds that the page's main thread has used. Other programs on the machine do not add to them."""
        metrics = self.call("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    def press(self, key: str) -> None:
        """Press and release one key."""
        code = {"Tab": 9, "Enter": 13, " ": 32}[key]
        text = {"Enter": "\r", " ": " "}.get(key, "")
        common = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def picture(self, path: Path) -> None:
        """The whole page, from top to bottom, as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser did not answer within {ANSWER_S:g} s")
            got = os.read(self._from, 1 << 20)
            if not got:
                raise RuntimeError("the browser has ended")
            self._rest += got
        first, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, event: Mapping[str, Any]) -> None:
        match method:
            case "Runtime.exceptionThrown":
                self.complaints.append(str(event["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if event["type"] in ("error", "warning", "assert"):
                self.complaints.append(f"{event['type']}: {event['args']}")
            case "Log.entryAdded" if event["entry"]["level"] in ("error", "warning"):
                self.complaints.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.requests.append(event["request"]["url"][:200])


@contextmanager
def browser(binary: str, folder: Path) -> Iterator[Page]:
    """A Chromium with a profile of its own in `folder`; it ends with the body, with all of its processes."""
    (browser_in, to_browser), (from_browser, browser_out) = os.pipe(), os.pipe()
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", ON_3_AND_4, str(browser_in), str(browser_out)),
                *(binary, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"),
            ],
            pass_fds=(browser_in, browser_out),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(browser_in)
    os.close(browser_out)
    try:
        page = Page(to_browser, from_browser)
        page.attach()
        yield page
    finally:
        os.close(to_browser)
        os.close(from_browser)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it ended when its pipe closed
        process.wait(timeout=20)
