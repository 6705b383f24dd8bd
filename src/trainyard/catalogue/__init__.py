"""What others have, as data with sources: the machines of Azure that trainings run on, and common Python packages."""
