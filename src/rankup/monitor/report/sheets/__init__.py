"""Sheets of paper for the report's PDF: text that is measured, tables that break, plots in place.

All places are in points (1/72 inch) from the upper left corner of an A4 page.
"""
