"""Copies of a model that talk seldom, or without waiting: for slow links and uneven workers."""
