"""What every step needs of the job it runs in: settings from flags, ranks, outputs, errors."""
