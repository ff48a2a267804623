"""Reports on profiles: `ipu-report`, terminal tables, the text timeline, the HTML page."""
