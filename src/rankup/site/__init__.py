"""This machine: its configuration, its GPUs, where its runs lie. No torch."""
