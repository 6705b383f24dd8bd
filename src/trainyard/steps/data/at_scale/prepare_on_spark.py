"""Making a dataset of tokens on Spark: the order of the work, which the driver directs and tasks do."""

from __future__ import annotations

import tempfile
from collections import Counter
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.settings.steps.preparation import PrepareTextSpark
from trainyard.steps.data.at_scale.duplicates import REPORT_FILE, find_duplicates, without
from trainyard.steps.data.at_scale.places import address_of, fetch, put, remote_files
from trainyard.steps.data.at_scale.session import NumberedFile, as_task, spark_session
from trainyard.steps.data.at_scale.text_shards import encode_files, write_shards
from trainyard.steps.data.dataset.manifest import MANIFEST_FILE, ArrayType
from trainyard.steps.data.dataset.writer import DatasetWriter
from trainyard.steps.data.text import open_files, open_source
from trainyard.steps.data.text.text_source import TextSource, owners
from trainyard.steps.data.tokenizing.encoding import BlockEncoder, Counts
from trainyard.steps.data.tokenizing.finishing import finish, learn, rows_of_splits
from trainyard.steps.data.tokenizing.rows import SPLITS, TOKENS_ARRAY
from trainyard.steps.data.tokenizing.splits import SplitRule, split_rule
from trainyard.steps.data.tokenizing.vocabulary import (
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    Vocabulary,
    load_vocabulary,
)
from trainyard.steps.runtime.files import require_writable, write_json

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

_PARTS_PER_CORE, _MOST_BYTES_PER_PART = 4, 256_000_000
"""So that cores whose parts are quickly done take over from others, and little is lost with a machine."""


def prepare_on_spark(settings: PrepareTextSpark) -> int:
    """Find duplicates, tokenize the rest and write the shards, after checking what the driver can check alone."""
    address = None if settings.source is None else address_of(settings.source)
    source = open_source(settings) if address is None else open_files(remote_files(address), address, settings)
    for note in source.notes:
        print(note, flush=True)
    with tempfile.TemporaryDirectory(prefix="trainyard-spark-") as folder:
        scratch = Path(folder)
        given = _given_vocabulary(settings, scratch)
        # Tasks put their shards where they belong; files of the driver follow to an address once they are complete.
        is_remote = address_of(settings.prepared) is not None
        prepared = scratch / "prepared" if is_remote else settings.prepared
        require_writable([prepared], rank=0)
        with spark_session(scratch) as session:
            source_bytes = sum(file.size_bytes for file in source.files)
            wanted = max(
                _PARTS_PER_CORE * session.sparkContext.defaultParallelism, source_bytes // _MOST_BYTES_PER_PART
            )
            parts = settings.partitions or wanted
            session.conf.set("spark.sql.shuffle.partitions", parts)
            kept, found = source, None
            if settings.drop_duplicates != "none":
                found = find_duplicates(session, _files(session, source, parts), settings)
                kept = without(source, found.keys)
                print(found.summary(), flush=True)
            documents = (document for file in kept.files for document in file.documents())
            rule = split_rule(documents, settings.validation_fraction, settings.test_fraction, settings.seed)
            vocabulary = given or learn(kept, rule, settings)
            arrays = {TOKENS_ARRAY: ArrayType(vocabulary.dtype, (settings.sequence_length + 1,))}
            with DatasetWriter(prepared, arrays, settings.shard_samples) as dataset:
                (prepared / REPORT_FILE).unlink(missing_ok=True)
                if found is not None:
                    write_json(prepared / REPORT_FILE, found.report(settings))
                _tokenize(session, kept, parts, rule, vocabulary, dataset, scratch, settings)
        if is_remote:
            for name in (REPORT_FILE, TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, MANIFEST_FILE):
                if (prepared / name).exists():
                    put(prepared / name, settings.prepared)
    return 0


def _given_vocabulary(settings: PrepareTextSpark, scratch: Path) -> Vocabulary | None:
    if settings.tokenizer is None:
        return None
    copy = scratch / "tokenizer"
    copy.mkdir()
    return load_vocabulary(fetch(settings.tokenizer, (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE), copy))


def _files(session: SparkSession, source: TextSource, parts: int) -> RDD[NumberedFile]:
    """Return the files with their numbers, in partitions of consecutive files with about equally many bytes."""
    of_part: dict[int, list[NumberedFile]] = {}
    for number, (file, part) in enumerate(zip(source.files, owners(source.files, parts), strict=True)):
        of_part.setdefault(part, []).append((number, file))
    return session.sparkContext.parallelize(list(of_part.values()), max(1, len(of_part))).flatMap(list)


def _tokenize(
    session: SparkSession,
    source: TextSource,
    parts: int,
    rule: SplitRule,
    vocabulary: Vocabulary,
    dataset: DatasetWriter,
    scratch: Path,
    settings: PrepareTextSpark,
) -> None:
    """Tokenize the documents, write the shards and finish the dataset."""
    from pyspark import StorageLevel

    file = scratch / TOKENIZER_FILE
    file.write_text(vocabulary.tokenizer_json, encoding="utf-8")
    session.sparkContext.addFile(str(file))
    encoder = BlockEncoder(file, vocabulary.end_of_text, vocabulary.dtype, rule, settings.replace_undecodable)
    encode = as_task(partial(encode_files, encoder))
    # Kept on the executors' disks: tokens are counted, and only then is it known which shard each belongs to.
    encoded = _files(session, source, parts).mapPartitions(encode).persist(StorageLevel.DISK_ONLY)
    counts_of_each = dict(encoded.mapValues(attrgetter("counts")).reduceByKey(Counts.add).collect())
    counts = Counts()
    for number in sorted(counts_of_each):
        counts.add(counts_of_each[number])
    for name, replaced in counts.replaced.items():
        print(f"{name}: {replaced} characters stand for bytes that are not UTF-8", flush=True)
    stream_tokens = counts.tokens + Counter(SPLITS)  # an end-of-text token begins each split's stream
    splits = rows_of_splits(counts, [stream_tokens], settings)
    written, left_out = write_shards(encoded, counts_of_each, splits, vocabulary, settings.prepared)
    finish(settings, dataset, written, counts, left_out, vocabulary)
