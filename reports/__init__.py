"""Reports on profiles: the command `ipu-report`, terminal tables, the text timeline, the HTML page."""
