"""testing: a broker for tests, ours and our users'. Knows: everything. Nothing but tests imports it.

    from ottla.testing import BrokerProcess

    with BrokerProcess.start() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

``ClusterProcess.start(brokers=3)`` starts a cluster with ZooKeeper, which needs the extra `spark`. With
``can_cut=True`` a test can cut the network between its members: ``cluster.cut(1, ZOOKEEPER)``.

In pytest ask for the fixture ``ottla_broker``; it comes with the package.
"""

from ottla.testing.cluster import ClusterProcess
from ottla.testing.links import CLIENTS, ZOOKEEPER
from ottla.testing.process import BrokerProcess

__all__ = ["CLIENTS", "ZOOKEEPER", "BrokerProcess", "ClusterProcess"]
