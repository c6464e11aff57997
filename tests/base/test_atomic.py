"""Files that are whole or not there, also where several processes write the same one."""

import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.base.atomic import atomic_write

WRITER = """
import sys
from isthmus.base.atomic import atomic_write
path, letter = sys.argv[1:]
for _ in range(50):
    with atomic_write(path) as partial, partial.open("w") as file:
        for _ in range(20):
            file.write(letter * 50)
            file.flush()
"""


def test_writers_at_once_do_not_share_a_file(tmp_path: Path) -> None:
    """One is finished while the other is under way: neither sees the other's bytes, or takes its file away."""
    path = tmp_path / "state"
    with atomic_write(path) as late:
        late.write_text("late, ")
        with atomic_write(path) as early:
            assert early != late and early.parent == late.parent == tmp_path
            early.write_text("early")
        assert path.read_text() == "early"
        with late.open("a") as file:
            file.write("and whole")
    assert path.read_text() == "late, and whole"
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def test_processes_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), letter]) for letter in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert path.read_text() in ("a" * 1000, "b" * 1000)
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("before")
    with pytest.raises(RuntimeError, match="halfway"), atomic_write(path) as partial:
        partial.write_text("half")
        raise RuntimeError("halfway")
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
