"""Tests of the login verbs."""
