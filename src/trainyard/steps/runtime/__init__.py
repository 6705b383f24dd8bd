"""What every step needs from the job it runs in: settings from flags, ranks, outputs, errors."""
