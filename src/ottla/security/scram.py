"""SCRAM (RFC 5802) as a server: stored credentials, and the exchange of messages. Pure.

    client  n,,n=user,r=client-nonce
    server  r=client-nonce server-nonce,s=salt,i=iterations
    client  c=biws,r=both nonces,p=proof
    server  v=signature

The store has keys that are derived from the password, never the password. They do not allow a login.

An unknown user gets a salt, too, always the same one, and is refused at the same point as a wrong password: an attacker
cannot find out which users exist.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.security.errors import AuthenticationFailed
from ottla.security.salts import OWN_SHAPE, SaltShape, choose, make_salt, shape_of

ITERATIONS_MAX: Final = 16384
#: the channel binding of a client that supports none: base64 of "n,,"
_NO_BINDING: Final = "biws"
_NONCE_CHARACTERS: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+\Z")
_MESSAGE_BYTES_MAX: Final = 4096
#: the extension of clients that log in with a delegation token
TOKEN_EXTENSION: Final = "tokenauth"


class Mechanism(IntEnum):
    """The types of AlterUserScramCredentials."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def title(self) -> str:
        return "SCRAM-SHA-256" if self is Mechanism.SCRAM_SHA_256 else "SCRAM-SHA-512"

    @property
    def digest(self) -> str:
        return "sha256" if self is Mechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        return 32 if self is Mechanism.SCRAM_SHA_256 else 64

    @classmethod
    def named(cls, title: str) -> Mechanism | None:
        return next((each for each in cls if each.title == title), None)


