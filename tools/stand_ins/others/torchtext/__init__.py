"""Stands in for torchtext: see tools/stand_ins/README.md."""
