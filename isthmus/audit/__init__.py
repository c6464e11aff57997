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
from isthmus.audit.canaries import OneRun, one_run, one_run_epsilon, one_run_p_value, orthogonal_canaries, training
from isthmus.audit.distinguish import AuditReport, attack, clopper_pearson, epsilon_from_counts
from isthmus.audit.neighbours import LinearRecords, Movement, Pair, Probe, movement, movements, worst_pair
from isthmus.audit.replays import Replayed, ReplayedRelease, replay

__all__ = ["AuditReport", "LinearRecords", "Movement", "OneRun", "Pair", "Probe", "Replayed", "ReplayedRelease"]
__all__ += ["attack", "clopper_pearson", "epsilon_from_counts", "known_bad", "movement", "movements", "one_run"]
__all__ += ["one_run_epsilon", "one_run_p_value", "orthogonal_canaries", "replay", "training", "worst_pair"]
