"""Inputs that once ended in an error nobody documented: each stands for its kind."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
import torch

from fuzz.target import a_file
from fuzz.targets import TARGETS
from isthmus import InvalidInput, sets
from isthmus.core.wire import FORMAT, State
from isthmus.distributed.secagg.plan import SecurePlan
from isthmus.privacy import PrivacyPlan, PrivacyStatement, event_json
from isthmus.privacy.accounting import delta_of, epsilon_of
from isthmus.report import svg
from isthmus.report.record import Record
from isthmus.runs.config import Settings
from isthmus.tables.files import Reading, read
from isthmus.tables.schema import Schema


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("csv", b'\x01""'),  # no name in the first line
        ("csv", b"@\r$"),  # csv.Error: lines that end as on old machines
        ("csv", b"\x10" + gzip.compress(b"a,b\n1,2\n" * 9, mtime=0)[:-12]),  # EOFError
        ("csv", b"\x10" + gzip.compress(b"a,b\n1,2\n" * 9, mtime=0)[:20] + b"\xff" * 9),  # zlib.error
        ("csv", b"\x0cage,city\n1,2\n"),  # UnicodeError: no mark of the order of bytes
        ("csv", b"\x00age,\x0b,\x0c\n1,2,3\n"),  # several names that are blank once they are stripped
        ("schema", b'[target]\nname = "\xf8"\n'),  # UnicodeDecodeError
        ("statement", b""),
        ("statement", b"\xff\x03or\x85\x90\x9b\xa6\xb1\xbc\xc7\xff"),  # a number where text is due
        ("statement", b"\xff\x02X\xc8X"),  # an epsilon of 1e-320
        ("budget plan", b"{}"),
        ("event", b"\xff\x02\x00\x05N"),  # a number where a list is due
        ("event", b'\xff"&\xaa`'),  # noise of 1e-320
        ("secure client", b'{"kind": "secure client", "tree": {"index": 0}, "arrays": []}'),
        ("ledger records", b"\xff\x00\x00@\xbf\xff"),  # an adjacency that there is not
        ("ledger records", b"\xff\x03oz\x85\x90\x9b\xa6\xb1\xbc\xc7"),  # a number where a table is due
        ("run folder", b"~\xff\x02kv0\x9c\xff"),
        ("run folder", b"\x04\xff\x02JU`kv\x81\x8c\x97\xa2"),
        ("wire tree", b"\x00\xffg\x04\x00\x00\x04\x00$"),  # a divisor of 10^30 in whole numbers
        ("config", b'columns=""'),  # a text where a table is due
        ("event", b"\xff\xa3\x02A\x83"),  # an interval below all numbers
        ("stored tree", b"\x00\xff\x00\x00\x0b\x16!,7BMX"),  # a state without an iterate
        ("stored tree", b'\x02\xff\x02JU`"v\x81R\x97\xa2'),  # a model of parts that do not fit
        ("schema", b'[columns."a.b"]\ntype = "date"\nbounds =[9, 20.211]\n'),  # a part of a day
        ("schema", b'[columns."a"]\nsource=[2520-01-01,]'),  # a source that is none
        ("schema", b"[columns.a]\ntype = 'date'\nbounds = [0, 1e300]"),  # days beyond all dates
        ("stored tree", b"\x02\xff\x02\x0c~#U*k\x81\x8c"),  # one label, and coefficients of two
        ("wire tree", b"w\xff\xff\x85\x00p"),  # a tensor where a table is due
        ("stored tree", b"\x02\xff\x05\x00\x00\x00\x00\x00\x00\x00\xfb\x07\n"),  # a tensor where a text is due
    ],
)
def test_it_is_read_or_refused(name: str, data: bytes) -> None:
    TARGETS[name](data)


def test_a_cut_archive_is_refused_by_name() -> None:
    out = io.BytesIO()
    np.savez_compressed(out, X=np.random.default_rng(0).random((40, 3)), y=np.arange(40))
    data = bytearray(out.getvalue())
    data[60:200] = bytes(140)
    with a_file("cut.npz", bytes(data)) as path, pytest.raises(InvalidInput, match="cut.npz"):
        read(path)


def test_what_is_not_text_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a long path would be shortened in the message
    (tmp_path / "a.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(InvalidInput, match=r"a\.csv\.gz"):
        read(Path("a.csv.gz"))
    (tmp_path / "b.csv").write_bytes("é,b\n1,2\n".encode("latin-1"))
    with pytest.raises(InvalidInput, match="latin-1"):
        read(tmp_path / "b.csv", reading=Reading())
    (tmp_path / "s.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidInput, match=r"s\.toml"):
        Schema.load(Path("s.toml"))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"items": 3}', "[" * 10**5])
def test_texts_that_are_no_statement_and_no_plan(text: str) -> None:
    for read_it in (PrivacyStatement.from_json, PrivacyPlan.from_json):
        with pytest.raises(InvalidInput):
            read_it(text)


def test_noise_that_vanishes_has_no_epsilon() -> None:
    for size in (0.0, 1e-320, 1e-12):
        event = event_json.from_json({"event": "Laplace", "noise_multiplier": size})
        assert epsilon_of(event, 1e-5) == float("inf") and delta_of(event, 1.0) == 1.0


def test_numbers_that_cannot_be_computed_with_are_refused() -> None:
    with pytest.raises(InvalidInput):
        SecurePlan(clients=4, m=3, bound=1.0, noise_multiplier=1e-320)
    with pytest.raises(InvalidInput, match="axes"):
        sets.Ellipsoid([1e-200, 1.0])
    with pytest.raises(InvalidInput, match="float64"):
        sets.Ellipsoid([1e60, 1.0]).lmo(torch.ones(2))


def test_scalars_of_single_precision_points_do_not_overflow() -> None:
    ball = sets.Product([(sets.L2Ball(1e30), 1), (sets.Simplex(1e30), 2)])
    g = torch.tensor([1e10, -1e10, -1e10])
    assert ball.support(g) == pytest.approx(0.0, abs=1e-6 * 1e40) and ball.gauge(g) == float("inf")


@pytest.mark.parametrize("value", [0.1, 0.7, 1 / 3])
def test_equal_entries_and_a_ball_much_smaller_than_their_rounding(value: float) -> None:
    """The mean of equal entries may round to above all of them: then none was left over."""
    for d in range(2, 12):
        x = torch.full((d,), value, dtype=torch.float64)
        for body in (sets.L1Ball(1e-30), sets.Simplex(1e-30)):
            assert body.project(x).tolist() == pytest.approx([1e-30 / d] * d, rel=1e-9)


def test_a_name_that_is_too_long_for_any_file() -> None:
    with pytest.raises(InvalidInput, match="none can have this name"):
        read("a" * 5000 + ".csv")


def test_a_setting_without_a_value_is_refused() -> None:
    with pytest.raises(InvalidInput, match="epsilon"):
        Settings.from_dict({"data": "a.csv", "epsilon": None})


@pytest.mark.parametrize("change", [{"w": 3}, {"t": -1}, {"t": "1"}, {"parts": []}, {"other": 1}])
def test_a_state_of_other_parts_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    FORMAT.write(tmp_path / "state", {"w": torch.ones(2), "t": 1} | change)
    with pytest.raises(InvalidInput):
        State.load(tmp_path / "state")


@pytest.mark.parametrize(
    ("body", "point", "nearest"),
    [
        (sets.Ellipsoid([1e-77, 1e-77], 2e16), [1e100, 1e100], [2e-61 / 2**0.5] * 2),
        (sets.Ellipsoid([1e-77, 1.0], 2e16), [1e100, 1e100], [2e-138, 2e16]),
        (sets.Ellipsoid([1e-99, 1e99]), [1e300, 1.0], [1e-99, 1 / 1001]),
        (sets.Ellipsoid([1e-99, 1e-99]), [1e-98, 1e-300], [1e-99, 1e-301]),
        (sets.LpBall(33554176.0, 2.4e-299), [1.0, 2.8e14], [2.4e-299, 2.4e-299]),
        (sets.LpBall(3.0, 1e-300), [1e300, 1e300], [1e-300 / 2 ** (1 / 3)] * 2),
    ],
)
def test_points_very_far_from_sets_very_small(body: sets.ConvexSet, point: list[float], nearest: list[float]) -> None:
    projected = body.project(torch.tensor(point, dtype=torch.float64))
    assert projected.tolist() == pytest.approx(nearest, rel=1e-6, abs=0) and body.gauge(projected) == pytest.approx(1.0)
    assert body.gauge(torch.tensor(point, dtype=torch.float64)) > 1


@pytest.mark.parametrize(
    "p", [1 + 2.3e-16, 1 + 1e-12, 1.000000826082297, 1.001, 33.0, 1e8, 1e16, 6.951323462762126e24, 1e300]
)
@pytest.mark.parametrize("radius", [3.239439005473513e-275, 1.0, 1e200])
def test_balls_of_every_power(p: float, radius: float) -> None:
    """Near p = 1 and for large p the powers of rounded numbers are wrong in every digit: their logarithms are used."""
    ball, unit, rng = sets.LpBall(p, radius), sets.LpBall(p), np.random.default_rng(0)
    for k in range(20):
        x = torch.from_numpy(rng.standard_normal(1 + k % 6).round(k % 3) * 10.0 ** (k - 1))
        nearest, least = ball.project(x * radius), ball.lmo(x)
        assert ball.gauge(nearest) <= 1 + 1e-15 and ball.gauge(least) <= 1 + 1e-15
        y, s, size = nearest / radius, least / radius, 1 + float(x.norm())
        assert unit.support(x - y) - float((x - y) @ y) <= 1e-14 * size
        assert abs(unit.support(-x) + float(x @ s)) <= 1e-14 * size


@pytest.mark.parametrize(
    ("vertices", "point", "scale"),
    [
        ([[1e-300, 0.0], [0.0, 1e100]], [3.0, 2.0], 3e300),
        ([[1e-300, 0.0], [0.0, 1e300], [1e300, 0.0]], [1.0, 1.0], 2e-300),
        ([[1e-300, 0.0], [0.0, 1e100]], [1e100, 1.0], float("inf")),  # more than any number
        ([[0.0, 0.0], [1.0, 0.0]], [1e-300, 0.0], 1e-300),
        ([[0.0, 0.0]], [1e-300, 0.0], float("inf")),
        ([[0.0, 0.0]], [0.0, 0.0], 0.0),
    ],
)
def test_hulls_of_vertices_of_very_different_sizes(
    vertices: list[list[float]], point: list[float], scale: float
) -> None:
    hull = sets.ConvexHull(vertices)
    assert hull.gauge(torch.tensor(point, dtype=torch.float64)) == pytest.approx(scale, rel=1e-9, abs=0)


@pytest.mark.parametrize(
    "body",
    [
        sets.L1Ball(2.0),
        sets.L2Ball(2.0),
        sets.LInfBall(2.0),
        sets.LpBall(1.5, 2.0),
        sets.LpBall(7.0, 2.0),
        sets.Box([-1.0] * 4, [2.0] * 4),
        sets.Simplex(2.0),
        sets.ConvexHull([[3.0, 0, 0, 0], [0, 2.0, 0, 1.0], [0, 0, -1.0, 0], [-2.0, -1.0, 1.0, -4.0]]),
        sets.Subspace([[1.0, 2.0, 0, 0], [0, 0, 3.0, 1.0]], 2.0),
        sets.Ellipsoid([1.0, 2.0, 3.0, 5.0], 2.0),
        sets.NuclearBall(2.0, (2, 2)),
        sets.GroupBall([[0, 1], [2, 3]], 2.0),
        sets.Product([(sets.L2Ball(1.0), 2), (sets.L1Ball(1.0), 2)]),
    ],
    ids=str,
)
def test_minimisers_and_gauges_know_no_unit(body: sets.ConvexSet) -> None:
    """The minimiser of any multiple of g is that of g, and a gauge grows with its point, however small or large."""
    g = torch.tensor([0.3, -1.1, 0.7, 2.0], dtype=torch.float64)
    for kind, sizes in ((torch.float64, (1e-300, 1e-170, 1e200)), (torch.float32, (1e-36, 1e-20, 1e30))):
        start, close = g.to(kind), 1e-9 if kind is torch.float64 else 1e-4
        for size in sizes:
            assert torch.allclose(body.lmo(start * size), body.lmo(start), rtol=close, atol=close)
            gauge, at = body.gauge(start), body.gauge(start * size)
            assert (at == gauge == float("inf")) or at / size == pytest.approx(gauge, rel=close)


@pytest.mark.parametrize(
    "values", [[5e-324, 0.0], [1e300, 1e300], [-1.7e308, 1.7e308], [3.0, 3.0 + 4e-16], [0.0, 1e-300]]
)
@pytest.mark.parametrize("zero", [False, True])
def test_scales_of_charts_for_any_numbers(values: list[float], zero: bool) -> None:
    for decades in (False, True):
        scale = svg._scale(values, 0.0, 100.0, 5, decades, zero)
        assert np.isfinite([scale(value) for value in values]).all() and len(scale.ticks) > 1


def test_a_folder_whose_name_no_file_can_have() -> None:
    from isthmus.runs.folder import RunFolder

    with pytest.raises(InvalidInput, match="Folder not found"):
        RunFolder.open("run" * 200)
    with pytest.raises(InvalidInput, match="not found"):
        Record.from_file("run" * 200)
