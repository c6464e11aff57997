"""A real browser for tests: headless Chromium, spoken to over two pipes by the DevTools protocol."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PATH = os.environ.get("ISTHMUS_BROWSER") or shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-extensions --hide-scrollbars --disable-dev-shm-usage "
    "--remote-debugging-pipe about:blank"
).split()


class Browser:
    """One tab.  `requests` and `errors` hold what it asked for and what it complained of since the last `open`."""

    def __init__(self, path: str | None = PATH) -> None:
        program = shutil.which(path or "chromium")
        assert program is not None, f"no browser at {path}: install chromium, or set ISTHMUS_BROWSER to its path"
        self._folder = tempfile.mkdtemp(prefix="isthmus-browser-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]  # none of them is 3 or 4
        # commands are read from 3 and answered on 4
        start = ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", program, *_FLAGS]
        with open(os.path.join(self._folder, "log"), "wb") as log:
            command = [*start, f"--user-data-dir={self._folder}/profile"]
            self._process = subprocess.Popen(command, stderr=log, pass_fds=ends, start_new_session=True)
        for each in (theirs_in, theirs_out, *ends):
            os.close(each)
        self._buffer, self._number, self._session = b"", 0, ""
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._events: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def open(self, page: Path, *, width: int, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Load a file at a width of so many CSS pixels, in a colour scheme, on screen or as for print."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.requests, self.errors, self._events = [], [], []
        went = self.call("Page.navigate", url=page.resolve().as_uri())
        assert "errorText" not in went, went["errorText"]
        while "Page.loadEventFired" not in self._events:
            self._read()
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def pdf(self, path: Path) -> None:
        """The page as it is printed on A4."""
        answer = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=False)
        path.write_bytes(base64.b64decode(answer["data"]))

    def tree(self) -> list[dict[str, Any]]:
        """What assistive software is told: role and name of every node that is not ignored."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            {"role": node["role"]["value"], "name": node.get("name", {}).get("value", "")}
            | {"properties": {each["name"]: each["value"].get("value") for each in node.get("properties", [])}}
            for node in nodes
            if not node["ignored"]
        ]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _read(self, seconds: float = 600.0) -> dict[str, Any]:
        """The next message; what it says of requests and errors is kept."""
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(self._in, 1 << 20) if ready else b""
            said = Path(self._folder, "log").read_text(errors="replace")[-2000:]
            assert piece, f"the browser said nothing for {seconds} s, or ended: {said}"
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        event, params = message.get("method", ""), message.get("params", {})
        self._events.append(event)
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"]["text"])
        elif event == "Log.entryAdded":
            self.errors.append(params["entry"]["text"])
        elif event == "Runtime.consoleAPICalled":
            self.errors.append(json.dumps(params["args"]))
        return message

    def close(self) -> None:
        """End the browser and everything that it started."""
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
