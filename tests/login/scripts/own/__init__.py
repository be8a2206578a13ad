"""Of the script beside it."""
