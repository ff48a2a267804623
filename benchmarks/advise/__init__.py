"""How much of what the levers gain `ipu-report advise` finds: docs/advice.md."""
