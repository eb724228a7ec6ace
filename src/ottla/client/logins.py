"""Checks the credentials of a user by a login to the cluster."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from ottla.client.cluster import Cluster
from ottla.client.errors import AuthenticationFailed
from ottla.client.security import PROPERTIES

log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 10.0


def check_login(properties: Mapping[str, str]) -> bool:
    """Return whether the cluster at `bootstrap.servers` accepts a login with these properties of a client.

    Raise ClientError if no broker answers, or if a property is not valid. Properties that have no effect on a login are
    ignored.
    """
    understood = {
        name: text for name, text in properties.items()
        if name in PROPERTIES or name.startswith(("security.", "ssl.", "sasl."))
    }  # fmt: skip
    with Cluster(properties["bootstrap.servers"], understood, timeout_s=_TIMEOUT_S) as cluster:
        try:
            cluster.brokers()
        except AuthenticationFailed as error:
            log.info("login to the cluster failed user=%s reason=%s", properties.get("sasl.username"), error)
            return False
    return True
