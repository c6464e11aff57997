"""The side of the server: clients behind a Flower `Grid` as one more place that messages come from.

`minimize(plan.problem, plan.pipe, clients=FlowerClients(grid, plan), ...)` is the loop of every other run: the grid
carries orders there and answers back.  A client that is late, gone, or answers nonsense adds nothing to a round.

A Flower `Grid` in one process: to try an app out, and for tests.  Messages are written to bytes and read again.

A Flower `Strategy`: `start` is the library's own loop over the nodes of a grid.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import uuid4

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.codecs import CodecError
from isthmus.core import pipeline
from isthmus.core.group import Aggregator
from isthmus.core.minimize import Result, minimize
from isthmus.core.pipeline import Client, Round, RunContext, Stage
from isthmus.core.wire import Message, State
from isthmus.distributed.flower import federation as agreed
from isthmus.distributed.flower.federation import RECORD, Elsewhere, Federation, flower, from_arrays, to_arrays
from isthmus.distributed.order import Order, _stage_of, order_of
from isthmus.distributed.secagg import BadMessage, RoundRefused, SecurePlan, SecureServer
from isthmus.privacy import Ledger, PrivacyStatement
from isthmus.privacy.event_json import DpEvent
from isthmus.privacy.sampling import Sampler, rate_of

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
    from flwr.app import Message as Letter
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result as Outcome

_LOG = logging.getLogger("flwr")

_PAUSE = 1.0
_Between = Callable[[int, "Letter"], "Letter | None"]


class NobodyAnswered(RuntimeError):
    """Several rounds in a row were asked of clients and got no valid answer, or too few for secure aggregation.

    Rounds in which no vector could have left a client were not charged.
    """


@dataclass
class _Traffic:
    """What went to clients and came back: for the eyes of whoever runs the server.

    In a private run it shows whom a round looked at, which outsiders must not learn (see `FlowerClients`).

    up, down   bytes of answers and of orders with their iterates
    rounds     for every collected stage, and every attempt at a total of secure aggregation: t, and how many clients
               were asked, answered, were late, and failed
    reasons    why answers were refused, or what clients said that failed: how often each
    """

    up: int = 0
    down: int = 0
    rounds: list[dict[str, int]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    silent: int = 0
    holds: dict[int, Tensor] = field(default_factory=dict, repr=False)
    """The iterate that a client has kept, by node, where changes are sent."""

    def note(self, t: int, asked: int, answered: int = 0, late: int = 0, failed: int = 0) -> None:
        """The counts of one more stage, or attempt."""
        self.rounds.append({"asked": asked, "answered": answered, "late": late, "failed": failed, "t": t})

    def why(self) -> str:
        """The most frequent reasons."""
        return "; ".join(f"{text} ({count} times)" for text, count in self.reasons.most_common(3))


@dataclass(frozen=True)
class _LoopsLedger:
    """What secure aggregation is paid from: the loop, which has asked for all of its rounds before the first."""

    charge: Callable[[], None]

    def require(self, event: DpEvent, what: str) -> None:
        """Nothing is asked again."""

    def pay(self, what: str, event: DpEvent, rounds: int = 1, *, seeded: bool = False) -> None:
        """Charge the stage."""
        self.charge()


@dataclass(frozen=True)
class FlowerClients(Aggregator):
    """The nodes of a Flower `Grid`, each with its own records.

    grid      of the `ServerApp`
    plan      what server and clients share
    timeout   seconds that a round waits for answers; what comes later does not count
    wait      seconds that the first round waits for all clients to connect; then it goes on with those who are there
    patience  how many rounds in a row (or all of a plan that has fewer) may go without any right answer before the run
              is given up; in secure aggregation, how many attempts in a row at a total

    A run that is not private asks every client that is connected, or as many as `Wire.per_round` says, drawn as
    `isthmus.Clients` draws them, and takes the mean of those who answer.

    A private run divides by a public number, whoever answers.  Over records, every connected client is asked, and draws
    its own records.  Over clients, each connected one is asked with probability q by coins of the server's secret
    source; a round that asks nobody is released and paid for.

    In secure aggregation an attempt waits up to `wait` seconds until as many clients are connected as it needs, and
    asks all who are.  Where too few send keys or letters it has cost nothing, and the round is tried again with whoever
    is there then; where too few send vectors or shares the round is paid for and moves nothing.
    """

    grid: Grid | LocalGrid
    plan: Federation
    timeout: float | None = 600.0
    wait: float = 60.0
    patience: int = 3
    traffic: _Traffic = field(default_factory=_Traffic, compare=False)
    problems: Sequence[Elsewhere | None] = (None,)
    clock: Callable[[float], None] = field(default=time.sleep, compare=False, repr=False)

    def __post_init__(self) -> None:
        validate.positive_int(patience=self.patience)
        validate.non_negative(wait=self.wait)
        if self.timeout is not None:
            validate.positive(timeout=self.timeout)

    def holding(self, problems: Sequence[Any]) -> FlowerClients:
        """The same clients; the server's own problem has no records."""
        remedy = "give plan.problem as the objective: the records are with the clients"
        validate.check(isinstance(problems[0], Elsewhere), "objective", type(problems[0]).__name__, remedy)
        return replace(self, problems=tuple(problems))

    def check_private(self, n: int, samplers: Sequence[Sampler]) -> None:
        """Each client draws its own records, and the server its clients: subsets of a fixed size are refused."""
        pipeline.check_samplers(samplers, "clients")

    # ------------------------------------------------------------ one stage of a round

    def collect(self, round: Round, stage: Stage, context: RunContext) -> Message:
        """The sum of the answers of this stage."""
        order, there = order_of(round, stage), _stage_of(self.plan.at_clients, stage.name)
        server, fresh = Client("server", self.plan.problem, 0, self.plan.terms, 1 / self.plan.clients), copy(round)
        fresh.memory = {}
        # the sum of no records: its sizes, dtypes and bounds are those that every answer must have
        empty = replace(pipeline.contribute(fresh, there, server, context.keys), coded={}, dims=0, bytes=0)
        if there.private:
            empty = agreed._narrowed(empty, self.plan, there.sampler)
        if self.plan.dropouts is not None:
            return self._secured(order, _LoopsLedger(partial(pipeline.pay, round, stage, context.ledger)), there, empty)
        visits = self.asked(round, stage, context)
        answers = self._answers(order, visits, empty)
        if answers:
            self.traffic.silent = 0
        elif visits or not self.plan.private:
            self.traffic.silent += 1
        if self.traffic.silent >= min(self.patience, self.plan.rounds):
            why = self.traffic.why() or "no client answered in time; start SuperNodes, or give a longer timeout"
            silent = f"{self.traffic.silent} rounds in a row (the last was round {order.t})"
            raise NobodyAnswered(f"No valid answer came in {silent}: {why}")
        return self._total(there, empty, answers)

    def asked(self, round: Round, stage: Stage, context: RunContext) -> list[tuple[int, int]]:
        """Whom this stage asks: nodes, and how often each was asked before in it."""
        nodes, per_round = self._connected(), self.plan.pipe.wire.per_round
        if not stage.private and nodes:
            return [(nodes[place], visit) for place, visit in pipeline.drawn_clients(per_round, round, len(nodes))]
        if stage.private and self.plan.unit == "client":
            assert context.keys.noise is not None
            coins = context.keys.noise.mask(len(nodes), rate_of(stage.sampler))
            nodes = [node for node, coin in zip(nodes, coins.tolist(), strict=True) if coin]
        return [(node, 0) for node in nodes]

    def _connected(self, needed: int = 0) -> list[int]:
        """The nodes that are there; the first round waits for all, later ones for as many as are `needed`.

        Bounds of private sums hold for M, and no more.
        """
        if not self.traffic.rounds:
            needed = self.plan.clients
        nodes, waited = sorted(self.grid.get_node_ids()), 0.0
        while len(nodes) < needed and waited < self.wait:
            self.clock(_PAUSE)
            nodes, waited = sorted(self.grid.get_node_ids()), waited + _PAUSE
        if self.plan.private:
            remedy = f"disconnect some, or make a plan of more clients for both sides: {len(nodes)} are connected"
            validate.check(len(nodes) <= self.plan.clients, "clients", self.plan.clients, remedy)
        return nodes

    def _exchange(
        self, contents: Iterable[tuple[int, RecordDict]], group: str, take: Callable[[Letter, bytes], object]
    ) -> list[Letter]:
        """Send every node its message, and take the answers that come in time; one that is refused does not count."""
        app, traffic, letters = flower().app, self.traffic, []
        for node, content in contents:
            traffic.down += sum(record.count_bytes() for record in content.values())
            # what nobody waits for any more is not delivered: a slow client does not work through old orders
            letters.append(app.Message(content, node, app.MessageType.TRAIN, ttl=self.timeout, group_id=group))
        replies = list(self.grid.send_and_receive(letters, timeout=self.timeout))
        for reply in replies:
            try:
                data = agreed._answer_in(reply)
                traffic.up += len(data)
                take(reply, data)
            except (validate.InvalidInput, CodecError, BadMessage) as error:
                traffic.holds.pop(reply.metadata.src_node_id, None)  # it may have lost what it kept
                traffic.reasons[str(error)] += 1
                _LOG.warning("a client's answer does not count: %s", error)
        return replies

    def _answers(self, order: Order, visits: Sequence[tuple[int, int]], empty: Message) -> list[Message]:
        """The right answers of those that came in time."""
        plan, holds, contents = self.plan, self.traffic.holds, []
        assert order.w is not None
        if not visits:
            self.traffic.note(order.t, 0)
            return []
        for node, visit in visits:
            since = holds.get(node) if plan.down == "update" else None
            contents.append((node, agreed.ask(order, plan.whole, visit, since, plan.digest)))
            holds[node] = order.w
        sampler, sent = _stage_of(plan.at_clients, order.stage).sampler, agreed.config_of(contents[0][1])["order"]
        divisor = None if plan.private else partial(sampler.divisor, t=order.t)
        messages: dict[str, Message] = {}

        def take(reply: Letter, data: bytes) -> None:
            came = agreed._read_answer(data, sent, empty, plan.pipe.wire.codec, divisor)
            if plan.private:  # a sum that is longer than the public length is shortened here too
                own = agreed._reach_of(plan, sampler)[0]
                came = replace(came, values={name: agreed._shortened(b, own) for name, b in came.values.items()})
            messages.setdefault(reply.metadata.reply_to_message_id, came)

        replies = self._exchange(contents, str(order.t), take)
        for node in {node for node, _ in visits} - {reply.metadata.src_node_id for reply in replies}:
            holds.pop(node, None)
        late, failed = len(visits) - len(replies), len(replies) - len(messages)
        self.traffic.note(order.t, len(visits), len(messages), late, failed)
        return list(messages.values())

    # ------------------------------------------------------------ secure aggregation

    def _secured(self, order: Order, payer: _LoopsLedger, stage: Stage, empty: Message) -> Message:
        """The noisy total of secure aggregation; where too few were left after the round was paid for, zero."""
        ((name, like),) = empty.values.items()
        plan = self.plan.secure(stage, like.value.numel(), order.bounds[f"{stage.name}/{name}"])
        total = None
        while total is None:
            nodes = self._connected(plan.needed)
            try:
                total = self._secure_total(order, plan, nodes, payer)
                self.traffic.silent = 0
                self.traffic.note(order.t, len(nodes), answered=1)
            except RoundRefused as refused:
                self.traffic.note(order.t, len(nodes), failed=1)
                self.traffic.silent = silent = self.traffic.silent + 1
                self.traffic.reasons[str(refused)] += 1
                if silent >= self.patience or (refused.charged and silent >= self.plan.rounds):
                    words = f"{silent} attempts in a row at a total have failed (the last in round {order.t})"
                    more = f"plan for more than {plan.dropouts} lost ones (dropouts={self.plan.dropouts:g})"
                    raise NobodyAnswered(f"{words}: {self.traffic.why()}. Start more clients, or {more}") from refused
                if refused.charged:
                    total = torch.zeros_like(like.value)
        value = agreed._NoisedSum(total.to(torch.float64), like.ord, like.bound, dtype=like.dtype)
        sums, count = replace(empty, values={name: value}), plan.vector_bytes * plan.clients
        return replace(self._total(stage, sums, []), dims=plan.m * plan.clients, bytes=count)

    def _secure_total(self, order: Order, plan: SecurePlan, nodes: list[int], payer: _LoopsLedger) -> Tensor:
        """The noisy total in the units of the vectors; `RoundRefused` where too few clients were left."""
        server, app = SecureServer(plan, payer), flower().app
        index = {node: place for place, node in enumerate(sorted(nodes)[: plan.clients])}

        def exchange(step: str, letters: Mapping[int, bytes]) -> None:
            contents = []
            for node, data in letters.items():
                content = app.RecordDict({RECORD: app.ConfigRecord({"plan": self.plan.digest})})
                if step == "vector":
                    content = agreed.ask(order, self.plan.whole, plan=self.plan.digest)
                content[RECORD].update({"step": step, "data": data, "index": index[node], "m": plan.m})
                contents.append((node, content))
            self._exchange(contents, step, lambda reply, data: server.receive(data, index[reply.metadata.src_node_id]))

        exchange("keys", dict.fromkeys(index, server.invitation()))
        exchange("letters", dict.fromkeys(index, server.roster()))
        inboxes = server.inboxes()
        exchange("vector", {node: inboxes[place] for node, place in index.items() if place in inboxes})
        exchange("shares", dict.fromkeys(index, server.survivors()))
        return torch.from_numpy(server.value())

    # ------------------------------------------------------------ the sum

    def _total(self, stage: Stage, empty: Message, answers: list[Message]) -> Message:
        """The sum; in a private run with the public divisor, and with public counts of numbers and bytes."""
        plan, source = self.plan, _stage_of(self.plan.pipe, stage.name).sampler
        if not stage.private:
            if not answers:
                return replace(empty, divisor=1.0, fixed=False)
            records = None
            if plan.unit == "record" and not plan.uniform:
                records = plan.terms
            return reduce(
                add, [pipeline.counted(each, records, plan.pipe.wire.per_round, plan.clients) for each in answers]
            )
        total = replace(empty, divisor=source.divisor(plan.terms), fixed=True)
        for message in answers:
            total = total + replace(message, divisor=total.divisor, fixed=True)
        share = float(plan.clients)
        if plan.unit == "client":
            share *= rate_of(source)
        numbers = [bounded.value for bounded in empty.values.values()]
        dims, count = sum(value.numel() for value in numbers), sum(value.nbytes for value in numbers)
        return replace(total, dims=round(share * dims), bytes=round(share * count))


