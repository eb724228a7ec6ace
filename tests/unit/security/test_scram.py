"""SCRAM as a server: the vectors of the RFCs, the project's own client, and messages that must be refused."""

from __future__ import annotations

import base64

import pytest

from ottla.security.errors import AuthenticationFailed
from ottla.security.salts import ITERATIONS_MIN
from ottla.security.sasl_client import Sasl, ScramExchange
from ottla.security.scram import Mechanism, ScramCredential, ScramServer

SHA256, SHA512 = Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512
PASSWORD = "pencil"


def credential(mechanism: Mechanism = SHA256, password: str = PASSWORD) -> ScramCredential:
    return ScramCredential.from_password(mechanism, password, b"0123456789abcdef", ITERATIONS_MIN)


def server(
    mechanism: Mechanism = SHA256, users: dict[str, ScramCredential] | None = None, nonce: str = "S"
) -> ScramServer:
    known = {"user": credential(mechanism)} if users is None else users
    return ScramServer(mechanism, known.get, nonce=nonce, secret=b"secret of the cluster")


def client(mechanism: Mechanism = SHA256, user: str = "user", password: str = PASSWORD) -> ScramExchange:
    return ScramExchange(Sasl(mechanism=mechanism.title, username=user, password=password), "client-nonce")


def log_in(a_server: ScramServer, a_client: ScramExchange) -> None:
    said: bytes | None = a_client.first()
    while said is not None:
        said = a_client.answer(a_server.respond(said))


def test_vector_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    known = ScramCredential.from_password(SHA256, PASSWORD, salt, 4096)
    a_server = server(users={"user": known}, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    challenge = a_server.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert challenge == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = a_server.respond(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert a_server.user == "user"


@pytest.mark.parametrize("mechanism", list(Mechanism))
@pytest.mark.parametrize("user", ["user", "a,b=c", "ünï"])
def test_login_with_the_right_password(mechanism: Mechanism, user: str) -> None:
    a_server = server(mechanism, {user: credential(mechanism)})
    log_in(a_server, client(mechanism, user))
    assert a_server.user == user


def test_wrong_password_and_unknown_user_are_refused_at_the_same_point_with_the_same_words() -> None:
    texts = []
    for user, password in (("user", "wrong"), ("nobody", PASSWORD)):
        a_server, a_client = server(), client(user=user, password=password)
        proof = a_client.answer(a_server.respond(a_client.first()))
        assert proof is not None
        with pytest.raises(AuthenticationFailed) as refused:
            a_server.respond(proof)
        texts.append(str(refused.value))
        assert a_server.user is None
    assert texts[0] == texts[1]


def test_unknown_user_gets_the_same_salt_every_time_and_another_one_than_others() -> None:
    def challenge(user: str) -> str:
        return server().respond(f"n,,n={user},r=nonce".encode()).decode().split(",", 1)[1]

    assert challenge("nobody") == challenge("nobody") != challenge("someone")
    salt, iterations = challenge("nobody").split(",")
    assert len(base64.b64decode(salt[2:])) == 24 and iterations == f"i={ITERATIONS_MIN}"


@pytest.mark.parametrize(
    "first",
    [
        b"", b"n", b"y,,n=user,r=x", b"p=tls-unique,,n=user,r=x", b"n,,n=,r=x", b"n,,n=user,r=", b"n,,r=x,n=user",
        b"n,a=admin,n=user,r=x", b"n,,n=us=er,r=x", b"n,,n=user,r=x,m=must", b"n,,n=user,r=a b", b"\xff\xfe",
        b"n,,n=user,r=x,=", b"n,,n=" + b"u" * 5000 + b",r=x",
    ],
)  # fmt: skip
def test_malformed_first_message_is_refused(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        server().respond(first)


@pytest.mark.parametrize("change", ["nonce", "suffix", "binding", "proof", "no proof", "short proof", "again"])
def test_final_message_that_is_not_of_this_login_is_refused(change: str) -> None:
    a_server, a_client = server(), client()
    proof = a_client.answer(a_server.respond(a_client.first()))
    assert proof is not None
    fields = dict(part.split("=", 1) for part in proof.decode().split(","))
    if change == "nonce":
        fields["r"] = "other" + fields["r"]
    elif change == "suffix":
        fields["r"] = fields["r"][1:]
    elif change == "binding":
        fields["c"] = "eSws"
    elif change == "proof":
        fields["p"] = base64.b64encode(bytes(32)).decode()
    elif change == "short proof":
        fields["p"] = base64.b64encode(base64.b64decode(fields["p"])[:31]).decode()
    elif change == "no proof":
        del fields["p"]
    else:
        a_server.respond(proof)
    user = a_server.user
    with pytest.raises(AuthenticationFailed):
        a_server.respond(",".join(f"{name}={value}" for name, value in fields.items()).encode())
    assert a_server.user == user


def test_authorization_id_of_the_same_user_is_accepted_and_extensions_are_read() -> None:
    a_server = server()
    a_server.respond(b"n,a=user,n=user,r=x,tokenauth=true")
    assert a_server.extensions == {"tokenauth": "true"}


def test_credential_is_stored_as_in_kafka_and_read_again() -> None:
    stored = credential(SHA512)
    text = stored.text()
    assert text.startswith("salt=") and text.endswith(",iterations=4096")
    assert ScramCredential.parse(text) == stored
    assert stored.is_password(SHA512, PASSWORD) and not stored.is_password(SHA512, "other")
    for damaged in ("", "salt=x", text.replace("iterations=4096", "iterations=many"), text.replace("salt=", "pepper=")):
        with pytest.raises(ValueError, match="not a SCRAM credential"):
            ScramCredential.parse(damaged)


def test_no_key_is_shown() -> None:
    assert "key" not in repr(credential())
