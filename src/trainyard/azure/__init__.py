"""Azure ML's own client: submitting a job, and pipelines as its Python objects. Nothing else imports azure.ai.ml."""

from trainyard.azure.objects import as_component, as_job

__all__ = ["as_component", "as_job"]
