"""The language server: what lint knows, while you type."""
