"""alerts: rules about a cluster, in a file; which alerts are open; and messages about them.

`rules_file.py` reads the rules, `conditions.py` compares them with an observation, `states.py` opens and closes alerts,
`grouping.py` decides which messages are due. All of these are pure. `receivers/` send the messages: to a webhook, by
e-mail, to Slack. Knows: health, lag, edge.web. No third-party package.
"""
