"""A prepared dataset on disk: a manifest, and plain little-endian arrays cut into shards.

`manifest.json` (`trainyard.dataset/1`) lists the arrays that every sample has (for images: `images`, uint8,
[channels, height, width]; and `labels`, int64), the classes, and for each split its shards: one file per array and
range of samples, with its size in bytes and its SHA-256. A shard file holds nothing but the samples one after the
other in C order, so that any language can map it into memory. The manifest is written last: without it, a folder is
not a dataset. It ends with a SHA-256 of the rest of itself, which a manifest made by another program may omit.
"""
