"""Chromium without a window, driven over a pipe by its DevTools protocol; no package is needed."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--hide-scrollbars", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--remote-debugging-pipe", "about:blank",
]  # fmt: skip


class Page:
    """A page of a browser; `problems` are its exceptions and what it wrote to the console."""

    def __init__(self, read, write):
        self.read, self.write = read, write
        self.numbers, self.problems, self.session, self.rest = itertools.count(1), [], None, b""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in "Page", "Runtime", "Log":
            self.send(f"{domain}.enable")

    def send(self, method, **params):
        """The result of a command."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while (answer := self.receive()).get("id") != number:
            if answer["method"] in (
                "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded",
            ):  # fmt: skip
                self.problems.append(answer["params"])
        assert "error" not in answer, answer
        return answer["result"]

    def receive(self):
        while b"\0" not in self.rest:
            self.rest += os.read(self.read, 1 << 20)
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def evaluate(self, script):
        """The value of an expression in the page."""
        return self.send("Runtime.evaluate", expression=script, returnByValue=True)["result"].get(
            "value"
        )

    def wait(self, script, seconds=60):
        """Until the expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)

    def open(self, file, width):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip
        self.send("Page.navigate", url=f"file://{file}")
        self.wait("document.readyState === 'complete'")

    def press(self, key, text=""):
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Delete": 46}
        about = dict(key=key, windowsVirtualKeyCode=codes.get(key) or ord(key))
        kind = "keyDown" if text else "rawKeyDown"
        self.send("Input.dispatchKeyEvent", type=kind, **about, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **about)


@contextlib.contextmanager
def browser():
    """A new Page, in a Chromium with an empty profile."""
    theirs, write = os.pipe()
    read, ours = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        script = f'exec "$@" 3<&{theirs} 4>&{ours}'  # Chromium reads 3 and writes 4
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", CHROMIUM, f"--user-data-dir={folder}", *FLAGS],
            pass_fds=(theirs, ours), stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs), os.close(ours)
        try:
            yield Page(read, write)
        finally:
            process.kill()
            process.wait()
            os.close(read), os.close(write)
