"""The loop of `--strategy gossip`: workers that train by themselves and mix as they go."""
