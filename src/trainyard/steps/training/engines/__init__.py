"""The ways in which ranks share one model: one file each, all behind `base.Engine`."""
