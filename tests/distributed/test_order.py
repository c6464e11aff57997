"""The order of a round: it travels as a few bytes, is answered where the data is, and hostile bytes are refused."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import isthmus
from isthmus import LeastSquares, Logistic, algorithms, minimize
from isthmus.base import storage
from isthmus.core.group import Aggregator
from isthmus.core.pipeline import Client, Local, Pipeline, Release, Stage
from isthmus.core.wire import Keys, Message, Wire
from isthmus.distributed.order import DataSite, Order, order_of
from isthmus.parts import AgainstAnchor, Clients, Full, Restart, Shuffle, Uniform
from isthmus.privacy import Clip, Ledger
from isthmus.privacy.clips import ClippedSum
from isthmus.sketches import CountSketch, Identity, PublicSubspace, Residual, Sketch


def problem(n: int = 40, d: int = 12, seed: int = 0) -> LeastSquares:
    rng = np.random.default_rng(seed)
    return LeastSquares(rng.standard_normal((n, d)) / 4, rng.standard_normal(n))


class Far(Aggregator):
    """Holders of data behind a wire: orders and messages cross it as bytes, and nothing else does."""

    def __init__(self, problems: list[Any], pipe: Pipeline, seed: int = 0) -> None:
        self.problems, self.pipe, self.lengths = problems, pipe, []
        self.sites = [
            DataSite(pipe, each.space, Keys(seed), public_rows=lambda w, x: LeastSquares(*x).rows(w))
            for each in problems
        ]

    def holding(self, problems: Any) -> Far:
        return self

    def collect(self, round: Any, stage: Any, context: Any) -> Message:
        data = order_of(round, stage).to_bytes()
        self.lengths.append(len(data))
        total = None
        for number, (holder, place) in enumerate(zip(self.problems, self.sites, strict=True)):
            client = Client(str(number), holder, share=1 / len(self.problems))
            message = Message.from_bytes(place.answer(Order.from_bytes(data), client).to_bytes())
            total = message if total is None else total + message
        assert total is not None
        return total


def pipes() -> dict[str, Pipeline]:
    public = (torch.eye(12, dtype=torch.float64), torch.ones(12, dtype=torch.float64))
    learned = PublicSubspace(3, data=public, refresh=4)
    rule = lambda t: 0.2 / (1 + t)  # noqa: E731
    return {
        "sketch": Pipeline([Stage(Shuffle(7), [Release(encode=CountSketch(5), clip=Clip(0.1))])], rule),
        "feedback": Pipeline([Stage(Shuffle(7), [Release(encode=CountSketch(5))])], rule, wire=Wire(feedback=True)),
        "learned": Pipeline(
            [Stage(Full(), [Release("code", learned, Clip(0.1)), Release("rest", Residual(learned), Clip(0.1))])], rule
        ),
        "anchor": Pipeline(
            [
                Stage(Full(), [Release("anchor")], "anchor", every=3),
                Stage(Uniform(6), [Release("difference")], "inner", source=AgainstAnchor("anchor")),
            ],
            rule,
            average=Restart(3),
        ),
    }


@pytest.mark.parametrize("name", list(pipes()))
def test_a_round_over_a_wire_is_the_round_of_one_process(name: str) -> None:
    """The far side has the pipeline from the same code, and gets the iterate, anchors, bounds and bases as bytes."""
    many = problem(n=2000)
    here = minimize(many, pipes()[name], steps=9, seed=3)
    far = Far([many], pipes()[name], seed=3)
    there = minimize(many, pipes()[name], steps=9, seed=3, clients=far)
    assert torch.equal(here.x, there.x)
    assert max(far.lengths) < 3000 and many.X.nbytes > 10**5


def test_a_code_is_lifted_once_in_one_process_and_at_both_ends_of_a_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    lifted, lift = [], Sketch.pinv
    monkeypatch.setattr(Sketch, "pinv", lambda self, y: lifted.append(y) or lift(self, y))
    minimize(problem(), pipes()["feedback"], steps=9)
    assert len(lifted) == 9
    minimize(problem(), pipes()["feedback"], steps=9, clients=Far([problem()], pipes()["feedback"]))
    assert len(lifted) == 9 + 18


def test_encoders_are_found_by_slot_after_pickling() -> None:
    """Two slots that share an encoder share its map before and after, and id() has nothing to do with it."""
    shared = CountSketch(4)
    stage = Stage(Full(), [Release("code", shared), Release("rest", Residual(shared))])
    pipe = Pipeline([stage], step=_half)
    before = minimize(problem(), pipe, steps=5)
    assert [slot for slot, _ in pipe.encoders] == ["main/code", "main/rest", "main/rest.encoder"]
    again = pickle.loads(pickle.dumps(pipe))
    assert torch.equal(minimize(problem(), again, steps=5).x, before.x)


def _half(t: int) -> float:
    return 0.5


def test_an_order_is_a_value() -> None:
    order = Order("main", 3, 1, 7, 0.5, {"main/gradient": 1.0}, torch.arange(4.0))
    for again in (pickle.loads(pickle.dumps(order)), Order.from_bytes(order.to_bytes())):
        assert torch.equal(again.w, order.w)
        assert [again.stage, again.t, again.epoch, again.seed] == ["main", 3, 1, 7]
        assert again.bounds == {"main/gradient": 1.0}
    short = order.short()
    assert short.w is None and len(short.to_bytes()) < len(order.to_bytes())
    pipe = Pipeline([Stage(Full())], _half)
    data = LeastSquares(np.eye(4), np.ones(4))
    client = Client("0", data)
    site = DataSite(pipe, data.space, Keys(7))
    for wrong, why in (
        (short, "send the iterate with the order: there is none here"),
        (replace(order, stage="other"), "order.stage='other'"),
    ):
        with pytest.raises(isthmus.InvalidInput, match=why):
            site.answer(wrong, client)
    answered = [site.answer(each, client) for each in (order, Order.from_bytes(order.to_bytes()))]
    assert torch.equal(*(each.values["gradient"].value for each in answered))


MESSAGE = Message({"a": ClippedSum(torch.arange(9.0), 2, 1.0, dtype=torch.float32)}, 4.0, 9, 36)
ORDER = Order("main", 3, 1, 7, 0.5, {"main/gradient": 1.0}, torch.arange(4.0), released={"x": {"y": torch.ones(2)}})


def test_an_order_with_numbers_where_a_table_should_be_is_refused() -> None:
    with pytest.raises(isthmus.InvalidInput, match="tables by name"):
        Order.from_bytes(replace(ORDER, released={"x": torch.ones(2)}).to_bytes())


@pytest.mark.parametrize(("value", "kind"), [(MESSAGE, Message), (ORDER, Order)])
def test_hostile_bytes_are_refused(value: Any, kind: Any) -> None:
    """Cut, lengthened, flipped, re-labelled: nothing but `InvalidInput` comes of it, and nothing large is allocated."""
    data, rng = value.to_bytes(), np.random.default_rng(0)
    for length in range(0, len(data), 7):
        with pytest.raises(isthmus.InvalidInput):
            kind.from_bytes(data[:length])
    for _ in range(300):
        bad = bytearray(data)
        bad[int(rng.integers(len(bad)))] ^= int(rng.integers(1, 256))
        with pytest.raises(isthmus.InvalidInput):
            kind.from_bytes(bytes(bad))
    with pytest.raises(isthmus.InvalidInput, match="its kind"):
        kind.from_bytes(storage.pack("other", {}))


def _forged(kind: str, change: Any) -> bytes:
    """A message whose digest is right and whose contents are not."""
    data = (MESSAGE if kind == "message" else ORDER).to_bytes()
    _, version, words, _, _ = storage.HEAD.unpack_from(data)
    text, raw = data[storage.HEAD.size : storage.HEAD.size + words], data[storage.HEAD.size + words :]
    told = json.loads(text)
    change(told)
    text = json.dumps(told).encode()
    return storage.HEAD.pack(b"ISTH", version, len(text), len(raw), storage._digest(text + raw)) + text + raw


CHANGES: list[tuple[str, Any]] = [
    ("message", lambda told: told["arrays"][0].__setitem__(2, [10**12])),
    ("message", lambda told: told["arrays"][0].__setitem__(2, [-1])),
    ("message", lambda told: told["arrays"][0].__setitem__(2, [9.0])),
    ("message", lambda told: told["arrays"][0].__setitem__(1, "complex64")),
    ("message", lambda told: told["arrays"].append(told["arrays"][0])),
    ("message", lambda told: told["tree"].update(divisor=-1.0)),
    ("message", lambda told: told["tree"].update(divisor="1")),
    ("message", lambda told: told["tree"]["values"]["a"].update(bound=0.0)),
    ("message", lambda told: told["tree"]["values"]["a"].update(ord=3)),
    ("message", lambda told: told["tree"]["values"]["a"].update(value=[1, 2])),
    ("message", lambda told: told["tree"]["values"]["a"].update(dtype="evil")),
    ("message", lambda told: told["tree"]["values"]["a"].pop("value")),
    ("message", lambda told: told["tree"].update(values={"@held": {}})),
    ("message", lambda told: told["tree"].update(values=3)),
    ("message", lambda told: told.update(tree=None)),
    ("order", lambda told: told["tree"].update(t=-1)),
    ("order", lambda told: told["tree"].update(t=True)),
    ("order", lambda told: told["tree"].update(stage=7)),
    ("order", lambda told: told["tree"].update(bounds={"main/gradient": -2.0})),
    ("order", lambda told: told["tree"].update(digest="0")),
    ("order", lambda told: told["tree"].update(parts={"x": {"@set": "os.system", "fields": {}}})),
    ("order", lambda told: told["tree"].update(more=1)),
    ("order", lambda told: told["tree"].update(released={"x": {"y": 3}})),
]


@pytest.mark.parametrize(("kind", "change"), CHANGES)
def test_forged_contents_are_refused(kind: str, change: Any) -> None:
    with pytest.raises(isthmus.InvalidInput):
        (Message if kind == "message" else Order).from_bytes(_forged(kind, change))


def test_messages_hold_what_the_maps_say_and_are_finite() -> None:
    data = MESSAGE.to_bytes()
    assert Message.from_bytes(data, sizes={"a": 9}).values["a"].dtype == torch.float32
    for sizes in ({"a": 8}, {"b": 9}, {"a": 9, "b": 1}):
        with pytest.raises(isthmus.InvalidInput):
            Message.from_bytes(data, sizes=sizes)
    for bad in (torch.tensor([1.0, torch.nan]), torch.tensor([torch.inf, 0.0]), torch.ones(2, 2)):
        with pytest.raises(isthmus.InvalidInput):
            Message.from_bytes(Message({"a": ClippedSum(bad, 2, 1.0)}, 1.0).to_bytes())


class Sign:
    """A codec for tests: one byte a number."""

    def encode(self, v: torch.Tensor, seed: int) -> bytes:
        return v.sign().to(torch.int8).numpy().tobytes()

    def decode(self, data: bytes, like: torch.Tensor) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.int8).to(like.dtype).reshape(like.shape)

    def chi(self, m: int) -> float:
        return float(m)


def test_coded_messages_travel_as_the_bytes_of_their_codec() -> None:
    value = torch.randn(1000, dtype=torch.float64)
    coded = Message({"a": ClippedSum(value.sign(), 2, float("inf"))}, 1.0, coded={"a": Sign().encode(value, 0)})
    data = coded.to_bytes()
    assert len(data) < 1400
    again = Message.from_bytes(data, Sign(), {"a": 1000})
    assert torch.equal(again.values["a"].value, value.sign())
    for codec, sizes in ((None, {"a": 1000}), (Sign(), None), (Sign(), {"a": 10**15})):
        with pytest.raises(isthmus.InvalidInput):
            Message.from_bytes(data, codec, sizes)


# ---------------------------------------------------------------- private clients


def parts(objective: Any, count: int, make: Any) -> list[Any]:
    return [make(objective.X[i::count], objective.y[i::count]) for i in range(count)]


def labels(n: int = 60) -> Logistic:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, 5))
    return Logistic(X, (X[:, 0] > 0).astype(int), classes=[0, 1])


def logistic(X: Any, y: Any) -> Logistic:
    return Logistic(X, (y > 0).long(), classes=[0, 1])


@pytest.mark.parametrize("bought", [False, True])
def test_private_clients_are_one_process(bought: bool) -> None:
    """Sums over clients are sums over records: same noise, same ledger, and what is bought first goes the same way."""
    recipe = _buying() if bought else algorithms.dp_gd(epsilon=3.0, n="exact", step=1.0, clip=0.5)
    one, many = Ledger(), Ledger()
    alone = minimize(labels(), recipe, noise_seed=5, ledger=one, steps=6)
    apart = minimize(labels(), recipe, noise_seed=5, ledger=many, steps=6, clients=parts(labels(), 3, logistic))
    torch.testing.assert_close(alone.x, apart.x, rtol=0, atol=1e-9)
    assert one.rounds() == many.rounds() and alone.privacy.epsilon == apart.privacy.epsilon


def _buying() -> Any:
    from isthmus.algorithms.purchases import Columns, Ranges, buying

    return buying(algorithms.dp_gd(epsilon=30.0, n="exact", step=1.0, clip=0.5), [Ranges(), Columns()])


UNSOUND = [
    (lambda parts: Clients(parts, per_round=2), "per_round"),
    (lambda parts: Clients(parts, uniform=True), "uniform"),
    (lambda parts: [*parts, parts[0]], "give each of them once"),
    (lambda parts: parts[:2], "40 records"),
]


@pytest.mark.parametrize(("clients", "text"), UNSOUND)
def test_unsound_private_clients_are_refused_before_anything_is_spent(clients: Any, text: str) -> None:
    book = Ledger()
    recipe = algorithms.dp_gd(epsilon=3.0, n="exact", step=1.0, clip=0.5)
    with pytest.raises(isthmus.InvalidInput, match=text):
        minimize(labels(), recipe, ledger=book, steps=2, clients=clients(parts(labels(), 3, logistic)))
    assert book.rounds() == {}


def test_what_is_no_sum_is_not_bought_from_several_holders() -> None:
    from isthmus.algorithms.purchases import Lambda, buying

    recipe = buying(algorithms.dp_gd(epsilon=30.0, n="exact", step=1.0, clip=0.5), [Lambda()])
    minimize(labels(), recipe, noise_seed=1, steps=2)
    book = Ledger()
    with pytest.raises(isthmus.InvalidInput, match="TopEigenvalue is no sum"):
        minimize(labels(), recipe, noise_seed=1, ledger=book, steps=2, clients=parts(labels(), 3, logistic))
    assert book.rounds() == {}


def test_identity_round_is_local() -> None:
    """The one process of a plain run answers with the maps that it has bound: the identity is bound once."""
    bound = []

    class Counted(Identity):
        def bind(self, context: Any, state: Any) -> Any:
            bound.append(context.t)
            return super().bind(context, state)

    pipe = Pipeline([Stage(Full(), [Release(encode=Counted())])], _half)
    minimize(problem(), pipe, steps=4, clients=Local(problem()), record=None)
    assert bound == [0]
