"""What another split would give: cycles and memory, by the engine's own schedule."""
