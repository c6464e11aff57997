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
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn
from uuid import uuid4

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.randomness import generator
from isthmus.codecs import CodecError
from isthmus.core.group import Aggregator, check_samplers
from isthmus.core.measuring import Client, contribute
from isthmus.core.minimize import Result, minimize
from isthmus.core.pipeline import Round, RunContext, Stage
from isthmus.core.state import State
from isthmus.core.wire import Message
from isthmus.distributed.flower.federation import Elsewhere, Federation, narrowed, reach_of, shortened
from isthmus.distributed.flower.records import RECORD, ask, content_of, flower, from_arrays, read_answer, to_arrays
from isthmus.distributed.flower.secure import ForStage, NoisedSum, secure_total
from isthmus.distributed.order import Order, order_of, stage_of
from isthmus.distributed.secagg import RoundRefused, SecurePlan
from isthmus.privacy.sampling import Sampler
from isthmus.privacy.statement import PrivacyStatement

LOG = logging.getLogger("flwr")

PAUSE = 1.0


class NobodyAnswered(RuntimeError):
    """Several rounds in a row were asked of clients and got no valid answer, or too few for secure aggregation.

    Rounds in which no vector could have left a client were not charged.
    """


@dataclass
class Traffic:
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

    def refused(self, node: int, why: str) -> None:
        """An answer that does not count."""
        self.holds.pop(node, None)  # it may have lost what it kept
        self.reasons[why] += 1
        LOG.warning("a client's answer does not count: %s", why)


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

    grid: Any
    plan: Federation
    timeout: float | None = 600.0
    wait: float = 60.0
    patience: int = 3
    traffic: Traffic = field(default_factory=Traffic, compare=False)
    problem: Any = None
    clock: Callable[[float], None] = field(default=time.sleep, compare=False, repr=False)

    def __post_init__(self) -> None:
        validate.positive_int(patience=self.patience)
        validate.non_negative(wait=self.wait)
        if self.timeout is not None:
            validate.positive(timeout=self.timeout)

    @property
    def problems(self) -> Sequence[Any]:  # type: ignore[override]
        """What the server knows of them."""
        return (self.problem,)

    def holding(self, problems: Sequence[Any]) -> FlowerClients:
        """The same clients; the server's own problem has no records."""
        (problem,) = problems
        remedy = "give plan.problem as the objective: the records are with the clients"
        validate.check(isinstance(problem, Elsewhere), "objective", type(problem).__name__, remedy)
        return replace(self, problem=problem)

    def check_private(self, n: int, samplers: Sequence[Sampler]) -> None:
        """Each client draws its own records, and the server its clients: subsets of a fixed size are refused."""
        check_samplers(samplers, "clients")

    # ------------------------------------------------------------ one stage of a round

    def collect(self, round: Round, stage: Stage, context: RunContext) -> Message:
        """The sum of the answers of this stage."""
        order, there = order_of(round, stage), stage_of(self.plan.at_clients, stage.name)
        empty = self.nothing(round, there, context)
        if self.plan.dropouts is not None:
            return self._secured(order, ForStage(round, stage, context.ledger), there, empty)
        visits = self.asked(round, stage, context)
        messages = [self._letter(order, node, visit) for node, visit in visits]
        answers = self._answers(order, messages, empty) if messages else []
        self._patient(order, len(visits), len(answers))
        return self._total(there, empty, answers)

    def nothing(self, round: Round, stage: Stage, context: RunContext) -> Message:
        """The sum of no records: its sizes, dtypes and bounds are those that every answer must have."""
        client = Client("server", self.plan.problem, 0, self.plan.terms, 1 / self.plan.clients)
        fresh = copy(round)
        fresh.memory = {}
        message = contribute(fresh, stage, client, context.keys)
        message = replace(message, coded={}, dims=0, bytes=0)
        return narrowed(message, self.plan, stage.sampler) if stage.private else message

    def asked(self, round: Round, stage: Stage, context: RunContext) -> list[tuple[int, int]]:
        """Whom this stage asks: nodes, and how often each was asked before in it."""
        nodes = self._connected()
        per_round = self.plan.pipe.wire.per_round
        if stage.private and self.plan.unit == "client":
            assert context.keys.noise is not None
            coins = context.keys.noise.mask(len(nodes), float(stage.sampler.rate))  # type: ignore[attr-defined]
            return [(node, 0) for node, coin in zip(nodes, coins.tolist(), strict=True) if coin]
        if stage.private or per_round is None or not nodes:
            return [(node, 0) for node in nodes]
        count, visits, chosen = per_round(round.t) if callable(per_round) else per_round, Counter[int](), []
        for place in generator(round.seed, round.t, "clients").integers(0, len(nodes), count).tolist():
            chosen.append((nodes[place], visits[nodes[place]]))
            visits[nodes[place]] += 1
        return chosen

    def _connected(self, needed: int = 0) -> list[int]:
        """The nodes that are there; the first round waits for all, later ones for as many as are `needed`.

        Bounds of private sums hold for M, and no more.
        """
        if not self.traffic.rounds:
            needed = self.plan.clients
        nodes, waited = sorted(self.grid.get_node_ids()), 0.0
        while len(nodes) < needed and waited < self.wait:
            self.clock(PAUSE)
            nodes, waited = sorted(self.grid.get_node_ids()), waited + PAUSE
        if self.plan.private:
            remedy = (
                f"disconnect some clients, or make a plan of more clients for both sides: {len(nodes)} are connected"
            )
            validate.check(len(nodes) <= self.plan.clients, "clients", self.plan.clients, remedy)
        return nodes

    def _letter(self, order: Order, node: int, visit: int) -> Any:
        app, holds = flower().app, self.traffic.holds
        since = holds.get(node) if self.plan.down == "update" else None
        content = ask(order, self.plan.whole, visit, since, self.plan.digest)
        self.traffic.down += sum(record.count_bytes() for record in content.values())
        assert order.w is not None
        holds[node] = order.w
        # an order that nobody waits for any more is not delivered: a slow client does not work through old ones
        return app.Message(content, node, app.MessageType.TRAIN, ttl=self.timeout, group_id=str(order.t))

    def _answers(self, order: Order, letters: list[Any], empty: Message) -> list[Message]:
        """The right answers of those that came in time."""
        sent = letters[0].content[RECORD]["order"]
        codec, divisor = self.plan.pipe.wire.codec, None
        if not self.plan.private:
            sampler = stage_of(self.plan.at_clients, order.stage).sampler
            divisor = partial(sampler.divisor, t=order.t)
        messages: dict[str, Message] = {}
        nodes = [letter.metadata.dst_node_id for letter in letters]
        replies = [*self.grid.send_and_receive(letters, timeout=self.timeout)]
        for reply in replies:
            node, about = reply.metadata.src_node_id, reply.metadata.reply_to_message_id
            try:
                data = content_of(reply, "answer")
                self.traffic.up += len(data) if isinstance(data, bytes) else 0
                came = read_answer(data, sent, empty, codec, divisor)
                messages.setdefault(about, self._checked(order, came))
            except (validate.InvalidInput, CodecError) as error:
                self.traffic.refused(node, str(error))
        for node in set(nodes) - {reply.metadata.src_node_id for reply in replies}:
            self.traffic.holds.pop(node, None)
        counts = {"asked": len(nodes), "answered": len(messages), "late": len(nodes) - len(replies)}
        self.traffic.rounds.append({"t": order.t, **counts, "failed": len(replies) - len(messages)})
        return list(messages.values())

    def _checked(self, order: Order, message: Message) -> Message:
        """A private sum is no longer than a public length: one that is longer is shortened here too."""
        if not self.plan.private:
            return message
        own = reach_of(self.plan, stage_of(self.plan.at_clients, order.stage).sampler)[0]
        return replace(message, values={name: shortened(bounded, own) for name, bounded in message.values.items()})

    def _secured(self, order: Order, payer: ForStage, stage: Stage, empty: Message) -> Message:
        """The noisy total of secure aggregation; where too few were left after the round was paid for, zero."""
        ((name, like),) = empty.values.items()
        plan = self.plan.secure(stage, like.value.numel(), order.bounds[f"{stage.name}/{name}"])
        content = ask(order, self.plan.whole, plan=self.plan.digest)
        total = None
        while total is None:
            nodes = self._connected(plan.needed)
            counts = {"t": order.t, "asked": len(nodes), "answered": 0, "late": 0, "failed": 1}
            self.traffic.rounds.append(counts)
            try:
                total = secure_total(self.grid, plan, nodes, content, (self.traffic, self.timeout), payer)
                counts |= {"answered": 1, "failed": 0}
                self.traffic.silent = 0
            except RoundRefused as refused:
                self._no_total(order, plan, refused)
                if refused.charged:
                    total = torch.zeros_like(like.value)
        value = NoisedSum(total.to(torch.float64), like.ord, like.bound, dtype=like.dtype)
        sums, count = replace(empty, values={name: value}), plan.vector_bytes * plan.clients
        return replace(self._total(stage, sums, []), dims=plan.m * plan.clients, bytes=count)

    def _no_total(self, order: Order, plan: SecurePlan, refused: RoundRefused) -> None:
        """Give up a run whose attempts at a total have failed `patience` times in a row, or in all its rounds."""
        self.traffic.silent += 1
        self.traffic.reasons[str(refused)] += 1
        if self.traffic.silent >= self.patience or (refused.charged and self.traffic.silent >= self.plan.rounds):
            raise NobodyAnswered(
                f"{self.traffic.silent} attempts in a row at a total of secure aggregation have failed (the last in "
                f"round {order.t}): {self._why()}. Start the clients that are away, or make a plan in which more than "
                f"{plan.dropouts} of {plan.clients} may be lost (dropouts={self.plan.dropouts:g})"
            ) from refused

    def _why(self) -> str:
        return "; ".join(f"{text} ({count} times)" for text, count in self.traffic.reasons.most_common(3))

    def _patient(self, order: Order, visited: int, answered: int) -> None:
        """Give up a run that nobody answers in `patience` rounds in a row, or in all its rounds."""
        if not visited:
            self.traffic.rounds.append({"t": order.t, "asked": 0, "answered": 0, "late": 0, "failed": 0})
        self.traffic.silent = 0 if answered else self.traffic.silent + bool(visited or not self.plan.private)
        if self.traffic.silent >= min(self.patience, self.plan.rounds):
            why = self._why() or "no client answered in time; start SuperNodes, or give a longer timeout"
            raise NobodyAnswered(
                f"No valid answer came in {self.traffic.silent} rounds in a row (the last was round {order.t}): {why}"
            )

    def _counted(self, message: Message) -> Message:
        """An answer as it counts in the mean of all: as `isthmus.Clients` has it."""
        if self.plan.unit == "client" or self.plan.uniform:
            return message.normalised()
        message = message.by_records()
        if self.plan.pipe.wire.per_round is None or message.fixed:
            return message
        return replace(message, divisor=self.plan.terms / self.plan.clients)

    def _total(self, stage: Stage, empty: Message, answers: list[Message]) -> Message:
        """The sum; in a private run with the public divisor, and with public counts of numbers and bytes."""
        if not stage.private:
            counted = [self._counted(message) for message in answers]
            total = counted[0] if counted else replace(empty, divisor=1.0, fixed=False)
            for message in counted[1:]:
                total = total + message
            return total
        plan, source = self.plan, stage_of(self.plan.pipe, stage.name).sampler
        total = replace(empty, divisor=source.divisor(plan.terms), fixed=True)
        for message in answers:
            total = total + replace(message, divisor=total.divisor, fixed=True)
        share = plan.clients * (getattr(source, "rate", 1.0) if plan.unit == "client" else 1.0)
        sizes = [value.value for value in empty.values.values()]
        dims, count = sum(x.numel() for x in sizes), sum(x.numel() * x.element_size() for x in sizes)
        return replace(total, dims=round(share * dims), bytes=round(share * count))


