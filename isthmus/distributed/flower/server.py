"""The side of the server: clients behind a Flower `Grid` as one more place that messages come from.

`minimize(plan.problem, plan.pipe, clients=FlowerClients(grid, plan), ...)` is the loop of every other run: the grid
carries orders there and answers back.  A client that is late, gone, or answers nonsense adds nothing to a round.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.randomness import generator
from isthmus.codecs import CodecError
from isthmus.core.aggregators import Aggregator, Client, check_samplers
from isthmus.core.measuring import contribute
from isthmus.core.order import Order, stage_of
from isthmus.core.pipeline import Stage
from isthmus.core.wire import Message
from isthmus.distributed.flower.agreed import narrowed, reach_of, shortened
from isthmus.distributed.flower.federation import Elsewhere, Federation
from isthmus.distributed.flower.packages import flower
from isthmus.distributed.flower.records import RECORD, ask, content_of, read_answer
from isthmus.distributed.flower.secure import ForStage, NoisedSum, secure_total
from isthmus.distributed.secagg import RoundRefused, SecurePlan
from isthmus.privacy.sampling import Sampler

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

    def collect(self, order: Order, site: Any) -> Message:  # type: ignore[override]
        """The sum of the answers of this stage."""
        stage = stage_of(self.plan.at_clients, order.stage)
        empty = self.nothing(order, site, stage)
        if self.plan.dropouts is not None:
            return self._secured(order, site, stage, empty)
        visits = self.asked(order, site)
        messages = [self._letter(order, node, visit) for node, visit in visits]
        answers = self._answers(order, messages, empty) if messages else []
        self._patient(order, len(visits), len(answers))
        return self._total(stage, empty, answers)

    def nothing(self, order: Order, site: Any, stage: Stage) -> Message:
        """The sum of no records: its sizes, dtypes and bounds are those that every answer must have."""
        client = Client("server", self.plan.problem, 0, site, self.plan.terms, 1 / self.plan.clients)
        message = contribute(site.opened(order), stage, client, site.keys, {})
        message = replace(message, coded={}, dims=0, bytes=0)
        return narrowed(message, self.plan, stage.sampler) if stage.private else message

    def asked(self, order: Order, site: Any) -> list[tuple[int, int]]:
        """Whom this stage asks: nodes, and how often each was asked before in it."""
        nodes = self._connected()
        stage, per_round = site.stage(order), self.plan.pipe.wire.per_round
        if stage.private and self.plan.unit == "client":
            coins = site.keys.noise.mask(len(nodes), stage.sampler.rate)
            return [(node, 0) for node, coin in zip(nodes, coins.tolist(), strict=True) if coin]
        if stage.private or per_round is None or not nodes:
            return [(node, 0) for node in nodes]
        count, visits, chosen = per_round(order.t) if callable(per_round) else per_round, Counter[int](), []
        for place in generator(order.seed, order.t, "clients").integers(0, len(nodes), count).tolist():
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
        own = reach_of(self.plan, stage_of(self.plan.at_clients, order.stage).sampler).own
        return replace(message, values={name: shortened(bounded, own) for name, bounded in message.values.items()})

    def _secured(self, order: Order, site: Any, stage: Stage, empty: Message) -> Message:
        """The noisy total of secure aggregation; where too few were left after the round was paid for, zero."""
        ((name, like),) = empty.values.items()
        plan = self.plan.secure(stage, like.value.numel(), order.bounds[f"{stage.name}/{name}"])
        content, payer = ask(order, self.plan.whole, plan=self.plan.digest), ForStage(site.purse, stage, order.t)
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
