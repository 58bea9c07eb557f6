"""Chromium without a window, driven by its DevTools protocol over a pipe.

The pipe (`--remote-debugging-pipe`) carries JSON messages that end in a zero byte, so that no
library is needed.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)"
)
PATIENCE = 60  # seconds


class Browser:
    """A browser with one tab."""

    def __init__(self):
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        flags = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--remote-debugging-pipe", "--no-first-run", "--disable-extensions"),
            f"--user-data-dir={self._profile.name}",
        ]
        # Chromium reads from descriptor 3 and writes to descriptor 4.
        command = f'exec 3<&{read} 4>&{write}; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", command, CHROMIUM, *flags, "about:blank"],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._buffer, self._last, self._session = b"", 0, None
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Call a method of the protocol and return its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            found = self._receive(deadline)
            if found.get("id") == self._last:
                assert "error" not in found, f"{method}: {found['error']}"
                return found["result"]
            self.events.append(found)

    def _receive(self, deadline):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self._read, 1 << 20)
            assert more, "the browser has ended"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, address):
        """Open a page and wait until it has loaded."""
        self.events.clear()
        self.call("Page.navigate", url=str(address))
        deadline = time.monotonic() + PATIENCE
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive(deadline))

    def run(self, code):
        """The value of an expression, awaited if it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def contrast(self, colour, background):
        """The contrast (WCAG) of two colours, as CSS computes them."""
        return self.run(
            f"""(() => {{
              const [a, b] = [{colour!r}, {background!r}].map((colour) => {{
                const probe = document.body.appendChild(document.createElement("i"));
                probe.style.setProperty("color", colour);
                const parts = getComputedStyle(probe).color.match(/\\d+/g).slice(0, 3);
                probe.remove();
                const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                const [red, green, blue] = parts.map((part) => linear(part / 255));
                return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
              }});
              return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            }})()"""
        )

    def stopped_by_policy(self):
        """What the policy of the page stops of a script, an image, an event, a style, a request."""
        return self.run(
            """(async () => {
              const stopped = [];
              document.addEventListener("securitypolicyviolation", ({ effectiveDirective }) =>
                stopped.push(effectiveDirective),
              );
              const script = document.createElement("script");
              script.textContent = "window.intruder = 1";
              const image = document.createElement("img");
              image.src = "http://127.0.0.1:9/";
              const holder = document.createElement("div");
              holder.innerHTML = '<b onclick="window.intruder = 1" style="color: red">x</b>';
              document.body.append(script, image, holder);
              holder.firstChild.click();
              await fetch("http://127.0.0.1:9/").catch(() => {});
              await new Promise((resolve) => setTimeout(resolve, 100));
              return window.intruder === undefined ? stopped.sort() : "window.intruder";
            })()"""
        )

    def names(self, roles):
        """The names that screen readers find for elements of these roles."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            node.get("name", {}).get("value")
            for node in nodes
            if node.get("role", {}).get("value") in roles and not node["ignored"]
        ]

    def wait(self, condition):
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"never true: {condition}"
            time.sleep(0.05)

    def press(self, key, **more):
        """Press and release a key."""
        text = key if len(key) == 1 else {"Enter": "\r"}.get(key, "")
        names = {
            "Enter": 13,
            "ArrowRight": 39,
            "ArrowLeft": 37,
            "ArrowDown": 40,
            "Tab": 9,
            "Escape": 27,
        }
        code = {"windowsVirtualKeyCode": names[key]} if key in names else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, **code, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code, **more)

    def problems(self):
        """Errors of the page: exceptions, refused content, messages on the console."""
        self.run("0")  # collects events that are still on their way
        found = []
        for event in self.events:
            method, parameters = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(parameters["exceptionDetails"])
            elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                found.append(parameters["entry"])
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in (
                "error",
                "warning",
            ):
                found.append(parameters["args"])
        return found

    def view(self, width, height, *, dark=False):
        """Set the size of the window and the preferred colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, file, *, whole=True):
        """Save a picture of the page."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        Path(file).write_bytes(base64.b64decode(picture))

    def processor_seconds(self):
        """The processor time of all processes of the browser so far."""
        session, self._session = self._session, None  # a question to the browser, not to the tab
        found = self.call("SystemInfo.getProcessInfo")["processInfo"]
        self._session = session
        return sum(process["cpuTime"] for process in found)

    def close(self):
        """End the browser."""
        self._process.terminate()
        self._process.wait(PATIENCE)
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()
