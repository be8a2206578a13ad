"""The ground floor: errors and old-or-new file writes. Imports nothing of rankup, and no torch."""
