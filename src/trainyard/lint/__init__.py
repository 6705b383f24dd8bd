"""Finds what is wrong in Azure ML YAML before a cluster does: rules over `trainyard.spec`, and reporters."""
