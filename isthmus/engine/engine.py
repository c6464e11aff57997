"""`PrivacyEngine`: a module, an optimiser and a loader become private; the loop around them stays as it was.

**Several processes in one private training** (`make_private(group=)`).  Every rank has its own copy of the module and
its own part of the records: record i belongs to rank i mod k.  Each draws the coins of its own records from its own
secrets; coins of Poisson sampling are independent, so that all ranks' samples together are one Poisson sample of all
records at the same rate.  Clipped sums meet on rank 0, which charges the only ledger and adds the noise once; epsilon
is that of one process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader

from isthmus import modules
from isthmus.base import validate
from isthmus.base.randomness import key
from isthmus.core.driver import Ticket, TorchDriver
from isthmus.core.group import Group
from isthmus.core.pipeline import Pipeline, Promise, Stage, others_parts, stopped
from isthmus.engine import checkpoint
from isthmus.engine import optimizer as steps
from isthmus.engine.loader import Draws, PrivateLoader, _check_draws, _check_loader, _check_physical, _collates
from isthmus.engine.options import GradientEmbedding, Norm, _check_loss, _check_options, _Unnoised, releases
from isthmus.gradients.layers import Layers
from isthmus.gradients.layers.forward_guard import KEPT, MEAN, MIXING, PIECES, RANDOM, SHAPES
from isthmus.gradients.rows import Stack
from isthmus.privacy import accounting, compose, event_json
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.event_json import DpEvent, dpa
from isthmus.privacy.leaks import warn_of_large_delta
from isthmus.privacy.ledger import BudgetExceeded, Ledger
from isthmus.privacy.noise import FastSource, GeneratorSource, SecretSource, Source, check_scale
from isthmus.privacy.plan import Charge, PrivacyPlan
from isthmus.privacy.sampling import FixedSize, FullBatch, Poisson
from isthmus.privacy.statement import Account, PrivacyStatement
from isthmus.sets import ConvexSet
from isthmus.sketches import Encoder

_Ranks = Group | dist.ProcessGroup | bool | None
_Triple = tuple[nn.Module, torch.optim.Optimizer, PrivateLoader]


# ---------------------------------------------------------------- what the promise of a training rests on, in words

_ASSUMPTIONS = (
    "one record belongs to one person",
    MIXING,
    "whether a step is taken does not depend on the private data beyond what was released",
    "model, sketch, clip, normaliser, number of rounds and learning rates are public choices",
)
FIXED = (
    "the number of steps was fixed before training, whatever was released: stopping on results costs a planned budget"
)
UNSEEN = (
    "training went on from a checkpoint without the ledger that it was begun with: nobody has seen what was released "
    "after the checkpoint was written, by the training that wrote it or by others that went on from it (one ledger "
    "file for all of them counts that)"
)
COLLATED = (
    "what collate_fn makes of a record does not depend on the other records of its batch (nor what __getitems__ of the "
    "dataset makes of it, where it reads a batch in one call), or the module and the loss make nothing of the "
    "difference (compared on first and on random batches, where the module is given the tensors of the batch; not "
    "proven): pad to a public length, or mask padding in the module and in the loss"
)
SHARED = (
    "all ranks read the same dataset in the same order, so that a record belongs to one rank; rank 0's ledger is the "
    "one that counts"
)
_NORMALISER = "the number of records is public: it sets the sampling rate"
PUBLIC = "the public examples are not private records, and were chosen without looking at those"


class Accountant:
    """Epsilon of everything the ledger holds.

    "pld" (and "prv", the same distribution composed numerically) is tight; "rdp" is looser.  Of n records, where their
    number is public, a delta of 1/n or more is warned of.

    >>> Accountant(Ledger()).get_epsilon(1e-5)
    0.0
    """

    name = "pld"

    def __init__(self, ledger: Ledger, kind: str = "pld", n: int | None = None) -> None:
        remedy = 'use "pld": the central limit theorem of this one is no upper bound, and reports too little'
        validate.check(kind != "gdp", "accountant", kind, remedy)
        validate.one_of(("pld", "prv", "rdp"), accountant=kind)
        self.ledger, self.kind, self.n = ledger, kind, n

    @classmethod
    def mechanism(cls) -> str:
        """The name of the default accountant."""
        return cls.name

    def get_epsilon(self, delta: float) -> float:
        """Epsilon at delta of everything released so far, its number of rounds taken as fixed beforehand."""
        validate.open_unit(delta=delta)
        warn_of_large_delta(delta, self.n)
        if self.kind != "rdp" or not len(self):
            return self.ledger.spent(delta)
        return self.cost(self.ledger.event(), delta)

    def cost(self, event: DpEvent, delta: float) -> float:
        """Epsilon at delta of an event."""
        if self.kind != "rdp" or self.ledger.adjacency is not Adjacency.ADD_REMOVE:
            return accounting.epsilon_of(event, delta, self.ledger.adjacency)  # by Renyi's where the tight one cannot
        return float(dpa.rdp.RdpAccountant().compose(event).get_epsilon(delta))

    def multiplier(self, sampler: FullBatch | Poisson | FixedSize, rounds: int, epsilon: float, delta: float) -> float:
        """The noise multiplier with which that many rounds cost epsilon at delta, from below within 0.01 %.

        >>> from isthmus.privacy import Poisson
        >>> [round(Accountant(Ledger(), name).multiplier(Poisson(0.01), 99, 1.0, 1e-5), 2) for name in ("pld", "rdp")]
        [0.9, 1.08]
        """
        charge = Charge("gradient", rounds=rounds, sampler=sampler)
        plan = PrivacyPlan(epsilon, delta, self.ledger.adjacency, items=[charge])
        tight = plan.multiplier("gradient")
        if self.kind != "rdp":
            return tight

        def cost(z: float) -> float:
            return self.cost(dpa.SelfComposedDpEvent(sampler.event(dpa.GaussianDpEvent(z)), rounds), delta)

        return accounting.solve(cost, epsilon, tight)[0]

    def limit(self, rounds: int, budget: tuple[float, float]) -> Callable[[str, event_json.Json, int], None]:
        """What refuses more rounds than a target (epsilon, delta) pays for, in this accountant's numbers.

        >>> ledger = Ledger()
        >>> run = ledger.run({"main": dpa.GaussianDpEvent(9.0)}, limit=Accountant(ledger).limit(1, (1.0, 1e-5)))
        >>> run.charge("main", 0)
        >>> run.charge("main", 1)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        isthmus.privacy.ledger.BudgetExceeded: 'main' needs epsilon 0...
        """

        def refuse_more(stage: str, event: event_json.Json, made: int) -> None:
            if made >= rounds:
                held = self.ledger.event()
                more = accounting.compose([held, event_json.from_json(event)])
                spent, asked = (self.cost(total, budget[1]) for total in (held, more))
                raise BudgetExceeded(stage, 1, spent, asked, budget)

        return refuse_more

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """(noise multiplier, sampling rate, steps) for each kind of round that is a sampled Gaussian."""
        entries: list[tuple[float, float, int]] = []
        records = event_json.flatten(event_json.to_json(self.ledger.event()), 1) if len(self) else []
        for record, count in records:
            inner, rate, z = event_json.from_json(record), 1.0, float("nan")
            if isinstance(inner, dpa.PoissonSampledDpEvent):
                inner, rate = inner.event, inner.sampling_probability
            elif isinstance(inner, dpa.SampledWithoutReplacementDpEvent):
                inner = inner.event
            if isinstance(inner, dpa.GaussianDpEvent):
                z = inner.noise_multiplier
            elif isinstance(inner, dpa.NonPrivateDpEvent):
                z = 0.0
            entries.append((float(z), float(rate), int(count)))
        return entries

    def __len__(self) -> int:
        return sum(self.ledger.rounds().values())


@dataclass
class Training:
    """What was made private: its driver and noise, the terms it goes on with, its sampler, and its planned steps."""

    driver: TorchDriver
    noise: Source
    terms: dict[str, object]
    sampler: str
    draws: Draws
    free: Callable[[], None]
    """Gives the loop's `GradScaler` back."""
    planned: int | None = None
    attached: bool = True
    agreed: str = ""
    """What all ranks of a group must have alike."""
    bare: bool = False
    """Whether no noise is added (`noise_multiplier=0`): nothing of it is private."""


