"""Models as plain torch modules. Nothing in them knows of ranks."""
