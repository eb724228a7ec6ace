"""Checks whether a cluster answers, for services that report it when they start and while they run."""

from __future__ import annotations

import time
from typing import Final

from ottla.client.cluster import Cluster
from ottla.client.errors import AuthenticationFailed, BrokerError, ClientError, ConnectionLost

#: limit for one request for metadata
PROBE_S_MAX: Final = 3.0


def why_unreachable(cluster: Cluster, *, needs_login: bool = True) -> str | None:
    """Return why the cluster does not answer this client; None if it does. Blocks for up to 3 s.

    Without `needs_login` a cluster that refuses the login of this client counts as one that answers.
    """
    deadline = time.monotonic() + PROBE_S_MAX
    try:
        try:
            cluster.metadata([], deadline)
        except ConnectionLost:
            # An idle connection of a broker that has stopped since: a new one shows the state of the cluster.
            cluster.metadata([], deadline)
    except BrokerError:
        return None
    except AuthenticationFailed as error:
        return str(error) if needs_login else None
    except ClientError as error:
        return str(error)
    return None
