"""Arguments of the command line: an answer, or a line that says what is wrong and an exit code of the table."""

from __future__ import annotations

import os
from pathlib import Path

from click.testing import CliRunner

from fuzz.target import Broken, Target, check, folder
from isthmus.cli import code_of, main
from isthmus.privacy import Ledger

ROWS = "age,city,y\n" + "".join(f"{20 + k},{'ab'[k % 2]},{k % 2}\n" for k in range(30))
COMMANDS = (b"plan", b"schema", b"train --dry-run", b"budget", b"describe", b"report", b"predict", b"completion")
TOKENS = (
    b"--rows 100 --columns 5 --epsilon 1 --target y --task classification --classes 0,1 --bounds 0,1 --bounds "
    b"age=0,90 --categories city=a,b --hash city=4 --date-format age=%d --id age --drop city --separator ; "
    b"--encoding latin-1 --decimal , --schema schema.toml --public rows.csv --features 3 --zero-based --delta "
    b"1e-5 --adjacency replace-one --n 50 --budget b --test rows.csv --test-fraction 0.2 --test-epsilon 0.1 "
    b"--loss hinge --algorithm dp_gd --constraint l1:5 --l1 0.1 --clip 1 --step 1 --max-iter 3 --batch-size 5 "
    b"--scale none --shape smooth --data-norm 1 --no-intercept --config c.toml --json --quiet rows.csv ledger "
    b"run nowhere inf nan -1 0 1e308 '' --max-dims 0 --write-schema s.toml --density 2 --penalty --max-passes "
    b"0.5 --target-bounds 1,0 --proba --output o.csv"
).split(b" ")


def _place() -> Path:
    """A folder with a few files that arguments may name."""
    place = folder() / "work"
    if not place.exists():
        place.mkdir()
        (place / "rows.csv").write_text(ROWS)
        (place / "schema.toml").write_text('[target]\nname = "y"\n[columns]\nage = [0, 90]\ncity = ["a", "b"]\n')
        (place / "c.toml").write_text('data = "rows.csv"\ntarget = "y"\nepsilon = 1.0\n')
        Ledger.open(place / "ledger", budget=(1.0, 1e-5))
        (place / "run").mkdir()
    return place


def command(data: bytes) -> None:
    """The first byte names the command; the rest are its arguments, with spaces between them."""
    first = COMMANDS[(data[0] if data else 0) % len(COMMANDS)].decode().split()
    text = data[1:].decode("utf-8", "replace").replace("\0", "")
    arguments = [word.strip("'") for word in text.split(" ")[:30]]
    if any("/" in argument or ".." in argument or "~" in argument for argument in arguments):
        return  # nothing outside the folder is touched
    place, before = _place(), os.getcwd()
    os.chdir(place)
    try:
        result = CliRunner().invoke(main, [*first, *arguments])
    finally:
        os.chdir(before)
    error = result.exception
    if error is not None and not isinstance(error, SystemExit) and code_of(error) is None:
        raise error
    check(result.exit_code in (0, 2, 3, 5), f"exit code {result.exit_code}: {result.output[-200:]}")
    if result.exit_code and not result.output.strip():
        raise Broken("an exit code without a word")


def _seeds() -> list[bytes]:
    lines = {
        0: "--rows 1000 --columns 5 --epsilon 1",
        1: "rows.csv --target y --classes 0,1 --bounds age=0,90",
        2: "rows.csv --target y --classes 0,1 --bounds age=0,90 --categories city=a,b --epsilon 1",
        3: "ledger --json",
        4: "run",
        5: "run",
        6: "run rows.csv -o o.csv",
        7: "bash",
    }
    return [bytes([number]) + text.encode() for number, text in lines.items()]


TARGETS = [Target("command line", command, _seeds, [b" " + token for token in TOKENS], slow=30)]
