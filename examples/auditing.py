"""Attacking a mechanism that claims an epsilon: one that keeps it, and one that adds a third of its noise.

    python examples/auditing.py
    python examples/auditing.py --small    # seconds: does it run?

An audit can refute a claim and cannot prove one.  It looks for two neighbouring data sets whose releases can be told
apart better than the claim allows, and says, with its confidence, how large epsilon really is at least.
"""

import argparse
from dataclasses import dataclass

import torch

from isthmus import Mechanism, Pipeline, Release, Stage, audit
from isthmus.pipeline import Promise
from isthmus.privacy import Adjacency, Clip, FullBatch, Gaussian, epsilon


@dataclass(frozen=True)
class Careless(Mechanism):
    """Claims Gaussian noise of one multiplier and adds a third of it: nothing in a program's output shows that."""

    multiplier: float

    def release(self, bounded, noise):
        return Gaussian(self.multiplier / 3).release(bounded, noise)  # the mistake

    def event(self, adjacency=Adjacency.ADD_REMOVE):
        return Gaussian(self.multiplier).event(adjacency)  # what is claimed

    def describe(self):
        return f"Gaussian noise of multiplier {self.multiplier:g}"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer draws")
    arguments = parser.parse_args(argv)
    draws = 10_000 if arguments.small else 100_000

    claim = Promise(epsilon(noise_multiplier=2.0, sampling_rate=1.0, steps=1, delta=1e-5), 1e-5)
    print(f"the claim, of both mechanisms: epsilon {claim.epsilon:.2f} at delta {claim.delta:g}\n")
    for mechanism in (Gaussian(2.0), Careless(2.0)):
        release = Release(clip=Clip(1.0), mechanism=mechanism)
        pipe = Pipeline([Stage(FullBatch(), [release])], lambda t: 0.1, promise=claim)
        worst = audit.worst_pair(pipe, d=20, n=50)  # the neighbours that move the sum the most
        report = audit.attack(pipe, worst, draws=draws)
        verdict = "refuted" if report.verdict == "violation" else "not refuted"
        name = type(mechanism).__name__
        print(f"{name}: epsilon is at least {report.lower:.2f}; the claim is {verdict}\n  {report}\n")

    # A training that is no pipeline: put canaries in, train once, guess which were in.
    canaries = audit.orthogonal_canaries(count=200, d=400)
    for noise in (0.5, 5.0):

        def train(included, noise=noise):
            total = included.sum(0) + noise * torch.randn(400, dtype=included.dtype)
            return canaries @ total  # a score for every canary

        print(f"one training run with noise {noise:g} a coordinate: {audit.one_run(train, canaries, guesses=50)}")


if __name__ == "__main__":
    main()
