"""Gossip: workers without a central rank, each exchanging with neighbours that change."""
