"""Which documents repeat earlier ones, found by Spark.

A document is a duplicate of an earlier one with the same text, or, for near duplicates, of an earlier one whose
signature agrees with its own in at least the threshold's share of values. Whether it is dropped depends on those before
it in the order of files and places in files, and never on how the data is divided.

Documents are compared that have a band of their signatures in common, each with the first of that band alone. So the
work grows with the number of documents even where thousands share the same boilerplate, and not with its square.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trainyard.settings.quantities import counted
from trainyard.settings.steps.preparation import PrepareTextSpark
from trainyard.steps.data.at_scale.session import NumberedFile, as_task
from trainyard.steps.data.at_scale.signatures import Bands, SignatureBuilder, bands_for, hash_64, similarity
from trainyard.steps.data.dataset.writer import settings_named
from trainyard.steps.data.text.text_formats import DividedTextFile, PlainTextFile
from trainyard.steps.data.text.text_source import Block, Text, TextFile, TextSource

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

REPORT_FILE = "duplicates.json"

_SIGNED = "document long, name string, text_bytes long, digest binary, bands array<long>, signature binary"
_DOCUMENTS_OF_A_FILE = 1 << 32
"""A document's number is its file's, times this, plus its place in the file: the order of all documents."""

_PAIRS_IN_REPORT = 50
Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class DroppedDocument:
    """A document that was dropped, the earlier one that it repeats, and their similarity as estimated."""

    dropped: str
    repeats: str
    similarity: float


@dataclass(frozen=True)
class Duplicates:
    """What was found: counts, a sample of the pairs, and the keys of the dropped documents by number of their file."""

    documents: int
    exact: int
    near: int
    dropped_bytes: int
    sample: tuple[DroppedDocument, ...]
    keys: Mapping[int, Keys]

    def report(self, settings: PrepareTextSpark) -> dict[str, Any]:
        """Return the JSON document that is written next to the dataset."""
        return {
            "format": "trainyard.duplicates/1",
            **settings_named(
                settings, "drop_duplicates", "near_duplicate_threshold", "shingle_words", "minhash_values"
            ),
            "documents": self.documents,
            "dropped": {"exact": self.exact, "near": self.near, "text_bytes": self.dropped_bytes},
            "sample": [asdict(pair) for pair in self.sample],
        }

    def summary(self) -> str:
        """Return one line for the log."""
        return (
            f"dropped {self.exact + self.near} of {counted(self.documents, 'document')}: {self.exact} exact and "
            f"{self.near} near duplicates, {self.dropped_bytes} bytes of text"
        )


def find_duplicates(session: SparkSession, files: RDD[NumberedFile], settings: PrepareTextSpark) -> Duplicates:
    """Return the duplicates among the documents of all files."""
    from pyspark import StorageLevel
    from pyspark.sql.functions import col, expr, lit, min

    signer = _Signer(settings, bands_for(settings.near_duplicate_threshold, settings.minhash_values))
    signed = session.createDataFrame(files.mapPartitions(as_task(signer)), _SIGNED, verifySchema=False)
    signed.persist(StorageLevel.DISK_ONLY)
    firsts = signed.join(signed.groupBy("digest").agg(min("document").alias("first")), "digest")
    dropped = firsts.where("document > first").select("document", "first", lit(None).cast("double").alias("similarity"))
    if settings.drop_duplicates == "near":
        different = firsts.where("document = first").select("document", "bands", "signature")
        dropped = dropped.union(_near(different, settings.near_duplicate_threshold))
    dropped = dropped.join(signed.select("document", "name", "text_bytes"), "document").persist(StorageLevel.DISK_ONLY)
    counts = dropped.agg(
        expr("count_if(similarity is null)"), expr("count_if(similarity is not null)"), expr("sum(text_bytes)")
    ).first()
    assert counts is not None
    # Drawn by a hash of the number, so that it is the same sample however the data is divided.
    sample = dropped.orderBy(expr("xxhash64(document)"), "document").limit(_PAIRS_IN_REPORT)
    named = sample.join(signed.select(col("document").alias("first"), col("name").alias("repeats")), "first")
    found = Duplicates(
        documents=signed.count(),
        exact=counts[0],
        near=counts[1],
        dropped_bytes=counts[2] or 0,
        sample=tuple(
            DroppedDocument(row.name, row.repeats, 1.0 if row.similarity is None else row.similarity)
            for row in named.orderBy("document").collect()
        ),
        keys={
            number: np.sort(np.frombuffer(b"".join(keys), "<u8"))
            for number, keys in dropped.select("document", "name").rdd.map(_file_and_key).groupByKey().collect()
        },
    )
    dropped.unpersist()
    signed.unpersist()
    return found


def _near(different: DataFrame, threshold: float) -> DataFrame:
    """Return each document that is like an earlier one, the first such one, and their estimated similarity."""
    from pyspark.sql.functions import col, min, struct, udf

    banded = different.selectExpr("document", "posexplode(bands) as (place, band)")
    firsts = banded.groupBy("place", "band").agg(min("document").alias("first"))
    pairs = banded.join(firsts, ["place", "band"]).where("document > first").select("document", "first").distinct()
    earlier = different.select(col("document").alias("first"), col("signature").alias("signature_of_first"))
    compared = pairs.join(different.select("document", "signature"), "document").join(earlier, "first")
    estimate = udf(similarity, "double")(col("signature"), col("signature_of_first"))
    alike = compared.select("document", "first", estimate.alias("similarity")).where(col("similarity") >= threshold)
    first = alike.groupBy("document").agg(min(struct("first", "similarity")).alias("found"))
    return first.select("document", "found.first", "found.similarity")


def _file_and_key(row: Any) -> tuple[int, bytes]:
    return row.document // _DOCUMENTS_OF_A_FILE, document_key(row.name).to_bytes(8, "little")


@dataclass(frozen=True)
class _Signer:
    """Signs every document of some files, reading them forwards."""

    settings: PrepareTextSpark
    bands: Bands

    def __call__(self, files: Iterable[NumberedFile]) -> Iterator[tuple[int, str, int, bytes, list[int], bytes]]:
        for number, file in files:
            document = number * _DOCUMENTS_OF_A_FILE
            builder, text_bytes = self._builder(), 0
            for block in file.blocks():
                for piece in block.pieces(replace_undecodable=self.settings.replace_undecodable):
                    builder.add(piece.text)
                    text_bytes += piece.text_bytes
                    if piece.ends_document:
                        signature = builder.finish()
                        bands = self.bands.of(signature.values)
                        yield document, piece.document, text_bytes, signature.digest, bands, signature.values
                        document += 1
                        builder, text_bytes = self._builder(), 0

    def _builder(self) -> SignatureBuilder:
        return SignatureBuilder(self.settings.shingle_words, self.settings.minhash_values)


def document_key(name: str) -> int:
    """Return what stands for a document's name among those of its file: 8 bytes, however long the name is."""
    return hash_64(name.encode("utf-8", errors="surrogateescape"))