class PrivacyEngine:
    """Makes training private through one pipeline: sample, per-example rows, sketch, clip, noise, lift, optimiser.

    accountant   "pld" (tight; "prv" is accepted for it) or "rdp"
    secure_mode  noise from the operating system's cryptographic generator, four-fold (slow: it is for narrow spaces);
                 otherwise from fast generators keyed by the operating system at every release
    ledger       a path, or a `privacy.Ledger`: what was released survives a kill, and may share a budget
    seed         public randomness only: sketches

    The guarantee is that of the ledger: `engine.statement(delta)` in words.  `engine.get_epsilon(delta)` is the epsilon
    of the steps so far, and holds where their number was fixed before training; training that may stop on what it
    sees is planned (`make_private_with_epsilon`), and its statement counts all planned steps.

    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.randn(40, 3), torch.randint(0, 2, (40,)))
    >>> module, engine = nn.Linear(3, 2), PrivacyEngine()
    >>> module, optimizer, loader = engine.make_private(
    ...     module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
    ...     data_loader=DataLoader(data, batch_size=10), noise_multiplier=1.0, max_grad_norm=1.0)
    >>> for x, y in loader:
    ...     nn.functional.cross_entropy(module(x), y).backward()
    ...     optimizer.step()
    >>> 0 < engine.get_epsilon(1e-5) < 10
    True
    """

    def __init__(
        self,
        *,
        accountant: str = "pld",
        secure_mode: bool = False,
        ledger: str | Path | Ledger | None = None,
        adjacency: Adjacency | str = "add-remove",
        seed: int = 0,
    ) -> None:
        validate.non_negative_int(seed=seed)
        Accountant(Ledger(), accountant)
        self.secure_mode, self.seed, self.adjacency = secure_mode, seed, Adjacency.of(adjacency)
        self._kind, self._given = accountant, ledger
        self._ledger = ledger if isinstance(ledger, Ledger) else None
        self.driver: TorchDriver | None = None
        self._target: tuple[int, tuple[float, float]] | None = None  # rounds, and what they may cost
        self._copy = False
        self._unseen = False
        """Whether rank 0's ledger did not see a checkpoint's rounds: ranks that have a copy cannot read that off it."""
        self._trainings: list[Training] = []
        """Every training that was ever made private."""

    # ------------------------------------------------------------ making things private

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        criterion: Callable[[Tensor, Tensor], Tensor] | None = None,
        data_loader: DataLoader,
        noise_multiplier: float,
        max_grad_norm: Norm,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: torch.Generator | None = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        sketch: Encoder | GradientEmbedding | None = None,
        public: object = None,
        normaliser: float | None = None,
        constraint: ConvexSet | Mapping[str, ConvexSet] | None = None,
        max_physical_batch_size: int | None = None,
        micro_batch_size: int = 1,
        grad_scaler: torch.amp.GradScaler | None = None,
        precision: str = "network",
        group: _Ranks = None,
        **more: float,
    ) -> _Triple:
        """The private triple (module, optimizer, data_loader): the first two are the user's own objects.

        Arguments have the names Opacus gives them; those of our own:

        sketch       the narrow space: `PublicSubspace`, `KroneckerSubspace`, `Kronecker`, `TensorSketch`, `Blocks`,
                     `Progressive`, `GradientEmbedding` ...; None is DP-SGD
        public       public data (X, y) for sketches that were given none
        normaliser   the public number the noisy sum is divided by; by default the loader's batch size
        constraint   a set for every layer, or {layer: set}: layers stay in their sets
        max_physical_batch_size   the loader yields pieces of this size; `step()` waits for the last piece
        micro_batch_size   clip means of this many records; a record moves the sum by up to 2C, and is accounted so
        grad_sample_mode   "hooks", "functorch", "ew" and "ghost" are one and the same here; "ghost" returns four,
                     (module, optimizer, criterion, data_loader), as it does in Opacus
        clipping     "flat", "per_layer" (one bound, or one for each layer), "adaptive"
        grad_scaler  the `GradScaler` of the loop, whose scale stays as it is from now on (`isthmus.engine.optimizer`)
        precision    "network": a record's gradient is what the device computes in the precision of the network (TF32,
                     bfloat16 with float32 sums), measured as it is; "exact": products of float32 numbers in float32
        group        a `torch.distributed` process group (True: the default one): every rank calls this with its copy of
                     the module and the same dataset; its loader draws this rank's part of the records, the batch
                     size is that of all ranks together, and rank 0 has the ledger and adds the noise

        `poisson_sampling=False` draws batches of a fixed size without replacement, under replace-one adjacency.
        `noise_multiplier=0` adds no noise, to look for mistakes with: the statement says NOT private, and epsilon is
        infinite.  Everything else stays but for `poisson_sampling=False`, which takes the loader's own batches then.
        """
        ranks = Group.of(group)
        with self._together(ranks):
            adaptive = _check_options(grad_sample_mode, rand_on_empty, clipping, more)
            validate.non_negative(noise_multiplier=noise_multiplier)
            wrapped, optimizer, bare = optimizer, steps.unwrapped(optimizer), noise_multiplier == 0
            _check_loss(criterion, loss_reduction)
            scale = steps._scale_of(grad_scaler, loss_reduction)
            validate.one_of(("network", "exact"), precision=precision)
            n, batch = _check_loader(data_loader)
            if noise_generator is None and not bare:
                _check_draws(data_loader)
            _check_physical(max_physical_batch_size, micro_batch_size)
            steps._check_fresh(module, optimizer)
            modules.validate(module, strict=True)
            layers = Layers(module, batch_first=batch_first)
            steps._check_optimizer(optimizer, layers)
            sets, whole = steps._leaf_sets(constraint, layers)
            numbers = {"clipping": clipping, "max_grad_norm": max_grad_norm}
            filling = {"sketch": sketch, "micro": micro_batch_size, "constraint": whole, **adaptive}
            sampler = self._sampler(poisson_sampling, n, batch, normaliser, micro_batch_size)
            stage = Stage(sampler, releases(noise_multiplier, layers.space, **numbers, **filling))  # type: ignore[arg-type]
            for release in stage.releases:  # noise that is too coarse or too fine for the dtype of the weights
                std = release.mechanism.number * release.clipped.total(release.clipped.init())
                if std:
                    check_scale(std, torch.promote_types(next(layers.parameters()).dtype, torch.float32))
            remedy = "leave it out: a subset of a fixed size is one draw from all records, and every rank draws its own"
            validate.check(poisson_sampling or ranks.size == 1, "poisson_sampling", poisson_sampling, remedy)
            validate.at_most(n, "the number of records", group=ranks.size)
            noise, ledger = self._noise(noise_generator), self._open_ledger(poisson_sampling, not ranks.rank)
            remedy = "give a number above 0: no budget is enough without noise (leave it out to look for mistakes)"
            validate.check(not bare or ledger.budget is None, "noise_multiplier", noise_multiplier, remedy)
            if ledger.budget is not None and self._target is None:
                warn_of_large_delta(ledger.budget[1], n)
            looked = public is not None or stage.releases[0].encode.public
            assumed = {RANDOM: not (noise.seeded or bare), MEAN: loss_reduction == "mean", SHAPES: True}
            assumed |= {COLLATED: _collates(data_loader), _NORMALISER: True, PUBLIC: looked, SHARED: ranks.size > 1}
            assumptions = (*_ASSUMPTIONS, *(words for words, holds in assumed.items() if holds))
            promise, event = Promise(math.inf, 1e-5, ledger.adjacency, n, assumptions), stage.event(ledger.adjacency)
            limit = None
            if self._target is not None and not ranks.rank:  # a copy of the ledger refuses nothing
                limit = Accountant(ledger, self._kind).limit(*self._target)
            self.driver = driver = TorchDriver(
                Pipeline([stage], step=lambda t: optimizer.param_groups[0]["lr"], promise=promise),
                module,
                optimizer,
                n=n,
                loss=criterion,
                public=public,
                reduction=loss_reduction,
                seed=self.seed,
                noise=None if bare else noise,
                ledger=ledger.run({stage.name: event}, seeded=noise.seeded and not bare, limit=limit),
                layers=layers,
                fast=precision == "network",
                group=ranks,
            )
            driver.begin(Ticket(0))  # from now on only batches of the private loader go through the module
            driver.rest()
            driver.loss_scale, free = scale, steps._fix_scale(grad_scaler, optimizer)
            numbers["micro_batch_size"] = micro_batch_size
            terms = checkpoint.terms(event, sampler, sketch, noise_multiplier=noise_multiplier, **numbers)
            order, words = None, sampler.describe()
            if bare and not poisson_sampling:
                order, words = data_loader.batch_sampler, "the batches of the user's own loader"
            secret, shard = noise if noise.seeded else SecretSource(), (ranks.rank, ranks.size)
            draws = Draws(sampler, n, secret, max_physical_batch_size, micro_batch_size, order, shard)
            agreed = f"{batch} {normaliser} {words} {noise.seeded} {terms}"
            self._trainings.append(Training(driver, noise, terms, words, draws, free, agreed=agreed, bare=bare))
            optimizer.noise_multiplier, optimizer.max_grad_norm = noise_multiplier, max_grad_norm  # type: ignore[attr-defined]
            steps._make_steps_private(optimizer, driver, sets)
            loader = PrivateLoader(data_loader, draws, driver)
        if grad_sample_mode == "ghost":  # scripts for it unpack four values, and call the criterion they get back
            return module, wrapped, criterion or nn.CrossEntropyLoss(), loader  # type: ignore[return-value]
        return module, wrapped, loader

    def make_private_with_epsilon(
        self,
        *,
        data_loader: DataLoader,
        target_epsilon: float,
        target_delta: float,
        epochs: float,
        poisson_sampling: bool = True,
        **rest: Any,
    ) -> _Triple:
        """As `make_private`, with the noise that spends target_epsilon in `epochs` passes, and the budget enforced.

        The accountant's epsilon after those passes is at most the target and within 0.01 % of it; a step beyond it is
        refused with `BudgetExceeded` and changes nothing.  A `Ledger` that was given keeps its own budget; one the
        engine opens (in memory, or at a path) has this target as the budget of all it is charged for.  The multiplier
        that was found is `optimizer.noise_multiplier`.
        """
        validate.positive(target_epsilon=target_epsilon, epochs=epochs)
        validate.open_unit(target_delta=target_delta)
        validate.check("noise_multiplier" not in rest, "noise_multiplier", rest.get("noise_multiplier"), "leave it out")
        n, batch = _check_loader(data_loader)
        warn_of_large_delta(target_delta, n)
        sampler = self._sampler(poisson_sampling, n, batch, None, 1)
        rounds, budget = max(1, round(epochs * sampler.rounds(n))), (target_epsilon, target_delta)
        scratch = Accountant(Ledger(adjacency=self._needed(poisson_sampling)), self._kind)
        self._target = rounds, budget
        try:
            z = scratch.multiplier(sampler, rounds, *budget)
            rest |= {"data_loader": data_loader, "poisson_sampling": poisson_sampling}
            triple = self.make_private(noise_multiplier=z, **rest)
        finally:
            self._target = None
        self._trainings[-1].planned = rounds
        return triple

    def detach(self) -> None:
        """Take training apart: modules and optimisers are as they were given, with what they have learned.

        A module can be pickled, trained without privacy or made private again then; ledger and statement stay.
        (Copies made with `copy.deepcopy` at any time are free of the engine by themselves.)
        """
        for training in self._trainings:
            self.take_apart(training)

    @staticmethod
    def take_apart(training: Training) -> None:
        """Take one training apart."""
        if training.attached:
            training.driver.forget()  # what was not released yet, or was refused, never is
            training.driver.detach()
            steps._restore_steps(training.driver.optimizer)
            training.free()
        training.attached = False

    # ------------------------------------------------------------ what was spent

    @property
    def ledger(self) -> Ledger:
        """Everything that was released."""
        if self._ledger is None and self._given is None:  # nothing yet: it is opened with its adjacency and budget
            return Ledger(adjacency=self.adjacency)
        return self._ledger or self._open_ledger(True)

    @property
    def accountant(self) -> Accountant:
        """The ledger's epsilon, with the names Opacus users know."""
        return Accountant(self.ledger, self._kind, None if self.driver is None else self.driver.n)

    def get_epsilon(self, delta: float) -> float:
        """Epsilon at delta of everything released so far, its number of steps taken as fixed before training.

        Where `statement(delta).private` is False, some of the noise came from a seed, and no epsilon holds.
        """
        return self.accountant.get_epsilon(delta)

    def statement(self, delta: float) -> PrivacyStatement:
        """What training promises, with its adjacency, sampler and assumptions.

        Planned steps (`make_private_with_epsilon`) are all counted, made or not: then training may stop on anything
        that was released.  Without a plan the statement rests on a number of steps that was fixed beforehand.
        """
        driver = self._require_driver()
        promise = driver.pipe.promise
        assert promise is not None
        warn_of_large_delta(delta, promise.n)
        event, assumptions = self._planned()
        buffers = dict.fromkeys(name for training in self._trainings for name in training.driver.guard.changed)
        leaks = [f"{KEPT}: {list(buffers)}"] if buffers else []
        foreign = others_parts([training.driver.stage for training in self._trainings])
        rests = (*promise.assumptions, *foreign, *assumptions)
        if self._unseen or (not self._copy and checkpoint._went_on_unseen(self.ledger)):
            rests = (*rests, UNSEEN)
        account = Account(delta, promise.adjacency, promise.n, self._seeded, rests, leaks)
        account.samplers = [training.sampler for training in self._trainings]
        account.sources = [_Unnoised.source if run.bare else run.noise.describe() for run in self._trainings]
        account.add(event)
        return account.statement()

    def _planned(self) -> tuple[DpEvent, list[str]]:
        """Everything charged and every step that is planned and not made; what is to be said of both."""
        events, assumptions = [self.ledger.event()], []
        for training in self._trainings:
            driver, planned, done = training.driver, training.planned, training.driver.state.t
            if planned is None:
                assumptions.append(FIXED)
            else:
                assumptions += stopped(planned, done)
                if done < planned:
                    events.append(dpa.SelfComposedDpEvent(driver.stage.event(self.ledger.adjacency), planned - done))
            if training.draws.was_cut:
                assumptions.append(PIECES)
        return compose(events), list(dict.fromkeys(assumptions))

    def public_rows(self, public: object = None) -> Stack:
        """Per-example gradients of public examples at the present weights, for `isthmus.diagnostics`."""
        return self._require_driver().public_rows(public)

    # ------------------------------------------------------------ modules and checkpoints

    is_compatible = staticmethod(modules.is_compatible)
    validate = staticmethod(modules.validate)
    get_compatible_module = staticmethod(modules.get_compatible_module)

    def save_checkpoint(
        self,
        *,
        path: str | Path,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        checkpoint_dict: dict[str, Any] | None = None,
    ) -> None:
        """Module, optimiser, the driver's state, terms and ledger in one file, without pickle, whole or not at all.

        Of several ranks rank 0 writes it, with its ledger; the others wait until it is there.
        """
        own = self._training_of(module)
        more = {"terms": own.terms, "seeded": self._seeded, "extra": checkpoint_dict or {}}
        own.driver.group.on_leader(lambda: checkpoint.save(path, own.driver, self.ledger, optimizer, **more))

    def load_checkpoint(
        self, *, path: str | Path, module: nn.Module, optimizer: torch.optim.Optimizer | None = None
    ) -> dict[str, Any]:
        """Restore what `save_checkpoint` wrote, on the terms it was written with; returns its `checkpoint_dict`.

        What the checkpoint had spent and this ledger does not show is charged again: epsilon never falls, and training
        that was not private (seeded noise) never becomes so.  A ledger that did not see those rounds cannot know who
        else goes on from the checkpoint, each with the whole of its target: the statement says so.  One ledger file
        for all of them counts what they spend together.
        """
        own = self._training_of(module)
        with own.driver.group.joined("meet"):
            extra = checkpoint.load(path, own.driver, self.ledger, own.terms, optimizer)
        self._unseen = own.driver.group.on_leader(lambda: checkpoint._went_on_unseen(self.ledger))
        return extra

    # ------------------------------------------------------------ helpers

    @contextmanager
    def _together(self, ranks: Group) -> Iterator[None]:
        """What all ranks make private: it begins once all have made theirs, and an error on one is one on all."""
        before = len(self._trainings)
        try:
            with ranks.joined("make_private"):
                yield
            training = self._trainings[-1]
            same = key(training.driver.n, training.driver.layers.space, training.agreed)
            ranks.agree("make_private", [same], names=("make_private",))
        except Exception:
            for training in self._trainings[before:]:
                self.take_apart(training)
            del self._trainings[before:]
            raise
        if ranks.size > 1:
            state = training.driver.module.state_dict()
            state = {name: value for name, value in state.items() if isinstance(value, Tensor)}
            shared = ranks.on_leader(lambda: state)
            with torch.no_grad():  # every rank begins with the parameters and buffers of rank 0
                for name, tensor in state.items():
                    tensor.copy_(shared[name].to(tensor.device))

    def _sampler(self, poisson: bool, n: int, batch: int, normaliser: float | None, micro: int) -> Poisson | FixedSize:
        if normaliser is not None:
            validate.positive(normaliser=normaliser)
        if poisson:
            return Poisson(batch / n, float(normaliser or batch / micro))
        validate.check(normaliser is None, "normaliser", normaliser, "leave it out: fixed batches divide by their size")
        validate.check(micro == 1, "micro_batch_size", micro, "give 1, or poisson_sampling=True, which it needs")
        return FixedSize(batch, n)

    def _noise(self, generator: torch.Generator | None) -> Source:
        if generator is None:
            return SecretSource() if self.secure_mode else FastSource()
        remedy = "give a torch.Generator (for tests: not private)"
        validate.check(isinstance(generator, torch.Generator), "noise_generator", generator, remedy)
        validate.check(not self.secure_mode, "noise_generator", generator, "leave it out with secure_mode=True")
        return GeneratorSource(generator)

    def _needed(self, poisson: bool) -> Adjacency:
        """Amplification by batches of a fixed size is known for replace-one only."""
        return self.adjacency if poisson else Adjacency.REPLACE_ONE

    def _open_ledger(self, poisson: bool, leads: bool = True) -> Ledger:
        """The engine's ledger, opened at its first use for the adjacency of the sampling.

        A rank that does not lead keeps a copy in memory of what its training is charged: whatever ledger it was given,
        only rank 0 charges.
        """
        needed = self._needed(poisson)
        if not leads and not self._copy:
            self._ledger, self._copy = Ledger(adjacency=needed), True
        if self._ledger is None:
            assert not isinstance(self._given, Ledger)
            budget = None if self._target is None else self._target[1]
            self._ledger = Ledger(self._given, budget, adjacency=needed)
        remedy = (
            f"give PrivacyEngine(adjacency={needed.value!r}), or a ledger of its own: the ledger counts for "
            f"{self._ledger.adjacency.value}, and this sampling is accounted for {needed.value}"
        )
        validate.check(self._ledger.adjacency is needed, "poisson_sampling", poisson, remedy)
        return self._ledger

    @property
    def _seeded(self) -> bool:
        """Whether any noise can be subtracted: of this engine, or of anything else that its ledger holds."""
        own = any(training.noise.seeded and not training.bare for training in self._trainings)
        return own or self.ledger.seeded

    def _training_of(self, module: nn.Module) -> Training:
        self._require_driver()
        trainings = [training for training in self._trainings if training.attached and training.driver.module is module]
        validate.check(bool(trainings), "module", type(module).__name__, "give the module that was made private")
        return trainings[-1]

    def _require_driver(self) -> TorchDriver:
        if self.driver is None:
            raise RuntimeError("nothing is private yet: call make_private or make_private_with_epsilon first")
        return self.driver


