"""The verbs of a login node, where there is a network: doctor, env, fetch."""
