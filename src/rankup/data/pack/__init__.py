"""`rankup pack`: many small files become a few. No torch."""
