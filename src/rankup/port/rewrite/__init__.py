"""The rewriting of a script for one GPU into one that calls rankup's runtime."""
