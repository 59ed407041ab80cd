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
PROBLEMS = "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"
CODES = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Delete": 46}


class Page:
    """A page of a browser; `problems` are its exceptions and what it wrote to the console."""

    def __init__(self, read, write):
        self.read = read
        self.write = write
        self.numbers = itertools.count(1)
        self.problems = []
        self.session = {}
        self.rest = b""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        for domain in "Page", "Runtime", "Log":
            self.send(f"{domain}.enable")

    def send(self, method, **params):
        """The result of a command."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params} | self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while (answer := self.receive()).get("id") != number:
            if answer["method"] in PROBLEMS:
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
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    def wait(self, script, seconds=60):
        """Until the expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)

    def open(self, file, width, height=900):
        size = dict(width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Page.navigate", url=f"file://{file}")
        self.wait("document.readyState === 'complete'")

    def press(self, key, text=""):
        """A key, and the text that it types."""
        about = dict(key=key, windowsVirtualKeyCode=CODES.get(key) or ord(key))
        typed = dict(type="keyDown", text=text) if text else dict(type="rawKeyDown")
        self.send("Input.dispatchKeyEvent", **typed, **about)
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
        os.close(theirs)
        os.close(ours)
        try:
            yield Page(read, write)
        finally:
            process.kill()
            process.wait()
            os.close(read)
            os.close(write)
