"""The race and four more scenes for a projector: `paci-lab present`."""
