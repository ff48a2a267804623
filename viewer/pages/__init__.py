"""The viewer's pages. Each module has ``PAGE`` and is listed in ``ipuscope.viewer.app``."""
