"""console: `ottla console`, web pages of a cluster that are readable without JavaScript.

Knows: health, lag, admin, edge.web. Talks to a cluster only through the Kafka protocol, and to
the other services through their public HTTP routes.
"""
