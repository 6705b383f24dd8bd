"""The machines of Azure that trainings run on, as data with sources and dates."""
