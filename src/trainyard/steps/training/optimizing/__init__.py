"""How parameters change: AdamW, its learning rate, precision and the scale of losses."""