Between = Callable[[int, Any], Any]


class LocalGrid:
    """`clients` nodes that run one `ClientApp`, with partitions 0, 1, ... and a state of their own.

    between   (number of the client, its reply) -> what arrives of it, or None where nothing does
    up, down  bytes of all replies and messages, as Flower writes them
    """

    def __init__(
        self, app: Any, clients: int, *, config: dict[str, Any] | None = None, between: Between | None = None
    ) -> None:
        validate.positive_int(clients=clients)
        flower().serverapp.Grid.register(type(self))
        flower_app = flower().app
        self.app, self.between, self.up, self.down = app, between, 0, 0
        self.serde: Any = importlib.import_module("flwr.common.serde")
        who = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
        if who._run_id is None:  # messages are signed with the run of their process, which Flower sets in its own
            who.run_id, who.node_id, who.task_id = 1, 1, 1
        self.contexts = {
            1000 + number: flower_app.Context(
                run_id=1,
                node_id=1000 + number,
                node_config={"partition-id": number, "num-partitions": clients},
                state=flower_app.RecordDict(),
                run_config=dict(config or {}),
            )
            for number in range(clients)
        }
        self._waiting: dict[str, Any] = {}

    def get_node_ids(self) -> list[int]:
        """All nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        """Run the app of every addressee."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            ids.append(message.metadata.message_id)
            reply = self._answered(message)
            if reply is not None:
                self._waiting[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        """The replies that have come."""
        return [self._waiting.pop(message_id) for message_id in message_ids if message_id in self._waiting]

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        """The replies to messages; nobody waits for those that never come."""
        return self.pull_messages(self.push_messages(messages))

    def _answered(self, message: Any) -> Any:
        flower_app, node = flower().app, message.metadata.dst_node_id
        came, size = self._travelled(message)
        self.down += size
        try:
            reply = self.app(came, self.contexts[node])
        except Exception as error:  # as a node does: what an app raises comes back as an error
            reply = flower_app.Message(
                flower_app.Error(code=1, reason=f"{type(error).__name__}: {error}"), reply_to=came
            )
        if self.between is not None:
            reply = self.between(node - 1000, reply)
        if reply is None:
            return None
        reply, size = self._travelled(reply)
        self.up += size
        return reply

    def _travelled(self, message: Any) -> tuple[Any, int]:
        proto = self.serde.message_to_proto(message)
        data = proto.SerializeToString()
        return self.serde.message_from_proto(type(proto).FromString(data)), len(data)


class SketchStrategy:
    """Trains over Flower clients that send sketches (`isthmus.distributed.flower.client_app`, or `sketch_mod`).

    plan      what server and clients share
    ledger    of a private run (`isthmus.privacy.Ledger`); by default one in memory
    seed      of the public randomness: clients rebuild the maps from it
    resume    the state of an earlier run of the same plan (`strategy.found.state`)
    timeout, wait, patience, noise_seed   as for `FlowerClients` and `minimize`

    It is a `flwr.serverapp.strategy.Strategy`.  After `start`:

    found      what `minimize` returned
    clients    the `FlowerClients`: `clients.traffic` has the bytes up and down, and what was lost
    outsiders  the privacy statement for everybody who sees the model, or models of all rounds
    insiders   the one for somebody who also knows whom each round asked: no amplification by sampling
    """

    def __init__(
        self,
        plan: Federation,
        *,
        ledger: Any = None,
        seed: int = 0,
        resume: State | None = None,
        wait: float = 60.0,
        patience: int = 3,
        noise_seed: int | None = None,
    ) -> None:
        flower().strategy.Strategy.register(type(self))
        self.plan, self.ledger, self.seed, self.resume = plan, ledger, seed, resume
        self.wait, self.patience, self.noise_seed = wait, patience, noise_seed
        self.found: Result | None = None
        self.clients: FlowerClients | None = None

    def start(
        self,
        grid: Any,
        initial_arrays: Any = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: Any = None,
        evaluate_config: Any = None,
        evaluate_fn: Callable[[int, Any], Any] | None = None,
    ) -> Any:
        """Run all rounds of the plan; the result is Flower's, with the arrays of the point that was found.

        initial_arrays  where to start; None: the point of the set nearest to 0
        num_rounds      None, or the rounds of the plan: its noise and its maps are planned for them
        timeout         seconds that a round waits for answers
        evaluate_fn     (round, arrays) -> MetricRecord at the server, before the first round and after each; what it
                        looks at must not be private records
        """
        plan, remedy = self.plan, f"give {self.plan.rounds}, the number of rounds of the plan, or another plan"
        validate.check(num_rounds in (None, plan.rounds), "num_rounds", num_rounds, remedy)
        extra = [config for config in (train_config, evaluate_config) if config]
        validate.check(not extra, "train_config, evaluate_config", extra, "leave them out: clients have the plan")
        result = flower().strategy.Result()
        self.clients = FlowerClients(grid, plan, timeout=timeout, wait=self.wait, patience=self.patience)
        self.summary()

        def look(record: dict[str, Any], state: State) -> None:
            self._note_metrics(result, state)
            if evaluate_fn is not None:
                self._evaluated(result, evaluate_fn, state)

        zero = torch.zeros(plan.whole.d, dtype=plan.dtype)
        start = None if initial_arrays is None else from_arrays(initial_arrays, plan.whole).to(plan.dtype)
        first = plan.constraint.project(zero) if start is None else start
        if evaluate_fn is not None and self.resume is None:
            self._evaluated(result, evaluate_fn, State(w=first))
        self.found = minimize(
            plan.problem, plan.pipe, plan.constraint, steps=plan.rounds, seed=self.seed, x0=first, resume=self.resume,
            clients=self.clients, ledger=self.ledger, noise_seed=self.noise_seed, record=1, callbacks=[look],
            progress=False,
        )  # fmt: skip
        if self.found.x is not None:
            result.arrays = to_arrays(self.found.x, plan.whole)
        return result

    def _note_metrics(self, result: Any, state: State) -> None:
        """What a round moved: public numbers only, so a private run does not say who answered."""
        figures: dict[str, int] = {"numbers-up": state.dims, "bytes-up": state.bytes}
        if not self.plan.private and self.clients is not None and self.clients.traffic.rounds:
            last = self.clients.traffic.rounds[-1]
            figures |= {name: last[name] for name in ("asked", "answered", "late", "failed")}
        result.train_metrics_clientapp[state.t] = flower().app.MetricRecord(figures)
        LOG.info("[ROUND %s/%s] %s", state.t, self.plan.rounds, figures)

    def _evaluated(self, result: Any, evaluate: Callable[[int, Any], Any], state: State) -> None:
        metrics = evaluate(state.t, to_arrays(state.w, self.plan.whole))
        if metrics is not None:
            result.evaluate_metrics_serverapp[state.t] = metrics

    @property
    def outsiders(self) -> PrivacyStatement | None:
        """The statement of the run; None before it has ended, and where it is not private."""
        return None if self.found is None else self.found.privacy

    @property
    def insiders(self) -> PrivacyStatement | None:
        """The statement for those who know whom each round asked."""
        return self.plan.insiders(seeded=self.noise_seed is not None) if self.plan.private else None

    def summary(self) -> None:
        """Log what is run."""
        plan = self.plan
        LOG.info("Isthmus: %s, d = %s, %s rounds, %s clients", plan.recipe, plan.whole.d, plan.rounds, plan.clients)
        if plan.private:
            LOG.info("for those who know whom each round asked: %s", self.insiders)

    # ------------------------------------------------------------ the hooks of other strategies' loops

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> NoReturn:
        """Refused: a round may have several stages, and is charged before it is released; `start` is the loop."""
        _refuse("configure_train")

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> NoReturn:
        """Refused, as `configure_train` is: wrappers that add noise of their own would add it to noise."""
        _refuse("aggregate_train")

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        """Nobody: figures of clients' records would be released without being paid for."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Any]) -> None:
        """Nothing was asked."""
        return None


def _refuse(name: str) -> NoReturn:
    validate.refuse("strategy", name, "call start(grid, ...): wrappers of strategies cannot drive this one")
