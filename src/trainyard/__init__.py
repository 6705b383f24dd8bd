"""Trainyard: distributed training on Azure Machine Learning, declared, checked, rehearsed, and then paid for."""

__version__ = "0.1.0"
