"""How a model that knows nothing of ranks is laid out over them."""