def warm_start(
    module: nn.Module,
    public: tuple[Tensor, Tensor],
    criterion: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
    *,
    steps: int = 200,
    lr: float = 0.05,
    momentum: float = 0.9,
) -> nn.Module:
    """Train a module on public labelled data, full batch, before `make_private`: it costs no privacy.

    Under much noise this, with averaged iterates, did better than any sketch from scratch: with 100 labelled public
    images the network of paper 004 starts near where private training ends at its smallest epsilon (docs/engine.md).
    Measure the module right after this call: what public labels give alone is the baseline of everything private.

    >>> module = warm_start(nn.Linear(2, 2), (torch.eye(2), torch.tensor([0, 1])), steps=50, lr=1.0)
    >>> module(torch.eye(2)).argmax(1).tolist()
    [0, 1]
    """
    validate.positive_int(steps=steps)
    validate.positive(lr=lr)
    x, y = public
    validate.check(len(x) == len(y) > 0, "public", (len(x), len(y)), "give as many labels as examples, at least one")
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    remedy = "call warm_start before make_private: nothing of the module is trainable"
    validate.check(bool(trained), "module", type(module).__name__, remedy)
    x, y = x.to(trained[0].device), y.to(trained[0].device)
    optimizer = torch.optim.SGD(trained, lr=lr, momentum=momentum)
    for _ in range(steps):
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return module
