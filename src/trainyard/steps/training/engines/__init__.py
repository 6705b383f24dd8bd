"""The ways in which ranks share one model, all behind `engine.Engine`."""
