"""testing: a broker for tests, ours and our users'. Knows: everything. Nothing but tests imports it.

    from ottla.testing import BrokerProcess

    with BrokerProcess.start() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

``ClusterProcess.start(brokers=3)`` starts a cluster with ZooKeeper, which needs Java and `ottla[spark]`.

In pytest ask for the fixture ``ottla_broker``; it comes with the package.
"""

from ottla.testing.cluster import ClusterProcess
from ottla.testing.process import BrokerProcess

__all__ = ["BrokerProcess", "ClusterProcess"]
