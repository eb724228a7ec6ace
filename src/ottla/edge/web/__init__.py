"""web: what the HTTP services share: routes, errors, limits, authentication, TLS, OpenAPI. Knows: model, env, security.

Never: what a service does. `ottla registry` and `ottla rest` are built on it.
"""
