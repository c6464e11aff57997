"""Work that is split over processes: results are lines of JSON, one file a process, and what is done is kept.

    python regret.py --shard 0/16 & ... python regret.py --shard 15/16; python regret.py

Each process takes every 16th piece of work, and the last call finds all of it done and prints the tables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Lines(dict[str, Any]):
    """Results by key: read from all files `name*.jsonl` of a folder, appended to the one of this process."""

    def __init__(self, out: Path, name: str, shard: str) -> None:
        super().__init__()
        self.index, self.count = (int(part) for part in shard.split("/"))
        if not 0 <= self.index < self.count:
            raise ValueError(f"shard={shard!r}: give i/k with 0 <= i < k")
        out.mkdir(parents=True, exist_ok=True)
        for old in sorted(out.glob(f"{name}.*.jsonl")):
            for line in old.read_text().splitlines():
                if line.endswith("}"):  # a process that was killed leaves half a line
                    read = json.loads(line)
                    self[read["key"]] = read["value"]
        self.file = out / f"{name}.{self.index}of{self.count}.jsonl"

    def mine(self, pieces: list[Any]) -> list[Any]:
        """Every count-th piece of work."""
        return pieces[self.index :: self.count]

    @property
    def whole(self) -> bool:
        """Whether this process does everything, and so can judge it."""
        return self.count == 1

    def add(self, key: str, value: Any) -> None:
        """Keep a result, at once."""
        self[key] = value
        with self.file.open("a") as file:
            file.write(json.dumps({"key": key, "value": value}) + "\n")