class ScramCredential(NamedTuple):
    """What the store has of a user's password for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"

    @property
    def shape(self) -> SaltShape:
        return shape_of(self.salt, self.iterations)

    def text(self) -> str:
        """Return the value of Kafka's node for this user."""
        salt, stored, server = (base64.b64encode(each).decode() for each in self[:3])
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"

    @classmethod
    def parse(cls, text: str) -> ScramCredential:
        """Return the credential in a node's value. Raise ValueError."""
        fields = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
        try:
            keys = [base64.b64decode(fields[name], validate=True) for name in ("salt", "stored_key", "server_key")]
            return cls(keys[0], keys[1], keys[2], int(fields["iterations"]))
        except (KeyError, ValueError):
            raise ValueError("not a SCRAM credential: salt, stored_key, server_key and iterations are needed") from None

    @classmethod
    def from_salted(cls, mechanism: Mechanism, salt: bytes, salted: bytes, iterations: int) -> ScramCredential:
        """Return the credential for a salted password, as AlterUserScramCredentials sends it."""
        client_key = _hmac(mechanism, salted, b"Client Key")
        stored_key = hashlib.new(mechanism.digest, client_key).digest()
        return cls(salt, stored_key, _hmac(mechanism, salted, b"Server Key"), iterations)

    @classmethod
    def from_password(cls, mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> ScramCredential:
        """Return the credential for a password. Takes milliseconds: call it in a thread."""
        salted = hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)
        return cls.from_salted(mechanism, salt, salted, iterations)

    def is_password(self, mechanism: Mechanism, password: str) -> bool:
        """Return whether this is the password. Takes milliseconds: call it in a thread."""
        other = self.from_password(mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(other.stored_key, self.stored_key)


#: returns the credential of a user for a mechanism; None if there is none
FindCredential = Callable[[str], "ScramCredential | None"]


def _no_token(token_id: str) -> None:
    return None


class ScramServer:
    """The server's side of one login."""

    def __init__(self, mechanism: Mechanism, find: FindCredential, *, nonce: str, secret: bytes) -> None:
        """``secret`` makes the salts of unknown users; it must be the same on all brokers and after a restart."""
        self._mechanism = mechanism
        self._find = find
        #: the known users by the shape of their credentials, so that those of unknown users look the same
        self.shapes: Mapping[SaltShape, int] = {}
        #: finds the credentials of delegation tokens, for clients that say ``tokenauth=true``
        self.find_token: FindCredential = _no_token
        self._nonce = nonce
        self._secret = secret
        self._user = ""
        self._is_known = False
        self._credential: ScramCredential | None = None
        self._signed = ""
        self._both_nonces = ""
        #: extensions of the client's first message
        self.extensions: Mapping[str, str] = {}
        #: whether the client logs in with a delegation token; its user is the id of the token
        self.is_token = False
        #: the user, when the login is complete
        self.user: str | None = None

    def respond(self, token: bytes) -> bytes:
        """Return the answer to a message of the client. Raise AuthenticationFailed."""
        if len(token) > _MESSAGE_BYTES_MAX or self.user is not None:
            raise AuthenticationFailed("the SCRAM message is too long or comes after the login")
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("the SCRAM message is not UTF-8") from None
        return self._first(text) if self._credential is None else self._final(text)

    def _first(self, text: str) -> bytes:
        match = re.match(r"n,(?:a=([^,]*))?,(n=([^,]+),r=([^,]+)(,.*)?)\Z", text, re.DOTALL)
        if match is None:
            raise AuthenticationFailed("the first SCRAM message is malformed")
        authorization_id, bare, name, nonce, rest = match.groups()
        if not _NONCE_CHARACTERS.match(nonce):
            raise AuthenticationFailed("the nonce of the SCRAM client has forbidden characters")
        user = _unescape(name)
        if authorization_id and _unescape(authorization_id) != user:
            raise AuthenticationFailed("the SCRAM client asks for the rights of another user")
        self.extensions = _extensions(rest or "")
        self.is_token = self.extensions.get(TOKEN_EXTENSION, "").lower() == "true"
        credential = (self.find_token if self.is_token else self._find)(user)
        self._user, self._is_known = user, credential is not None
        # Computed for known users, too, so that the time does not tell which users there are.
        fake = self._fake(user)
        self._credential = credential = credential or fake
        self._both_nonces = nonce + self._nonce
        salt = base64.b64encode(credential.salt).decode()
        challenge = f"r={self._both_nonces},s={salt},i={credential.iterations}"
        self._signed = f"{bare},{challenge}"
        return challenge.encode()

    def _fake(self, user: str) -> ScramCredential:
        """Return the credential of an unknown user: no password matches it, and its salt is always the same."""

        def derive(purpose: str) -> bytes:
            return _hmac(self._mechanism, self._secret, f"{purpose}\0{name}".encode())

        name = f"{self._mechanism.title}\0{user}"
        shape = OWN_SHAPE if self.is_token else choose(self._secret, name, self.shapes, OWN_SHAPE)
        salt = make_salt(self._secret, name, shape)
        return ScramCredential(salt, derive("stored key"), derive("server key"), shape.iterations)

    def _final(self, text: str) -> bytes:
        credential = self._credential
        assert credential is not None
        match = re.match(r"(c=([^,]+),r=([^,]+)(?:,[^,]+)*?),p=([^,]+)\Z", text)
        if match is None:
            raise AuthenticationFailed("the final SCRAM message is malformed")
        without_proof, binding, nonce, proof_text = match.groups()
        # Equal, not a suffix: a message of another login must not be accepted (CVE-2024-56128).
        if binding != _NO_BINDING or not hmac.compare_digest(nonce.encode(), self._both_nonces.encode()):
            raise AuthenticationFailed("the final SCRAM message belongs to another login")
        signed = f"{self._signed},{without_proof}".encode()
        signature = _hmac(self._mechanism, credential.stored_key, signed)
        try:
            proof = base64.b64decode(proof_text, validate=True)
        except ValueError:
            proof = b""
        client_key = bytes(a ^ b for a, b in zip(proof.ljust(len(signature), b"\0"), signature, strict=False))
        is_proof = hmac.compare_digest(hashlib.new(self._mechanism.digest, client_key).digest(), credential.stored_key)
        if not (is_proof and self._is_known and len(proof) == len(signature)):
            raise AuthenticationFailed("the user name or the password is wrong")
        self.user = self._user
        return b"v=" + base64.b64encode(_hmac(self._mechanism, credential.server_key, signed))


def _hmac(mechanism: Mechanism, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, mechanism.digest)


def _unescape(name: str) -> str:
    """Return a user name without the escapes of "," and "=". Raise AuthenticationFailed for any other "="."""
    plain = name.replace("=2C", ",").replace("=3D", "\0")
    if "=" in plain or "\0" in name:
        raise AuthenticationFailed("the user name of the SCRAM client is not escaped")
    return plain.replace("\0", "=")


def _extensions(rest: str) -> dict[str, str]:
    found = {}
    for part in rest.split(",")[1:]:
        name, is_given, value = part.partition("=")
        if not is_given or not name.isalpha() or name == "m":
            raise AuthenticationFailed("an extension of the SCRAM client is malformed or unknown")
        found[name] = value
    return found
