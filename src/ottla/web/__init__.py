"""web: what the HTTP services share: routes, errors, limits, authentication, TLS, OpenAPI. Knows: model, security.

Never: what a service does. `ottla registry` and `ottla rest` are built on it.
"""
