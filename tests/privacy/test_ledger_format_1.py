"""Ledgers of JSON lines, which earlier versions wrote: read once, and nothing of them is lost."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.privacy.ledger import Ledger, LedgerCorrupt

OLD = Path(__file__).with_name("data") / "ledger_format_1"
"""Written by such a version: runs closed and killed, refunds, a torn record that was mended, a torn one at the end."""
ROUNDS = {"main": 11, 'odd "name"\t\n': 1, "quantile": 3, "rare": 2, "sampled": 7}
"""What it held before its last line was torn."""
TORN = {"main": 5, "rare": 2, "sampled": 7}
"""One reservation of every event that an open run announced: the most that the torn line may have been."""
SPENT = 0.3015211585836935
"""The epsilon of these rounds, as the version that wrote it said."""


def old(path: Path, data: bytes, mark: bool = True) -> Path:
    """A file of these bytes, with the mark of the whole one."""
    for name in (path, Path(f"{path}.lock"), Path(f"{path}.format-1")):
        name.unlink(missing_ok=True)
    path.write_bytes(data)
    if mark:
        shutil.copy(f"{OLD}.lock", f"{path}.lock")
    return path


def whole() -> bytes:
    return OLD.read_bytes()[: OLD.read_bytes().rindex(b"\n") + 1]


def test_a_whole_file_goes_on_as_a_database(tmp_path: Path) -> None:
    path = old(tmp_path / "l", whole())
    path.chmod(0o640)
    ledger = Ledger.open(path, budget=(6.0, 1e-5), dataset="census")
    assert ledger.rounds() == ROUNDS and ledger.spent() == pytest.approx(SPENT, rel=1e-12)
    assert ledger.identity.startswith("8609648574408c69") and len(ledger.records()) == 16
    assert Path(f"{path}.format-1").read_bytes() == whole() and path.stat().st_mode & 0o777 == 0o640
    ledger.pay("quantile", {"event": "Gaussian", "noise_multiplier": 40.0})
    assert Ledger.open(path).rounds() == ROUNDS | {"quantile": 4}
    assert {file.name for file in tmp_path.iterdir()} == {"l", "l.lock", "l.format-1"}


def test_a_link_stays_one(tmp_path: Path) -> None:
    path = old(tmp_path / "l", whole())
    (tmp_path / "link").symlink_to(path)
    assert Ledger.open(tmp_path / "link").rounds() == Ledger.open(path).rounds() == ROUNDS
    assert (tmp_path / "link").is_symlink()


def test_a_last_line_torn_at_any_byte_is_charged(tmp_path: Path) -> None:
    for torn in (*(OLD.read_bytes()[len(whole()) :][:cut] for cut in (1, 7, 40, 999)), b"\xff\tnonsense", b"\0" * 40):
        ledger = Ledger.open(old(tmp_path / "l", whole() + torn))
        assert ledger.rounds() == {name: count + TORN.get(name, 0) for name, count in ROUNDS.items()}
        assert Ledger.open(tmp_path / "l").rounds() == ledger.rounds() and ledger.records()[-1]["kind"] == "torn"


@pytest.mark.parametrize("mark", [True, False])
def test_an_altered_byte_is_refused_or_says_the_same(tmp_path: Path, mark: bool) -> None:
    data = whole()
    for place in range(0, len(data) - 1, 11):
        changed = bytearray(data)
        changed[place] ^= 1
        path = old(tmp_path / "l", bytes(changed), mark)
        try:
            read = Ledger.open(path)
        except LedgerCorrupt:
            assert path.read_bytes() == changed  # and left as it is
            continue
        junk = data.rindex(b"\n", 0, place + 1) < place < data.index(b"\t", place) if b"\t" in data[place:] else False
        assert junk and read.rounds() == ROUNDS  # what a kill had left of a record that was mended


def test_lost_lines_and_torn_ones_that_were_durable_are_refused(tmp_path: Path) -> None:
    lines = whole().splitlines(keepends=True)
    for kept in (*(b"".join(lines[:number]) for number in range(1, len(lines))), whole()[:-1], whole()[:-30]):
        path = old(tmp_path / "l", kept)
        with pytest.raises(LedgerCorrupt, match="record 16, which was written to this ledger, is missing or altered"):
            Ledger.open(path)
        assert path.read_bytes() == kept


def test_a_first_line_that_is_torn_begins_again(tmp_path: Path) -> None:
    first = whole().split(b"\n")[0]
    for cut in range(2, len(first), 7):
        ledger = Ledger.open(old(tmp_path / "l", first[:cut], mark=False), budget=(1.0, 1e-5))
        assert ledger.rounds() == {} and Ledger.open(tmp_path / "l").budget == (1.0, 1e-5)


def test_several_processes_read_it_at_once(tmp_path: Path) -> None:
    path = old(tmp_path / "l", whole())
    code = (
        "import sys, ledger_child; ledger_child.light_package(); from isthmus.privacy.ledger import Ledger\n"
        "sys.stdin.readline(); ledger = Ledger.open(sys.argv[1], budget=(6.0, 1e-5))\n"
        "with ledger.run({'new': ledger_child.EVENT}): pass\n"
    )
    place = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", code, str(path)]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, env=place) for _ in range(3)]
    for child in children:
        child.communicate(b"\n")
    assert [child.returncode for child in children] == [0] * 3
    ledger = Ledger.open(path)
    assert ledger.rounds() == ROUNDS and [record["kind"] for record in ledger.records()].count("begin") == 4 + 3
