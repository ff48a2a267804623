"""Plotly figures made from a report's frames. Nothing here knows of Dash."""
