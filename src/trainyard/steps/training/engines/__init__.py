"""The ways in which ranks share one model: a module or folder each, all behind `base.Engine`."""
