"""The viewer's pages. Each module has ``PAGE`` and is listed in ``viewer.app``."""
