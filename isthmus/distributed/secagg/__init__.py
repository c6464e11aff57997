"""Secure aggregation with distributed noise: a server that learns one noisy total and nothing else (docs/secagg.md).

Vectors are rounded to integers of bounded length, every client adds its share of exact Skellam noise, and masks that
cancel hide all but the sum modulo 2^b.  Server and clients are state machines whose messages are bytes: any transport
carries them. Needs the extra `secagg` (cryptography).
"""

from isthmus.distributed.secagg.plan import SecurePlan
from isthmus.distributed.secagg.protocol import RoundRefused, SecureClient, SecureServer, run_round
from isthmus.distributed.secagg.wire import BadMessage

__all__ = ["BadMessage", "RoundRefused", "SecureClient", "SecurePlan", "SecureServer", "run_round"]