class LocalGrid:
    """`clients` nodes that run one `ClientApp`, with partitions 0, 1, ... and a state of their own.

    between   (number of the client, its reply) -> what arrives of it, or None where nothing does
    up, down  bytes of all replies and messages, as Flower writes them
    """

    def __init__(
        self, app: ClientApp, clients: int, *, config: dict[str, Any] | None = None, between: _Between | None = None
    ) -> None:
        validate.positive_int(clients=clients)
        flower().serverapp.Grid.register(type(self))
        self.app, self.between, self.up, self.down = app, between, 0, 0
        self.serde: Any = importlib.import_module("flwr.common.serde")
        who = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
        if who._run_id is None:  # messages are signed with the run of their process, which Flower sets in its own
            who.run_id, who.node_id, who.task_id = 1, 1, 1
        self.contexts: dict[int, Context] = {}
        for number in range(clients):
            node, state = {"partition-id": number, "num-partitions": clients}, flower().app.RecordDict()
            self.contexts[1000 + number] = flower().app.Context(1, 1000 + number, node, state, dict(config or {}))

    def get_node_ids(self) -> list[int]:
        """All nodes."""
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Letter], *, timeout: float | None = None) -> list[Letter]:
        """Run the app of every addressee; the replies, without those that never come."""
        replies = [self._answered(message) for message in messages]
        return [reply for reply in replies if reply is not None]

    def _answered(self, message: Letter) -> Letter | None:
        app, node = flower().app, message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = str(uuid4())
        came, size = self._travelled(message)
        self.down += size
        try:
            reply: Letter | None = self.app(came, self.contexts[node])
        except Exception as error:  # as a node does: what an app raises comes back as an error
            reply = app.Message(app.Error(code=1, reason=f"{type(error).__name__}: {error}"), reply_to=came)
        if self.between is not None and reply is not None:
            reply = self.between(node - 1000, reply)
        if reply is not None:
            reply, size = self._travelled(reply)
            self.up += size
        return reply

    def _travelled(self, message: Letter) -> tuple[Letter, int]:
        proto = self.serde.message_to_proto(message)
        data = proto.SerializeToString()
        return self.serde.message_from_proto(type(proto).FromString(data)), len(data)


