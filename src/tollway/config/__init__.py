"""Settings: read once, checked together, frozen."""
