"""testing: brokers for Ottla's own tests and for those of its users. May import everything. Only tests import it.

    from ottla.testing import BrokerProcess

    with BrokerProcess.start() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

``ClusterProcess.start(brokers=3)`` starts a cluster with ZooKeeper, which needs the extra `spark`. With
``can_cut=True`` a test can cut the network between its members: ``cluster.cut(1, ZOOKEEPER)``.

A pytest plugin in the package has the fixture ``ottla_broker``.
"""

from ottla.testing.cluster import ClusterProcess
from ottla.testing.links import CLIENTS, ZOOKEEPER
from ottla.testing.process import BrokerProcess

__all__ = ["CLIENTS", "ZOOKEEPER", "BrokerProcess", "ClusterProcess"]
