"""Audits: does a pipeline keep its privacy promise, measured rather than proved?

| question | function |
|---|---|
| does one record move a value by more than is stated? | `worst_pair`, `movements`, `movement` |
| can one release tell two neighbours apart better than is claimed? | `attack` |
| what does one whole training run give away? | `one_run`, with `training` for a pipeline |
| does anything that leaves a whole training of mine, noised or public, follow one record? | `replay` |
| would these notice? | `known_bad.halved`, `known_bad.published_privsgd` |

An audit can refute a promise, never prove it: its numbers are lower bounds of epsilon with a stated confidence.

>>> from isthmus.privacy import SeededSource
>>> pipe = known_bad.published_privsgd(n=200, m=5)
>>> worst = worst_pair(pipe, d=100, n=200)
>>> worst.pair.name, round(worst.ratio)
('kernel', 199)
>>> attack(pipe, worst, draws=2000, noise=SeededSource(0)).verdict
'violation'
"""

from isthmus.audit import known_bad
from isthmus.audit.bounds import clopper_pearson, epsilon_from_counts, one_run_epsilon, one_run_p_value
from isthmus.audit.canaries import OneRun, one_run, orthogonal_canaries, training
from isthmus.audit.distinguish import AuditReport, attack
from isthmus.audit.neighbours import Movement, movement, movements, worst_pair
from isthmus.audit.probe import Probe
from isthmus.audit.records import LinearRecords, Pair
from isthmus.audit.replays import Replayed, ReplayedRelease, replay

__all__ = ["clopper_pearson", "epsilon_from_counts", "one_run_epsilon", "one_run_p_value", "OneRun", "one_run"]
__all__ += [
    "orthogonal_canaries",
    "training",
    "AuditReport",
    "attack",
    "Movement",
    "movement",
    "movements",
    "worst_pair",
]
__all__ += ["Probe", "LinearRecords", "Pair", "Replayed", "ReplayedRelease", "replay", "known_bad"]
