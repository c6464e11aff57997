"""One SuperLink and four SuperNodes as real processes on loopback: equal to one process, whatever is lost.

1. 20 rounds of sketches with a codec and error feedback at the clients, beside `Clients` in one process.
2. A private run in which a node answers nonsense, one is too slow for a while, and one is killed: it ends, and the
   ledger holds every round.
3. Two rounds of secure aggregation with the noise of the clients, one of which is killed.
4. Some rounds of FedSGD, for its bytes; and some of both at d = 10^6.

Bytes are counted as payloads (what Isthmus writes), and on the sockets between the nodes and the link, by a
proxy that all of their traffic goes through (HTTP, Flower's records, polling and all).

    python lab/measurements/flower_nodes.py [--rounds 20] [--only sketches]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

HERE = Path(__file__).parent
APP = HERE / "flower_app"
BIN = Path(sys.executable).parent
sys.path.insert(0, str(APP))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


@dataclass
class Proxy:
    """Passes TCP on to a port and counts the bytes of both directions."""

    target: int
    port: int = 0
    up: int = 0
    down: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> Proxy:
        """Listen."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return self

    def _accept(self, listener: socket.socket) -> None:
        while True:
            near, _ = listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            for first, second, name in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pump, args=(first, second, name), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                with self.lock:
                    setattr(self, name, getattr(self, name) + len(data))
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)


