"""From text to rows of tokens: a vocabulary, a split for each document, encoding in processes, packing over ranks."""
