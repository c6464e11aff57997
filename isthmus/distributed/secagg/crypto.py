"""The primitives of a round, all of the package `cryptography`: X25519, HKDF-SHA256, ChaCha20, ChaCha20-Poly1305.

Every key is 256 bits and is used for one thing: a mask's key for one stream of ChaCha20 from block 0, a letter's key
for one letter.  HKDF takes the round's session as salt and says in `info` what the key is for, between whom, and the
digest of the plan and the roster, so that two clients who were shown different rosters share no key.
"""

from __future__ import annotations

import hashlib
import importlib
from functools import lru_cache
from types import SimpleNamespace

import numpy as np

from isthmus.base import validate
from isthmus.distributed.secagg.wire import BadMessage, Words, word

KEY = 32
TAG = 16
_NONCE = bytes(12)


@lru_cache(maxsize=1)
def _package() -> SimpleNamespace:
    """What is used of `cryptography`, which is an extra."""
    names = "ciphers", "ciphers.aead", "asymmetric.x25519", "kdf.hkdf", "hashes"
    try:
        parts = [importlib.import_module(f"cryptography.hazmat.primitives.{name}") for name in names]
        parts.append(importlib.import_module("cryptography.exceptions"))
        return SimpleNamespace(**{part.__name__.rpartition(".")[2]: part for part in parts})
    except ImportError as error:
        raise ImportError(f"Secure aggregation needs the package cryptography; {validate.extra('secagg')}") from error


def public_key(private: bytes) -> bytes:
    """The X25519 public key of 32 secret bytes."""
    return bytes(_package().x25519.X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def agreed(private: bytes, public: bytes, session: bytes, purpose: bytes) -> bytes:
    """The 256-bit key that the holders of two key pairs share for one purpose of one session.

    A public key of small order, with which the result would not depend on the secret, raises `BadMessage`.
    """
    package = _package()
    own = package.x25519.X25519PrivateKey.from_private_bytes(private)
    try:
        shared = own.exchange(package.x25519.X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise BadMessage("A public key is not a valid one") from error
    info = b"isthmus secagg 1 " + purpose
    return bytes(package.hkdf.HKDF(package.hashes.SHA256(), KEY, session, info).derive(shared))


def usable(public: bytes) -> bool:
    """Whether a public key is one that a secret can be agreed on with: those of small order are not.

    >>> usable(public_key(bytes(31) + b"7")), usable(bytes(32))
    (True, False)
    """
    try:
        agreed(bytes(range(KEY)), public, b"", b"")  # any secret will do: small orders give 0 with all of them
    except BadMessage:
        return False
    return True


def stream(key: bytes, count: int, bits: int) -> Words:
    """`count` numbers uniform modulo 2^b, in words whose upper bits are uniform too: ChaCha20 from block 0."""
    ciphers, kind = _package().ciphers, word(bits)
    encryptor = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(count * kind.itemsize)), kind)


def seal(key: bytes, letter: bytes, about: bytes) -> bytes:
    """An authenticated letter under a key that is used for nothing else."""
    return bytes(_package().aead.ChaCha20Poly1305(key).encrypt(_NONCE, letter, about))


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes | None:
    """The letter, or None where it, its key or what it is about is not what was sealed."""
    package = _package()
    try:
        return bytes(package.aead.ChaCha20Poly1305(key).decrypt(_NONCE, sealed, about))
    except package.exceptions.InvalidTag:
        return None


def digest(*parts: bytes) -> bytes:
    """SHA-256 of parts with their lengths."""
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()