@dataclass(frozen=True)
class KeptBlock(Block):
    """A block without the dropped documents."""

    whole: Block
    dropped: frozenset[int]

    def texts(self) -> Iterator[Text]:
        """Yield the texts of the documents that are kept."""
        return (text for text in self.whole.texts() if document_key(text.document) not in self.dropped)


class KeptFile(TextFile):
    """A file without the dropped documents."""

    def __init__(self, whole: TextFile, dropped: Keys) -> None:
        self.name, self.size_bytes = whole.name, whole.size_bytes
        self._whole, self._dropped = whole, dropped

    def blocks(self) -> Iterator[KeptBlock]:
        """Yield the blocks of the whole file, each without its dropped documents."""
        dropped = frozenset(self._dropped.tolist())
        for block in self._whole.blocks():
            yield KeptBlock(block.file, block.source_bytes, block, dropped)


def without(source: TextSource, dropped: Mapping[int, Keys]) -> TextSource:
    """Return the source without the documents whose keys are given by the number of their file.

    A plain text that is not divided is one document: without it the file is left out, as if it did not exist.
    """
    kept: list[TextFile] = []
    for number, file in enumerate(source.files):
        if number not in dropped:
            kept.append(file)
        elif isinstance(file, DividedTextFile) or not isinstance(file, PlainTextFile):
            kept.append(KeptFile(file, dropped[number]))
    return TextSource(kept, source.description)