@dataclass(eq=False)
class SketchStrategy:
    """Trains over Flower clients that send sketches (`isthmus.distributed.flower.client_app`, or `sketch_mod`).

    plan      what server and clients share
    ledger    of a private run (`isthmus.privacy.Ledger`); by default one in memory
    seed      of the public randomness: clients rebuild the maps from it
    timeout, wait, patience, noise_seed   as for `FlowerClients` and `minimize`

    It is a `flwr.serverapp.strategy.Strategy`.  After `start`:

    found      what `minimize` returned
    clients    the `FlowerClients`: `clients.traffic` has the bytes up and down, and what was lost
    outsiders  the privacy statement for everybody who sees the model, or models of all rounds
    insiders   the one for somebody who also knows whom each round asked: no amplification by sampling
    """

    plan: Federation
    _: KW_ONLY
    ledger: Ledger | None = None
    seed: int = 0
    wait: float = 60.0
    patience: int = 3
    noise_seed: int | None = None
    found: Result | None = field(default=None, init=False)
    clients: FlowerClients | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        flower().strategy.Strategy.register(type(self))

    def start(
        self,
        grid: Grid | LocalGrid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Outcome:
        """Run all rounds of the plan; the result is Flower's, with the arrays of the point that was found.

        initial_arrays  where to start; None: the point of the set nearest to 0
        num_rounds      None, or the rounds of the plan: its noise and its maps are planned for them
        timeout         seconds that a round waits for answers
        evaluate_fn     (round, arrays) -> MetricRecord at the server, before the first round and after each; what it
                        looks at must not be private records
        """
        plan, remedy = self.plan, f"give {self.plan.rounds}, the number of rounds of the plan, or another plan"
        validate.check(num_rounds in (None, plan.rounds), "num_rounds", num_rounds, remedy)
        none = not train_config and not evaluate_config
        validate.check(none, "train_config, evaluate_config", "given", "leave them out: clients have the plan")
        result: Outcome = flower().strategy.Result()
        self.clients = clients = FlowerClients(grid, plan, timeout, self.wait, self.patience)
        _LOG.info("Isthmus: %s, d = %s, %s rounds, %s clients", plan.recipe, plan.whole.d, plan.rounds, plan.clients)
        if plan.private:
            _LOG.info("for those who know whom each round asked: %s", self.insiders)

        def evaluate(state: State) -> None:
            if evaluate_fn is not None:
                metrics = evaluate_fn(state.t, to_arrays(state.w, plan.whole))
                if metrics is not None:
                    result.evaluate_metrics_serverapp[state.t] = metrics

        def look(record: Mapping[str, object], state: State) -> None:
            """What a round moved: public numbers only, so a private run does not say who answered."""
            figures = {"numbers-up": state.dims, "bytes-up": state.bytes}
            if not plan.private:
                figures |= {name: count for name, count in clients.traffic.rounds[-1].items() if name != "t"}
            result.train_metrics_clientapp[state.t] = flower().app.MetricRecord(figures)
            _LOG.info("[ROUND %s/%s] %s", state.t, plan.rounds, figures)
            evaluate(state)

        if initial_arrays is None:
            first = plan.constraint.project(torch.zeros(plan.whole.d, dtype=plan.dtype))
        else:
            first = from_arrays(initial_arrays, plan.whole).to(plan.dtype)
        evaluate(State(w=first))
        self.found = minimize(
            plan.problem, plan.pipe, plan.constraint, steps=plan.rounds, seed=self.seed, x0=first,
            clients=clients, ledger=self.ledger, noise_seed=self.noise_seed, record=1, callbacks=[look], progress=False,
        )  # fmt: skip
        if self.found.x is not None:
            result.arrays = to_arrays(self.found.x, plan.whole)
        return result

    @property
    def outsiders(self) -> PrivacyStatement | None:
        """The statement of the run; None before it has ended, and where it is not private."""
        if self.found is None:
            return None
        return self.found.privacy

    @property
    def insiders(self) -> PrivacyStatement | None:
        """The statement for those who know whom each round asked."""
        if not self.plan.private:
            return None
        return self.plan.insiders(seeded=self.noise_seed is not None)

    # ------------------------------------------------------------ the hooks of other strategies' loops

    def configure_train(self, *of_flower: object) -> NoReturn:
        """Refused: a round may have several stages, and is charged before it is released; `start` is the loop.

        Wrappers that add noise of their own would add it to noise.
        """
        validate.refuse("strategy", "its hooks", "call start(grid, ...): wrappers of strategies cannot drive this one")

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train
