"""What Azure ML YAML means: positions, bindings, components, pipelines. Imports nothing else of Trainyard's."""
