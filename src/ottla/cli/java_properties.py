"""Properties files of Java clients, and their settings under the names that librdkafka and `ottla.client` use.

Imports nothing but the standard library, because `ottla kafka` starts without click. Every error is a ValueError.
"""

from __future__ import annotations

import re

#: settings of Java clients that librdkafka does not have and does not need
_JAVA_ONLY = (
    "ssl.enabled.protocols",
    "ssl.keystore.type",
    "ssl.protocol",
    "ssl.truststore.password",
    "ssl.truststore.type",
)
#: Java's names for PEM in the text of a setting, and those of librdkafka
_PEM_TEXTS = {
    "ssl.truststore.certificates": "ssl.ca.pem", "ssl.keystore.key": "ssl.key.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
}  # fmt: skip


def load(path: str) -> dict[str, str]:
    """Read a Java-style properties file: KEY=VALUE, # and ! for comments, a backslash joins lines."""
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"\\\r?\n[ \t]*", "", file.read())
    pairs = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        match = re.fullmatch(r"([^=:\s]+)\s*[=:\s]\s*(.*)", line)
        if match is None:
            # The line is not shown, because it may be a part of a password.
            raise ValueError(f"{path}: line {number} is not of the form KEY=VALUE")
        pairs[match[1]] = match[2]
    return pairs


def translate(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties with librdkafka's names of TLS and SASL. Raise ValueError for a file that only Java reads.

    ssl.keystore.location means PEM or PKCS12 for Java, and PKCS12 for librdkafka.
    """
    truststore, keystore = (properties.get(f"ssl.{kind}store.location") for kind in ("trust", "key"))
    if truststore is not None:
        _refuse_java_store("truststore", properties.get("ssl.truststore.type", "JKS"), ("PEM",))
        del properties["ssl.truststore.location"]
        properties.setdefault("ssl.ca.location", truststore)
    # Without a type the name is librdkafka's, which means PKCS12.
    keystore_type = properties.get("ssl.keystore.type", "PKCS12")
    if keystore is not None:
        _refuse_java_store("keystore", keystore_type, ("PEM", "PKCS12"))
    if keystore is not None and keystore_type.upper() == "PEM":
        del properties["ssl.keystore.location"]
        properties.setdefault("ssl.certificate.location", keystore)
        properties.setdefault("ssl.key.location", keystore)
    for name, other in _PEM_TEXTS.items():
        if name in properties:
            properties.setdefault(other, properties.pop(name))
    if properties.get("ssl.endpoint.identification.algorithm") == "":
        properties["ssl.endpoint.identification.algorithm"] = "none"
    for name in _JAVA_ONLY:
        properties.pop(name, None)
    return _translate_jaas(properties)


def _refuse_java_store(kind: str, given: str, readable: tuple[str, ...]) -> None:
    if given.upper() not in readable:
        raise ValueError(
            f"ssl.{kind}.type={given} can only be read by Java; convert the file and set it to {' or '.join(readable)}"
        )


def _translate_jaas(properties: dict[str, str]) -> dict[str, str]:
    # Java clients keep user and password in one JAAS line, which librdkafka does not read.
    jaas = properties.pop("sasl.jaas.config", None)
    if jaas is not None:
        for word in ("username", "password"):
            match = re.search(rf'\b{word}\s*=\s*"((?:[^"\\]|\\.)*)"', jaas)
            if match is None:
                raise ValueError(f"sasl.jaas.config has no {word}; set sasl.mechanism, sasl.username, sasl.password")
            properties.setdefault(f"sasl.{word}", re.sub(r"\\(.)", r"\1", match[1]))
    return properties
