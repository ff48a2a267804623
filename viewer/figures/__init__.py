"""Plotly figures made from a report's frames. Nothing here depends on Dash."""