@dataclass
class Cluster:
    """A SuperLink, its nodes, and the counting proxy between them."""

    folder: Path
    faults: dict[int, str]
    nodes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)
    proxy: Proxy | None = None

    def start(self) -> Cluster:
        """Start everything."""
        self.port = free_port()
        link = [
            "--insecure",
            "--disable-runtime-dependency-installation",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        self.others.append(self._process("flower-superlink", link))
        while not _open(self.port):
            time.sleep(0.2)
        self.proxy = Proxy(self.port).start()
        for number in range(4):
            config = f"partition-id={number} num-partitions=4 {self.faults.get(number, '')}"
            entries = ["--insecure", "--superlink", f"127.0.0.1:{self.proxy.port}", "--port", str(free_port())]
            self.nodes[number] = self._process("flower-supernode", [*entries, "--node-config", config])
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        return self

    def _process(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        log = open(self.folder / f"{name}-{len(self.nodes)}.log", "wb")
        command = [str(BIN / name), *arguments]
        return subprocess.Popen(command, env=self.environment(), stdout=log, stderr=log, start_new_session=True)

    def environment(self) -> dict[str, str]:
        """That of every process: one thread each, a Flower folder of their own."""
        paths = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        own = {"FLWR_HOME": str(self.folder / "home"), "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        path = os.pathsep.join([str(BIN), os.environ["PATH"]])
        return {**os.environ, **own, "PATH": path, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

    def submit(self, run: str, rounds: int, timeout: float, features: int) -> Path:
        """`flwr run`; the folder that the server app writes to."""
        out = self.folder / "out"
        out.mkdir()
        settings = f'run="{run}" rounds={rounds} timeout={timeout} features={features} out="{out}"'
        command = [str(BIN / "flwr"), "run", str(APP), "here", "--run-config", settings]
        subprocess.run(command, env=self.environment(), check=True, stdout=subprocess.DEVNULL)
        return out

    def stop(self) -> None:
        """End all processes that were started here, with their children."""
        for process in [*self.nodes.values(), *self.others]:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group, as a machine that loses its power."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def _open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextlib.contextmanager
def cluster(faults: dict[int, str] | None = None) -> Iterator[Cluster]:
    """A running cluster in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="flower-nodes-"))
    made = Cluster(folder, faults or {})
    try:
        yield made.start()
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


def finished(made: Cluster, out: Path, limit: float, kill: tuple[int, int] | None = None) -> dict:
    """Wait for the report; `kill` is a node and the round after which it is killed."""
    began = time.time()
    while not (out / "report.json").exists():
        if time.time() - began > limit:
            logs = "\n".join(f"{p.name}: {p.read_text()[-2000:]}" for p in made.folder.glob("*.log"))
            raise TimeoutError(f"no report after {limit:g} s\n{logs}")
        if kill is not None and (out / "round").exists() and int((out / "round").read_text() or 0) >= kill[1]:
            end(made.nodes[kill[0]])
            kill = None
        time.sleep(0.5)
    time.sleep(0.5)
    return json.loads((out / "report.json").read_text())


def run(
    name: str, rounds: int, timeout: float = 120.0, faults: dict[int, str] | None = None, kill=None, features=10_000
) -> tuple:
    """One run in a cluster of its own: its report, its iterate, and the bytes of the sockets."""
    from isthmus.core.wire import State

    with cluster(faults) as made:
        assert made.proxy is not None
        out = made.submit(name, rounds, timeout, features)
        before = made.proxy.up, made.proxy.down
        report = finished(made, out, 60 + rounds * (timeout + 60), kill)
        report["socket"] = made.proxy.up - before[0], made.proxy.down - before[1]
        return report, State.load(out / "state").w


def reference(name: str, rounds: int) -> torch.Tensor:
    """The same run without Flower."""
    from nodes import task

    from isthmus import Logistic, minimize

    parts = [task.objective(number) for number in range(task.CLIENTS)]
    pairs = [task.records(number) for number in range(task.CLIENTS)]
    whole = Logistic(*(torch.cat(tensors) for tensors in zip(*pairs, strict=True)), classes=[0, 1])
    return minimize(whole, task.recipe(name), task.BALL, steps=rounds, clients=parts, record=None).state.w


def show(name: str, report: dict, rounds: int) -> None:
    """Bytes and time of a run."""
    answers = sum(round_made["answered"] for round_made in report["rounds"])
    up, down = report["socket"]
    print(f"{name}: {rounds} rounds in {report['seconds']:.0f} s, {answers} answers; a client and round: payload up "
          f"{report['up'] / answers:.0f}, down {report['down'] / answers:.0f}, socket up {up / answers:.0f}, "
          f"down {down / answers:.0f} bytes", flush=True)  # fmt: skip


def main() -> None:
    """Run all three, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", choices=("sketches", "private", "secure", "fedsgd", "wide"))
    args = parser.parse_args()
    if args.only in (None, "sketches"):
        report, w = run("sketches", args.rounds)
        show("sketches", report, args.rounds)
        print(f"largest difference to one process: {float((w - reference('sketches', args.rounds)).abs().max()):.3g} "
              "(1e-6 was asked for)", flush=True)  # fmt: skip
    if args.only in (None, "private"):
        rounds = min(args.rounds, 8)
        faults = {1: 'fault="corrupt" from=1 until=3', 2: 'fault="delay" seconds=90 from=2 until=4'}
        report, _ = run("private", rounds, 45.0, faults, kill=(3, 4))
        show("private, one corrupt, one late, one killed", report, rounds)
        for round_made in report["rounds"]:
            print("  ", round_made)
        print(f"  charged {report['charged']}, spent {report['spent']:.6g}, stated {report['epsilon']:.6g}; "
              f"{report['reasons']}", flush=True)  # fmt: skip
    if args.only in (None, "secure"):
        report, _ = run("secure", 2, kill=(3, 1))
        print(f"secure aggregation: 2 rounds in {report['seconds']:.0f} s, payload up {report['up']}, down "
              f"{report['down']}, socket {report['socket']} bytes; {report['rounds']}, charged {report['charged']}, "
              f"{report['reasons']}", flush=True)  # fmt: skip
    if args.only in (None, "fedsgd"):
        rounds = min(args.rounds, 3)
        report, _ = run("fedsgd", rounds)
        show("FedSGD", report, rounds)
    if args.only in (None, "wide"):
        rounds = min(args.rounds, 3)
        for name in ("sketches", "fedsgd"):
            report, _ = run(name, rounds, 300.0, features=10**6)
            show(f"d = 10^6, {name}", report, rounds)


if __name__ == "__main__":
    main()
